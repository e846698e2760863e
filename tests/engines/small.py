"""Models of a few thousand weights whose next-token distributions are far from uniform."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hacpo_core.batches import Row
from hacpo_core.config import TinyModelConfig, WarmupConfig
from hacpo_core.engines.base import ScoreRequest
from hacpo_core.tiny.models import build_model
from hacpo_core.tiny.tokenizers import build_tokenizer

FAMILIES = ("qwen3", "llama", "gpt_neox")
TOKENIZER: PreTrainedTokenizerFast = build_tokenizer("character")
VOCAB_SIZE = len(TOKENIZER)


def small_model(family: str = "qwen3", *, seed: int = 0, num_layers: int = 1, gain: float = 4.0) -> PreTrainedModel:
    """A fresh model with random weights, every matrix `gain` times larger than at initialisation."""
    config = TinyModelConfig(
        family=family,
        hidden_size=16,
        num_layers=num_layers,
        num_heads=2,
        num_kv_heads=1,
        warmup=WarmupConfig(seed=seed),
    )
    model = build_model(config, TOKENIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
    return model.eval()


def logprobs_of(model: PreTrainedModel, request: ScoreRequest, *, temperature: float = 1.0) -> torch.Tensor:
    """logprob_TV of the response's positions, one sequence at a time and in float64."""
    ids = torch.tensor([request.prompt_ids + request.response_ids])
    with torch.no_grad():
        logits_TV = model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
    return (logits_TV.double() / temperature).log_softmax(dim=1)


def own_row(
    prompt_ids: tuple[int, ...],
    response_ids: tuple[int, ...],
    advantage: float,
    *,
    old_logprobs: tuple[float, ...],
    index: int = 0,
) -> Row:
    return Row(
        source=0,
        problem=0,
        index=index,
        is_own=True,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        advantage=advantage,
        cross_weight=1.0,
        old_mean_logprob=sum(old_logprobs) / len(old_logprobs),
        old_logprobs=old_logprobs,
    )


def cross_row(
    prompt_ids: tuple[int, ...],
    response_ids: tuple[int, ...],
    advantage: float,
    *,
    old_mean_logprob: float,
    cross_weight: float = 1.0,
    source: int = 1,
    index: int = 0,
) -> Row:
    return Row(
        source=source,
        problem=0,
        index=index,
        is_own=False,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        advantage=advantage,
        cross_weight=cross_weight,
        old_mean_logprob=old_mean_logprob,
        old_logprobs=None,
    )
