"""Passes of one learner: forward, backward, an update as it is, and the update after one change of the engine each.

Each way prints a JSON line when it is measured. Without a GPU, the toy size is measured on the CPU. TFLOP/s count six
operations per weight and response token (two for a forward pass alone), and neither prompts nor recomputed layers.

Usage: python -m benchmarks.studies.gpu_passes [--size 0.5b] [--rounds 3] [--problems 16] [--response 100 300]
                                               [--ways "update, compiled"] [--engine JSON]
                                               [--new-rows] [--without-cudnn]
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.models import SIZES, random_model
from benchmarks.update import OBJECTIVE, Shape, rows_of
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.allocator import use_expandable_segments
from hacpo_core.engines.learning.torch_learner import TorchLearner

HAS_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", "bfloat16") if HAS_GPU else ("cpu", "float32")
PROMPT = 150 if HAS_GPU else 12
"""tokens"""
FORWARD, BACKWARD, UPDATE = "forward", "forward and backward", "update"
COMPILED = "update, compiled"
WAYS: dict[str, dict[str, Any]] = {
    FORWARD: {},
    BACKWARD: {},
    UPDATE: {},
    "update, padded rows": {"row_layout": "padded"},
    "update, twice the pass": {"micro_batch_tokens": 32768},
    "update, half the pass": {"micro_batch_tokens": 8192},
    "update, checkpointing": {"gradient_checkpointing": True},
    COMPILED: {"compile": True},
}
"""fields of the engine that each way changes"""


def measure(work: Callable[[Minibatch], object], rounds: Sequence[Minibatch]) -> dict[str, float]:
    """Median seconds after an uncounted first round, and the peak of torch's memory, GiB (0 on the CPU)."""
    seconds = []
    for rows in rounds:
        if HAS_GPU:
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        work(rows)
        if HAS_GPU:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if HAS_GPU else 0
    return {"seconds": statistics.median(seconds[1:]), "first_s": seconds[0], "peak_gib": peak / 2**30}


def learner_of(size: str, changes: dict[str, Any]) -> TorchLearner:
    """A learner with random weights."""
    fixed: dict[str, Any] = {"device": DEVICE, "dtype": DTYPE}
    engine = EngineConfig(**fixed | changes)
    use_expandable_segments(engine)
    return TorchLearner(
        random_model(size, device=DEVICE, dtype=getattr(torch, DTYPE)),
        optimizer=OptimizerConfig(learning_rate=1e-6),
        engine=engine,
        temperature=1.0,
        total_updates=10**6,
    )


def measure_way(way: str, size: str, rounds: Sequence[Minibatch], changes: dict[str, Any]) -> dict[str, Any]:
    """`measure` of a key of WAYS, with rates; `changes` are further fields of the engine."""
    learner = learner_of(size, changes | WAYS[way])
    learner.model.train()  # layers are recomputed in training mode only
    works: dict[str, Callable[[Minibatch], object]] = {
        FORWARD: lambda rows: learner.logprobs(rows.tokens),
        BACKWARD: lambda rows: learner.passes(rows, OBJECTIVE, 0),
    }
    found = measure(works.get(way, lambda rows: learner.update([rows], OBJECTIVE)), rounds)
    num_tokens = statistics.mean(rows.num_tokens for rows in rounds[1:])
    rate = num_tokens / found["seconds"]
    weights = sum(parameter.numel() for parameter in learner.model.parameters())
    tflops = (2 if way == FORWARD else 6) * weights * rate / 1e12
    return {"way": way, "response_tokens": num_tokens, **found, "response_tokens_per_s": rate, "tflop_per_s": tflops}


def main() -> None:
    """Print a line for each way; only one learner is in memory at a time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="0.5b" if HAS_GPU else "toy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--problems", type=int, default=16 if HAS_GPU else 4, help="with eight responses each")
    parser.add_argument("--response", type=int, nargs=2, default=(100, 300) if HAS_GPU else (10, 20), help="lengths")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if way != COMPILED])
    parser.add_argument("--engine", type=json.loads, default={}, help="further fields of the engine, a JSON object")
    parser.add_argument("--new-rows", action="store_true", help="of other lengths in each round, as in a training")
    parser.add_argument("--without-cudnn", action="store_true", help="another kernel for attention")
    arguments = parser.parse_args()
    if not HAS_GPU:
        torch.set_num_threads(1)
    if arguments.without_cudnn:
        torch.backends.cuda.enable_cudnn_sdp(False)
    size, changes = arguments.size, arguments.engine
    low, high = arguments.response
    shape = Shape(SIZES[size]["vocab_size"], 0, 0, arguments.problems, PROMPT, (low, high))
    rounds = [rows_of(shape, seed if arguments.new_rows else 0) for seed in range(arguments.rounds + 1)]
    title = {"size": size, "rows": len(rounds[0]), **changes}
    title |= {name: True for name in ("new_rows", "without_cudnn") if getattr(arguments, name)}
    for way in arguments.ways:
        print(json.dumps(title | measure_way(way, size, rounds, changes)), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
