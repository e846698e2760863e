"""Passes of one learner: forward, backward, an update as it is, and the update after one change of the engine each.

Each way prints a JSON line when it is measured. Without a GPU, the toy size is measured on the CPU.

With --compiled, it is the update with compiled layers alone; its first one shows what it costs to compile them.

Usage: python -m benchmarks.studies.gpu_passes [--size 0.6b] [--rounds 3] [--compiled]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.studies.gpu_engines import SIZES
from benchmarks.update import OBJECTIVE, RESPONSES, Shape, rows_of
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.allocator import use_expandable_segments
from hacpo_core.engines.learning.torch_learner import TorchLearner

HAS_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", "bfloat16") if HAS_GPU else ("cpu", "float32")
WORK = {True: Shape(0, 0, 0, 16, 150, (100, 300)), False: Shape(0, 0, 0, 4, 12, (10, 20))}
"""rows on a GPU, 16 problems x 8 responses of 200 tokens on average, and on the CPU; sizes of the model are not read"""
CHANGES: dict[str, dict[str, Any]] = {
    "padded rows": {"row_layout": "padded"},
    "twice the pass": {"micro_batch_tokens": 32768},
    "half the pass": {"micro_batch_tokens": 8192},
    "checkpointing": {"gradient_checkpointing": True},
    "sums in bfloat16": {"grad_dtype": "same"},
    "head in float32": {"head_dtype": "float32"},
}


def model_of(size: str) -> PreTrainedModel:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", max_position_embeddings=8192, **SIZES[size])
    with torch.device(DEVICE):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, DTYPE))
    return model


def measure(work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Median seconds after an uncounted first call, and the peak of torch's memory, GiB (0 on the CPU)."""
    seconds = []
    for _ in range(rounds + 1):
        if HAS_GPU:
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        work()
        if HAS_GPU:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if HAS_GPU else 0
    return {"seconds": statistics.median(seconds[1:]), "first_s": seconds[0], "peak_gib": peak / 2**30}


def ways(size: str, rows: Minibatch, rounds: int, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """Results in the order of their worth; only one learner is in memory at a time."""
    engine = EngineConfig(device=DEVICE, dtype=DTYPE, grad_dtype="float32")
    use_expandable_segments(engine)

    def learner_of(changes: dict[str, Any]) -> TorchLearner:
        return TorchLearner(
            model_of(size),
            optimizer=OptimizerConfig(learning_rate=1e-6),
            engine=replace(engine, **changes),
            temperature=1.0,
            total_updates=10**6,
        )

    def update(learner: TorchLearner) -> Callable[[], object]:
        return lambda: learner.update([rows], OBJECTIVE, measures_cosine=False)

    if compiled:
        yield {"way": "update, compiled layers", **measure(update(learner_of({"compile_layers": True})), rounds)}
        return
    learner = learner_of({})
    yield {"way": "forward", **measure(lambda: learner.logprobs(rows.tokens), rounds)}
    yield {"way": "forward and backward", **measure(lambda: learner.accumulate(rows, OBJECTIVE, 0), rounds)}
    yield {"way": "update", **measure(update(learner), rounds)}
    for name, changes in CHANGES.items():
        del learner
        gc.collect()
        learner = learner_of(changes)
        yield {"way": f"update, {name}", **measure(update(learner), rounds)}


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="0.6b" if HAS_GPU else "toy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    if not HAS_GPU:
        torch.set_num_threads(1)
    shape = replace(WORK[HAS_GPU], vocabulary=SIZES[arguments.size]["vocab_size"])
    rows = rows_of(shape)
    title = {"size": arguments.size, "rows": shape.problems * RESPONSES, "response_tokens": rows.num_tokens}
    for result in ways(arguments.size, rows, arguments.rounds, compiled=arguments.compiled):
        rate = rows.num_tokens / result["seconds"]
        print(json.dumps(title | result | {"response_tokens_per_s": rate}), flush=True)


if __name__ == "__main__":
    main()
