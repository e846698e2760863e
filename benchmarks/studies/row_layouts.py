"""Number of tokens and time of each row layout, for scoring and for a forward and backward pass of the same rows.

Usage: python -m benchmarks.studies.row_layouts [--repeats 3] [--device cpu] [--dtype float32]
[--shapes tiny long]; writes benchmarks/results/row_layouts.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.measure import write_result
from hacpo_core.columns import TokenRows
from hacpo_core.engines.layouts import LAYOUTS, forward_passes
from hacpo_core.engines.scoring import ScoringHead, row_layout, scoring_head
from hacpo_core.engines.speedups import pass_length, speed_up


@dataclass(frozen=True)
class Shape:
    """A mini-batch and the model that scores it; prompt and response lengths are uniform between two bounds."""

    problems: int
    samples: int
    prompt: tuple[int, int]
    response: tuple[int, int]
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    micro_batch_tokens: int


SHAPES = {
    "tiny": Shape(32, 8, (10, 14), (14, 30), 96, 3, 4, 40, 4096),
    "long": Shape(4, 8, (200, 200), (100, 1000), 192, 6, 6, 2048, 4096),
    "long_prompts": Shape(4, 8, (400, 400), (20, 120), 192, 6, 6, 2048, 4096),
}


def rows_of(shape: Shape) -> TokenRows:
    """The rows of a shape; deterministic."""
    random = np.random.default_rng(0)

    def ids(length: tuple[int, int]) -> tuple[int, ...]:
        size = int(random.integers(length[0], length[1] + 1))
        return tuple(random.integers(1, shape.vocabulary, size=size).tolist())

    prompts = [ids(shape.prompt) for _ in range(shape.problems)]
    repeated = [prompt for prompt in prompts for _ in range(shape.samples)]
    return TokenRows.of(repeated, [ids(shape.response) for _ in repeated])


def model_of(family: str, shape: Shape) -> PreTrainedModel:
    """A model with random weights."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": max(1, shape.heads // 2),
        "head_dim": shape.hidden // shape.heads,
        "tie_word_embeddings": True,
    }
    return Qwen3ForCausalLM(Qwen3Config(**sizes)) if family == "qwen3" else LlamaForCausalLM(LlamaConfig(**sizes))


def measure(head: ScoringHead, rows: TokenRows, shape: Shape, *, repeats: int) -> list[dict[str, Any]]:
    """Tokens, passes and median times (on the CPU, processor time) of each layout; layouts alternate."""
    device, filled_length = head.model.device, pass_length(head.model)

    # With one thread, processor time excludes the load of other processes on a shared machine.
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def once(layout: str, *, trains: bool) -> tuple[float, int, int]:
        wait()
        start, num_tokens, num_passes = clock(), 0, 0
        with torch.set_grad_enabled(trains):
            for forward in forward_passes(
                rows, layout=layout, max_tokens=shape.micro_batch_tokens, filled_length=filled_length
            ):
                scores = head.scores(forward.to(device), temperature=1.0, chunk_mb=64)
                if trains:
                    scores.logprob_N.sum().backward()
                num_tokens += forward.input_BT.numel()
                num_passes += 1
        head.model.zero_grad()
        wait()
        return clock() - start, num_tokens, num_passes

    taken: dict[tuple[str, bool], list[tuple[float, int, int]]] = {}
    for number in range(repeats + 1):  # the first round is not counted
        for layout, trains in itertools.product(LAYOUTS, (False, True)):
            measured = once(layout, trains=trains)
            taken.setdefault((layout, trains), []).extend([measured] if number else [])
    return [
        {
            "layout": layout,
            "tokens": taken[layout, False][0][1],
            "passes": taken[layout, False][0][2],
            "score_s": round(statistics.median(seconds for seconds, _, _ in taken[layout, False]), 4),
            "train_s": round(statistics.median(seconds for seconds, _, _ in taken[layout, True]), 4),
        }
        for layout in LAYOUTS
    ]


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for name in options.shapes:
        shape = SHAPES[name]
        rows = rows_of(shape)
        least = int(rows.lengths_B.sum())
        for family in ("qwen3", "llama") if name == "tiny" else ("qwen3",):
            model = model_of(family, shape).to(options.device, getattr(torch, options.dtype))
            speed_up(model)
            head = scoring_head(model)
            assert row_layout(head, "shared_prompts") == "shared_prompts"
            num_weights = sum(parameter.numel() for parameter in model.parameters())
            for row in measure(head, rows, shape, repeats=options.repeats):
                results.append({"shape": name, "family": family, "weights": num_weights, "row_tokens": least, **row})
                print(json.dumps(results[-1]), flush=True)
    result = {
        "rows": {name: asdict(SHAPES[name]) for name in options.shapes},
        "threads": 1,
        "device": options.device if options.device == "cpu" else torch.cuda.get_device_name(),
        "dtype": options.dtype,
        "results": results,
    }
    write_result("row_layouts", result, ["torch", "transformers"])


if __name__ == "__main__":
    main()
