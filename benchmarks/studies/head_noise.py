"""Noise of bf16 ratios relative to GSPO's clip range, with the head's product in bf16 and in fp32.

The same weights score the same rows in micro-batches of two shapes, so every ratio should be 1. The models are random
Qwen3 models whose final norm is scaled so that logits have a standard deviation of 4, like those of trained models.

Usage: python -m benchmarks.studies.head_noise [--device cpu]; writes benchmarks/results/head_noise.json.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.measure import write_result
from hacpo_core.columns import TokenRows
from hacpo_core.engines.layouts import forward_passes
from hacpo_core.engines.scoring import ScoringHead, row_layout, scoring_head

LOW, HIGH = 3e-4, 4e-4  # GSPO's clip
SPREAD = 4.0
MODELS = {"tiny": (96, 3, 40), "3M": (192, 6, 2048), "12M": (256, 6, 32000)}
RESPONSES = {"tiny pair": (14, 30), "longer": (100, 400)}
OTHERS = (("padded", 400), ("shared_prompts", 4096))


def model_of(hidden: int, layers: int, vocabulary: int) -> PreTrainedModel:
    """A random fp32 model with logits of standard deviation SPREAD."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        tie_word_embeddings=True,
    )
    model: PreTrainedModel = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        spread = model(torch.arange(30)[None]).logits.std()
        model.base_model.norm.weight.mul_(SPREAD / spread)  # type: ignore[union-attr,operator]
    return model


def rows_of(vocabulary: int, response: tuple[int, int]) -> TokenRows:
    """16 problems with 16 responses each."""
    random = np.random.default_rng(0)

    def ids(size: int) -> tuple[int, ...]:
        return tuple(random.integers(1, vocabulary, size=size).tolist())

    prompts = [ids(12) for _ in range(16)]
    repeated = [prompt for prompt in prompts for _ in range(16)]
    return TokenRows.of(repeated, [ids(int(random.integers(*response))) for _ in repeated])


@torch.no_grad()
def mean_logprobs(head: ScoringHead, rows: TokenRows, layout: str, max_tokens: int) -> Tensor:
    """Mean log-probability of each row's response, nats; accumulated in float64."""
    mean_B = torch.zeros(len(rows), dtype=torch.float64)
    for forward in forward_passes(rows, layout=layout, max_tokens=max_tokens):
        logprob_N = head.scores(forward.to(head.model.device), temperature=1.0, chunk_mb=64).logprob_N.double().cpu()
        pieces = logprob_N.split(rows.responses.lengths[list(forward.rows)].tolist())
        for row, piece in zip(forward.rows, pieces, strict=True):
            mean_B[row] = piece.mean()
    return mean_B


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for name, sizes in MODELS.items():
        exact = model_of(*sizes).to(device)
        model = model_of(*sizes).to(device, torch.bfloat16)
        for kind, response in RESPONSES.items():
            rows = rows_of(sizes[2], response)
            exact_B = mean_logprobs(scoring_head(exact), rows, "padded", 4096)
            for is_wide in (False, True):
                head = scoring_head(model, is_wide=is_wide)
                assert row_layout(head, "shared_prompts") == "shared_prompts"
                reference_B = mean_logprobs(head, rows, "padded", 4096)
                for layout, max_tokens in OTHERS:
                    log_ratio_B = mean_logprobs(head, rows, layout, max_tokens) - reference_B
                    ratio_B = log_ratio_B.exp()
                    is_clipped_B = (ratio_B < 1 - LOW) | (ratio_B > 1 + HIGH)
                    results.append(
                        {
                            "model": name,
                            "rows": kind,
                            "head_dtype": "float32" if is_wide else "same",
                            "against": f"{layout}, {max_tokens} tokens",
                            "log_ratio_rms": float(f"{log_ratio_B.square().mean().sqrt():.3g}"),
                            "clipped_share": round(float(is_clipped_B.double().mean()), 4),
                            "rms_to_fp32_model": float(f"{(reference_B - exact_B).square().mean().sqrt():.3g}"),
                        }
                    )
                    print(json.dumps(results[-1]), flush=True)
    result = {
        "clip": [LOW, HIGH],
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
        "results": results,
    }
    write_result("head_noise", result, ["torch"])


if __name__ == "__main__":
    main()
