"""Where the time of an update and of a sampled token goes, by region, as torch's profiler sees it.

Regions contain each other's work only where one is indented below another. "host" is the time of this process, "device"
that of a GPU's kernels; without a GPU there is no device time. An update consists of its forward and backward passes,
the optimizer's step, and the fingerprints before and after it.

Usage: python -m benchmarks.studies.update_profile [--model "SmolLM2-135M"] [--threads 2] [--of update]
Prints JSON lines.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import PreTrainedModel

from benchmarks.models import NAMES, random_model, real_model
from benchmarks.update import OBJECTIVE, Shape, rows_of
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.learning import learner as learners
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.passes import layouts
from hacpo_core.engines.sampling import transformers_sampler
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.records import SamplingLimits

HAS_GPU = torch.cuda.is_available()
PROBLEMS, PROMPT, RESPONSES = (16, 150, (100, 300)) if HAS_GPU else (2, 60, (40, 160))
ROWS, NUM_TOKENS = 16, 16
NUM_KERNELS = 25
"""shown of a GPU"""
UPDATE: Mapping[str, Sequence[str]] = {
    "update": ("update",),
    "  rows as tensors": ("rows as tensors",),
    "  copies for attention": ("_Spread", "_SpreadBackward", "_Collect", "_CollectBackward"),
    "  head, forward": ("_ChunkedScores",),
    "  head, backward": ("_ChunkedScoresBackward",),
    "  objective": ("objective",),
    "  optimizer's step": ("optimizer's step",),
    "fingerprint": ("fingerprint",),
}
"""names of the profiler's events in each region"""
SAMPLING: Mapping[str, Sequence[str]] = {
    "sampling": ("sampling",),
    "  prompts": ("prompts",),
    "  choice of tokens": ("choice of tokens",),
}


@contextmanager
def regions(*named: tuple[Any, str, str]) -> Iterator[None]:
    """Calls of these attributes (owner, attribute, region) are events of the profiler."""

    def recorded(function: Callable[..., Any], region: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with record_function(region):
                return function(*arguments, **options)

        return call

    originals = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in named]
    for owner, attribute, region in named:
        setattr(owner, attribute, recorded(getattr(owner, attribute), region))
    try:
        yield
    finally:
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)


def seconds_of(work: Callable[[], object], names: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Seconds and calls of each region in one call of `work`, after an unmeasured one; on a GPU also of the kernels
    that take longest.
    """
    work()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if HAS_GPU else [])]
    with profile(activities=activities) as profiled:
        work()
        if HAS_GPU:
            torch.cuda.synchronize()
    averages = profiled.key_averages()
    events = {event.key: event for event in averages if event.device_type == DeviceType.CPU}
    found = []
    for region, keys in names.items():
        own = [events[key] for key in keys if key in events]
        found.append(
            {
                "region": region,
                "calls": sum(event.count for event in own),
                "host_s": sum(event.cpu_time_total for event in own) / 1e6,
                "device_s": sum(event.device_time_total for event in own) / 1e6 if HAS_GPU else None,
            }
        )
    kernels = [event for event in averages if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    for kernel in sorted(kernels, key=lambda kernel: -kernel.self_device_time_total)[:NUM_KERNELS]:
        seconds = kernel.self_device_time_total / 1e6
        found.append({"region": kernel.key[:80], "calls": kernel.count, "host_s": None, "device_s": seconds})
    return found


def profiled_update(model: PreTrainedModel, threads: int) -> list[dict[str, Any]]:
    """Regions of an update of `PROBLEMS` problems with eight responses each."""
    shape = Shape(model.config.vocab_size, 0, 0, PROBLEMS, PROMPT, RESPONSES)
    rows = rows_of(shape)
    engine = EngineConfig(
        device="cuda" if HAS_GPU else "cpu", dtype="bfloat16" if HAS_GPU else "float32", num_threads=threads
    )
    learner = TorchLearner(
        model, optimizer=OptimizerConfig(learning_rate=1e-6), engine=engine, temperature=1.0, total_updates=10**6
    )

    def work() -> None:
        with record_function("fingerprint"):
            learner.fingerprint()
        with record_function("update"):
            learner.update([rows], OBJECTIVE)
        with record_function("fingerprint"):
            learner.fingerprint()

    with regions(
        (layouts, "_shared_pass", "rows as tensors"),
        (learners, "loss_rows", "objective"),
        (learners, "objective_values", "objective"),
        (learner, "optimizer_step", "optimizer's step"),
    ):
        found = seconds_of(work, UPDATE)
    return [{"tokens": rows.num_tokens, **each} for each in found]


def profiled_sampling(model: PreTrainedModel) -> list[dict[str, Any]]:
    """Regions of `NUM_TOKENS` tokens of each of `ROWS` responses."""
    sampler = TransformersSampler(model, eos_ids=[], pad_id=0, batch_size=ROWS)
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=(ROWS, PROMPT))
    requests = [SampleRequest(tuple(row), seed=n) for n, row in enumerate(ids.tolist())]

    def work() -> None:
        with record_function("sampling"):
            sampler.sample(requests, SamplingLimits(1.0, 1.0, NUM_TOKENS))

    with regions((transformers_sampler, "choose", "choice of tokens"), (sampler, "prefill", "prompts")):
        found = seconds_of(work, SAMPLING)
    return [{"tokens": ROWS * NUM_TOKENS, **each} for each in found]


def main() -> None:
    """Print a line for each region, with its share of the whole that it belongs to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=NAMES, default=NAMES[0], help="if it cannot be had, random weights instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--of", nargs="+", choices=("sampling", "update"), default=("sampling", "update"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = real_model(arguments.model) if arguments.model != NAMES[1] else None
    name = arguments.model if model is not None else NAMES[1]
    device, dtype = ("cuda", torch.bfloat16) if HAS_GPU else ("cpu", torch.float32)
    model = model or random_model("0.5b", device=device, dtype=dtype)
    model.to(device=device, dtype=dtype)  # type: ignore[call-arg]
    works = {"sampling": lambda: profiled_sampling(model), "update": lambda: profiled_update(model, arguments.threads)}
    for found in (works[part]() for part in arguments.of):
        column = "device_s" if HAS_GPU else "host_s"
        whole = found[0][column]
        for each in found:
            print(json.dumps({"model": name, **each, "share": each[column] / whole}), flush=True)


if __name__ == "__main__":
    main()
