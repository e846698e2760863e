"""What each piece of `engines/cpu` saves: sampling and updates in turn with everything, and without one piece.

Usage: python -m benchmarks.studies.cpu_pieces [--rounds 5]; writes benchmarks/results/cpu_pieces.json.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import in_turn, median_ratio, write_result
from benchmarks.sampling import SAMPLES, SIZES, VOCABULARY
from benchmarks.sampling import model_of as sampled_model
from benchmarks.update import OBJECTIVE, SHAPES, THREADS, model_of, rows_of
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines import logprobs, speedups
from hacpo_core.engines.base import SampleRequest
from hacpo_core.engines.cpu import llama_decoder, products
from hacpo_core.engines.torch.learner import TorchLearner
from hacpo_core.engines.transformers.sampler import TransformersSampler
from hacpo_core.records import SamplingLimits

BATCHES = ((32, 32), (256, 32), (256, 256))
"""rows and response tokens"""
Without = Callable[[], AbstractContextManager[Any]]

SAMPLING: dict[str, Without] = {
    "oneDNN": lambda: patch.object(products, "mkl_is_slow", lambda: False),
    "packed weights": lambda: patch.object(llama_decoder, "MAX_PACKED", 0),
    "MKL for few rows": lambda: patch.object(products, "MIN_FROZEN", 0),
    "attention by products": lambda: patch.object(llama_decoder, "by_products", _fused),
}
UPDATES: dict[str, Without] = {
    "oneDNN": lambda: patch.object(products, "mkl_is_slow", lambda: False),
    "oneDNN for the head": lambda: patch.object(logprobs, "linear", functional.linear),
    "attention by products": lambda: patch.object(speedups, "SHORT", 0),
}


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, mask)


def measure_sampling(name: str, rounds: int) -> list[dict[str, Any]]:
    """Time without each piece over the time with all, for each batch."""
    size, found = SIZES[name], []
    model = sampled_model(size)
    speedups.speed_up(model)
    own_class = copy.deepcopy(model)
    ours = TransformersSampler(model, eos_ids=[], pad_id=0, batch_size=1024)
    speedups.use_speedups(False)
    plain = TransformersSampler(own_class, eos_ids=[], pad_id=0, batch_size=1024)
    plain.sample([SampleRequest((1, 2), seed=0)], SamplingLimits(1.0, 1.0, 1))  # chooses its decoder
    speedups.use_speedups(True)
    for batch, length in BATCHES:
        if batch * length > size.max_tokens:
            continue
        requests = [SampleRequest((1 + n // SAMPLES % (VOCABULARY - 1), 2, 3, 4), seed=n) for n in range(batch)]
        limits = SamplingLimits(1.0, 1.0, length)

        def sample(without: Without, r: Any = requests, li: Any = limits) -> None:
            with without():
                ours.sample(r, li)

        ways: dict[str, Callable[[], object]] = {"all": partial(sample, nullcontext)}
        ways |= {piece: partial(sample, off) for piece, off in SAMPLING.items()}
        ways["decoder of our own"] = partial(plain.sample, requests, limits)
        seconds = in_turn(ways, rounds=rounds)
        found += [_row("sampling", model, f"{batch} x {length}", piece, seconds) for piece in ways if piece != "all"]
    return found


def measure_updates(name: str, rounds: int) -> list[dict[str, Any]]:
    """Time without each piece over the time with all, for an update."""
    shape, engine = SHAPES[name], EngineConfig(num_threads=THREADS)
    model = model_of(shape)
    speedups.speed_up(model)
    learner = TorchLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=1000)
    minibatch = rows_of(shape)

    def update(without: Without) -> None:
        with without():
            learner.update([minibatch], OBJECTIVE, measures_cosine=False)

    ways: dict[str, Callable[[], object]] = {"all": partial(update, nullcontext)}
    ways |= {piece: partial(update, off) for piece, off in UPDATES.items()}
    ways["filled passes"] = lambda: update(lambda: patch.object(learner, "_filled_length", None))
    seconds = in_turn(ways, rounds=rounds)
    return [_row("update", model, f"{len(minibatch)} rows", piece, seconds) for piece in ways if piece != "all"]


def _row(what: str, model: torch.nn.Module, size: str, piece: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    weights = sum(parameter.numel() for parameter in model.parameters())
    ratio = median_ratio(seconds[piece], seconds["all"])
    print(what, weights, size, piece, f"{ratio:.2f}", flush=True)
    return {"what": what, "weights": weights, "size": size, "piece": piece, "without_over_with": ratio}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    results = [row for name in SIZES for row in measure_sampling(name, rounds)]
    results += [row for name in SHAPES for row in measure_updates(name, rounds)]
    write_result("cpu_pieces", {"threads": THREADS, "rounds": rounds, "results": results}, ["torch", "transformers"])


if __name__ == "__main__":
    main()
