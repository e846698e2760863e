"""An update of hacpo against a plain forward and backward pass of transformers over the same rows (the "floor").

The floor pads the same micro-batches, projects every position to the vocabulary and takes the mean log-probability of
the response, as a straightforward implementation would. Both clip the gradient and step AdamW. All rows have nonzero
advantages.

Usage: python -m benchmarks.update [--rounds 3]; writes benchmarks/results/update.json.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.measure import PeakMemory, child, in_turn, matmul_peak, median_ratio, write_result
from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.data.batches import Minibatch, own_minibatch
from hacpo_core.engines.learning.optimizer import adamw
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.passes.layouts import ForwardPass, forward_passes
from hacpo_core.engines.passes.logprobs import token_scores
from hacpo_core.methods.objectives.sequence_clip import SequenceClip

THREADS, RESPONSES = 2, 8
KEPT = str(2**32)
"""bytes of freed memory that the allocator keeps for both: with glibc's settings the floor waits for page faults"""
OBJECTIVE = SequenceClip(sequence_low=10.0, sequence_high=10.0)


@dataclass(frozen=True)
class Shape:
    """Size of the model and its rows; each problem has a prompt and eight responses of different lengths."""

    vocabulary: int
    width: int
    layers: int
    problems: int
    prompt: int
    response: tuple[int, int]
    """minimum and maximum length"""


SHAPES = {
    "50": Shape(50, 96, 3, 16, 12, (20, 40)),
    "50, wide": Shape(50, 320, 4, 16, 12, (20, 40)),
    "32 k": Shape(32_000, 256, 4, 4, 32, (40, 80)),
    "151,936": Shape(151_936, 256, 4, 2, 32, (30, 50)),
}
LARGE_VOCABULARY, LARGE_TOKENS, LARGE_WIDTH = 151_936, 4096, 64


def model_of(shape: Shape) -> PreTrainedModel:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=2 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=shape.width // 4,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def rows_of(shape: Shape, seed: int = 0) -> Minibatch:
    """Rows with old log-probabilities close to those of random weights; the seed decides lengths and tokens."""
    random = torch.Generator().manual_seed(seed)
    prompts, responses = [], []

    def ids(length: int) -> list[int]:
        return torch.randint(shape.vocabulary, (length,), generator=random).tolist()

    for _ in range(shape.problems):
        prompts += [ids(shape.prompt)] * RESPONSES
        lengths = torch.randint(shape.response[0], shape.response[1] + 1, (RESPONSES,), generator=random)
        responses += [ids(length) for length in lengths.tolist()]
    tokens = TokenRows.of(prompts, responses)
    old = np.full(len(tokens.responses.value_N), -math.log(shape.vocabulary), np.float32)
    advantages = [1.0 if n % 2 else -1.0 for n in range(len(tokens))]
    return own_minibatch(tokens, Ragged(old, tokens.responses.edge), advantages, OBJECTIVE)


class Floor:
    """A straightforward implementation of the same update."""

    def __init__(self, model: PreTrainedModel, rows: Minibatch, engine: EngineConfig) -> None:
        self.model = model.train()
        self.optimizer = adamw(list(self.model.parameters()), OptimizerConfig())
        self.rows = rows
        self.passes = list(forward_passes(self.rows.tokens, layout="padded", max_tokens=engine.micro_batch_tokens))

    def update(self) -> None:
        """Run forward and backward passes, clip the gradient, step the optimizer."""
        for forward in self.passes:
            self.objective(forward).neg().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def objective(self, forward: ForwardPass) -> Tensor:
        """GSPO's objective without clipping."""
        logits_BTV = self.model(input_ids=forward.input_BT, use_cache=False).logits
        logprob_BTV = logits_BTV.log_softmax(dim=-1)
        logprob_N = logprob_BTV[forward.sequence_N, forward.column_N, forward.target_N]
        rows = self.rows.take(forward.rows)
        mean_B = torch.stack([part.mean() for part in logprob_N.split(rows.tokens.responses.lengths.tolist())])
        old_B, advantage_B = (torch.from_numpy(c).float() for c in (rows.old_mean_logprob_B, rows.advantage_B))
        return ((mean_B - old_B).exp() * advantage_B).sum() / len(self.rows)


def measure(name: str, rounds: int, peak: float) -> dict[str, Any]:
    """`compare` for a key of SHAPES."""
    shape = SHAPES[name]
    return compare(lambda: model_of(shape), rows_of(shape), rounds, peak)


def compare(new_model: Callable[[], PreTrainedModel], minibatch: Minibatch, rounds: int, peak: float) -> dict[str, Any]:
    """Median times of both implementations, s, and the share of the matmul peak that ours reaches.

    Args:
        new_model: makes a model for either of them.
        minibatch: rows of the update.
        rounds: that are counted.
        peak: FLOP/s of matrix products.
    """
    engine = EngineConfig(num_threads=THREADS)
    floor, model = Floor(new_model(), minibatch, engine), new_model()
    learner = TorchLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=1000)

    def update() -> None:
        learner.update([minibatch], OBJECTIVE)

    seconds = in_turn({"ours": update, "floor": floor.update}, rounds=rounds)
    embedding: Any = model.get_input_embeddings()
    head = embedding.weight.numel()
    body = sum(p.numel() for p in model.parameters()) - head
    targets = minibatch.num_tokens
    tokens = targets + sum(map(len, minibatch.tokens.prompts))  # a prompt counts once for all its responses
    # 2 FLOP per weight and token forward, 4 backward; the head's forward product is computed twice.
    flop = 6 * body * tokens + 8 * head * targets
    return {
        "vocabulary": len(embedding.weight),
        "weights": body + head,
        "rows": len(minibatch),
        "seconds": {way: statistics.median(times) for way, times in seconds.items()},
        "ours_over_floor": median_ratio(seconds["ours"], seconds["floor"]),
        "share_of_peak": flop / peak / statistics.median(seconds["ours"]),
    }


def head_peak_mb(way: str) -> float:
    """Peak memory of log-probabilities with a large vocabulary and their gradients, without the weights, MiB."""
    torch.manual_seed(0)
    weight_VD = torch.randn(LARGE_VOCABULARY, LARGE_WIDTH, requires_grad=True)
    hidden_ND = torch.randn(LARGE_TOKENS, LARGE_WIDTH, requires_grad=True)
    target_N = torch.arange(LARGE_TOKENS)
    weight_VD.grad, hidden_ND.grad = torch.zeros_like(weight_VD), torch.zeros_like(hidden_ND)
    peak = PeakMemory()
    if way == "ours":
        token_scores(hidden_ND, weight_VD, None, target_N).logprob_N.sum().backward()
    else:
        (hidden_ND @ weight_VD.T).log_softmax(dim=1).gather(1, target_N[:, None]).sum().backward()
    return peak.mb()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-of", default="")
    parser.add_argument("--one", nargs=2, metavar=("SHAPE", "PEAK_FLOPS"))
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    if arguments.memory_of:
        print(json.dumps(head_peak_mb(arguments.memory_of)))
        return
    if arguments.one:
        name, peak = arguments.one
        print(json.dumps(measure(name, arguments.rounds, float(peak))))
        return
    memory = {way: child("update", "--memory-of", way) for way in ("ours", "naive")}
    peak_flops = matmul_peak()
    os.environ |= {"MALLOC_TRIM_THRESHOLD_": KEPT, "MALLOC_MMAP_THRESHOLD_": KEPT}
    results = []
    for name in SHAPES:
        options = ["--one", name, str(peak_flops), "--rounds", str(arguments.rounds)]
        results.append(child("update", *options))
        print(json.dumps(results[-1]), flush=True)
    title = {
        "threads": THREADS,
        "rounds": arguments.rounds,
        "dtype": "float32",
        "matmul_peak_flops": peak_flops,
        "kept_bytes": int(KEPT),
    }
    head = {"vocabulary": LARGE_VOCABULARY, "tokens": LARGE_TOKENS, "peak_mb": memory}
    write_result("update", title | {"results": results, "head": head}, ["torch", "transformers"])


if __name__ == "__main__":
    main()
