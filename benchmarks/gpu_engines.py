"""Sampler, log-probabilities and update of one model on one device: tokens/s, share of the peak, memory, ratio noise.

Weights are random, so that no model is needed: a 1.7 billion parameter Qwen3 in bfloat16 on a GPU, a toy in float32 on
the CPU. "Share of the peak" is of the matrix products' rate that the same run measures (a large square product).

Usage: python -m benchmarks.gpu_engines [--device cuda] [--size 1.7b|toy]; writes benchmarks/results/gpu_engines.json
(on the CPU it prints only).
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.measure import write_result
from hacpo_core.algo.methods import Method
from hacpo_core.algorithm import method_of
from hacpo_core.batches import Minibatch, Row
from hacpo_core.config import EngineConfig, ExperimentConfig, OptimizerConfig
from hacpo_core.engines.base import SampleRequest, SamplingLimits, ScoreRequest
from hacpo_core.engines.logprobs import scores_of_logits, token_scores
from hacpo_core.engines.torch_learner import TorchLearner
from hacpo_core.engines.transformers_sampler import TransformersSampler
from hacpo_core.seeds import generator

SIZES: dict[str, dict[str, Any]] = {
    "1.7b": {
        "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
    },
    "toy": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "intermediate_size": 128, "vocab_size": 512,
    },
}  # fmt: skip
SHAPES = {"1.7b": (64, 256, 1024, 151936, 4096), "toy": (8, 16, 32, 2048, 256)}
"""responses, prompt tokens, response tokens; vocabulary and tokens of the log-softmax measurement"""


def main() -> None:
    """Measure everything on one device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    size = asked.size or ("1.7b" if asked.device == "cuda" else "toy")
    dtype = "bfloat16" if asked.device == "cuda" else "float32"
    torch.set_num_threads(1) if asked.device == "cpu" else None
    device = Device(asked.device, asked.rounds)
    model = random_model(size, dtype, asked.device)
    peak = matrix_rate(device, dtype)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if asked.device == "cuda" else "cpu",
        "model": {"parameters": model.num_parameters(), "dtype": dtype, **SIZES[size]},
        "matrix_tflops": peak / 1e12,
        "sampler": measure_sampler(device, model, size),
    }
    result |= measure_learner(device, model, size, dtype, peak)
    result["ratio_noise"] = measure_noise(device, model, size, dtype)
    del model
    result["log_softmax"] = measure_log_softmax(device, size, dtype)
    if asked.device == "cuda":
        write_result("gpu_engines", result, ["torch", "transformers"])
    else:
        print(result)


class Device:
    """Times and peak memory of a block of work on one device."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name, self.rounds = name, rounds
        self.is_cuda = name.startswith("cuda")

    def measure(self, work: Callable[[], object]) -> tuple[float, float]:
        """Median seconds of a few rounds after a warm-up, and the peak of GiB above what was held before."""
        gc.collect()
        held = 0
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        times = []
        for _ in range(self.rounds + 1):
            start = time.perf_counter()
            work()
            if self.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        peak = (torch.cuda.max_memory_allocated() - held) / 2**30 if self.is_cuda else float("nan")
        return sorted(times[1:])[self.rounds // 2], peak


def random_model(size: str, dtype: str, device: str) -> PreTrainedModel:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", tie_word_embeddings=True, max_position_embeddings=8192, **SIZES[size])
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return model


def matrix_rate(device: Device, dtype: str) -> float:
    """Floating-point operations per second of a large square matrix product."""
    n = 8192 if device.is_cuda else 512
    a = torch.randn(n, n, device=device.name, dtype=getattr(torch, dtype))
    seconds, _ = device.measure(lambda: [a @ a for _ in range(10)])
    return 10 * 2 * n**3 / seconds


def _rows(size: str) -> list[Row]:
    """Random responses; every second one is a cross-agent row."""
    num, prompt, response, *_ = SHAPES[size]
    rng, vocab = generator(0, "gpu_engines", size), SIZES[size]["vocab_size"]
    rows = []
    for i in range(num):
        length = int(rng.integers(response // 2, response + 1))
        ids = tuple(int(t) for t in rng.integers(0, vocab, prompt + length))
        row = Row(
            source=i % 2,
            problem=i // 8,
            index=i % 8,
            is_own=i % 2 == 0,
            prompt_ids=ids[:prompt],
            response_ids=ids[prompt:],
            advantage=1.0 if i % 3 else -1.0,
            cross_weight=1.0,
            old_mean_logprob=-11.0,
            old_logprobs=None,
        )
        rows.append(row)
    return rows


def measure_sampler(device: Device, model: PreTrainedModel, size: str) -> dict[str, float]:
    """Tokens per second of the transformers sampler; random weights end no response early."""
    num, prompt, response, *_ = SHAPES[size]
    sampler = TransformersSampler(model, eos_ids=[], pad_id=0, batch_size=num)
    requests = [SampleRequest(tuple(range(i % 5 + 1, i % 5 + 1 + prompt)), i) for i in range(num)]
    seconds, peak = device.measure(lambda: sampler.sample(requests, SamplingLimits(1.0, 1.0, response)))
    return {"tokens_per_s": num * response / seconds, "peak_gib": peak, "batch": num, "response_tokens": response}


def _learner(model: PreTrainedModel, size: str, dtype: str, **fields: Any) -> TorchLearner:
    defaults = {"micro_batch_tokens": 16384 if size == "1.7b" else 512, "gradient_checkpointing": size == "1.7b"}
    engine = EngineConfig(device=str(model.device), dtype=dtype, **(defaults | fields))
    return TorchLearner(
        model, optimizer=OptimizerConfig(learning_rate=1e-6), engine=engine, temperature=1.0, total_updates=100
    )


def _method() -> Method:
    return method_of(ExperimentConfig())


def measure_learner(device: Device, model: PreTrainedModel, size: str, dtype: str, peak: float) -> dict[str, Any]:
    """Log-probabilities and one update over the same rows; per token 2 N operations forward, 6 N with backward."""
    rows = _rows(size)
    tokens = sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    learner = _learner(model, size, dtype)
    requests = [ScoreRequest(row.prompt_ids, row.response_ids) for row in rows]
    scoring, scoring_gib = device.measure(lambda: learner.logprobs(requests))
    old = learner.logprobs(requests)
    whole = [
        replace(row, old_mean_logprob=sum(found) / len(found), old_logprobs=found if row.is_own else None)
        for row, found in zip(rows, old, strict=True)
    ]
    options = {"num_agents": 2, "max_response_tokens": SHAPES[size][2], "measures_cosine": False}
    updating, updating_gib = device.measure(lambda: learner.update([Minibatch(tuple(whole))], _method(), **options))
    num = model.num_parameters()
    return {
        "log_probabilities": {
            "tokens_per_s": tokens / scoring,
            "share_of_peak": 2 * num * tokens / scoring / peak,
            "peak_gib": scoring_gib,
        },
        "update": {
            "tokens_per_s": tokens / updating,
            "share_of_peak": 6 * num * tokens / updating / peak,
            "share_of_peak_with_recomputation": 8 * num * tokens / updating / peak,
            "peak_gib": updating_gib,
        },
    }


def measure_noise(device: Device, model: PreTrainedModel, size: str, dtype: str) -> dict[str, Any]:
    """GSPO's ratio on unchanged weights, which should be 1: other micro-batch shapes, and the same weights in float32.

    Random weights spread a distribution less than trained ones: what is found here is a lower bound.
    """
    requests = [ScoreRequest(row.prompt_ids, row.response_ids) for row in _rows(size)]

    def logprobs(of: PreTrainedModel, head: str, budget: int) -> list[tuple[float, ...]]:
        return _learner(of, size, str(of.dtype)[6:], head_dtype=head, micro_batch_tokens=budget).logprobs(requests)

    wide = copy.deepcopy(model).float()
    exact = logprobs(wide, "same", 16384)
    found = {}
    for head in ("same", "float32"):
        alone, together = logprobs(model, head, 1), logprobs(model, head, 16384)
        found[f"head {head}: other shapes"] = _noise(alone, together)
        found[f"head {head}: against float32"] = _noise(exact, together)
    return found


def _noise(old: Sequence[tuple[float, ...]], new: Sequence[tuple[float, ...]]) -> dict[str, float]:
    means = [(torch.tensor(b).double() - torch.tensor(a).double()).mean() for a, b in zip(old, new, strict=True)]
    ratio_B, method = torch.stack(means).exp(), _method()
    is_outside_B = (ratio_B < 1 - method.own_low) | (ratio_B > 1 + method.own_high)
    return {
        "mean_abs_ratio_minus_1": float((ratio_B - 1).abs().mean()),
        "max_abs_ratio_minus_1": float((ratio_B - 1).abs().max()),
        "share_outside_gspo_clip": float(is_outside_B.double().mean()),
    }


def measure_log_softmax(device: Device, size: str, dtype: str) -> dict[str, Any]:
    """Seconds and peak memory of log-probabilities and their gradient, in chunks and from whole logits."""
    *_, vocab, tokens = SHAPES[size]
    width = SIZES[size]["hidden_size"]
    kind = getattr(torch, dtype)
    hidden = torch.randn(tokens, width, device=device.name, dtype=kind, requires_grad=True)
    weight = (torch.randn(vocab, width, device=device.name, dtype=kind) * 0.02).requires_grad_(True)
    target = torch.randint(0, vocab, (tokens,), device=device.name)

    def clear() -> None:
        hidden.grad = weight.grad = None

    def chunked() -> None:
        clear()
        token_scores(hidden, weight, None, target).logprob_N.sum().backward()

    def whole() -> None:
        clear()
        scores_of_logits(hidden @ weight.T, target).logprob_N.sum().backward()

    found = {}
    for name, work in {"chunked": chunked, "whole": whole}.items():
        seconds, peak = device.measure(work)
        found[name] = {"seconds": seconds, "peak_gib": peak}
    return {"vocabulary": vocab, "tokens": tokens, **found}


if __name__ == "__main__":
    main()
