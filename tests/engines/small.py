"""Models of a few thousand weights whose next-token distributions are far from uniform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import TinyModelConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.sampling.base import Sampled
from hacpo_core.methods.objective import Objective, RowKind
from hacpo_core.records import RowKey
from hacpo_core.tiny.models import build_model
from hacpo_core.tiny.tokenizers import build_tokenizer

FAMILIES = ("qwen3", "llama", "gpt_neox")
TOKENIZER: PreTrainedTokenizerFast = build_tokenizer("character")
VOCAB_SIZE = len(TOKENIZER)


def small_model(family: str = "qwen3", *, seed: int = 0, num_layers: int = 1, gain: float = 4.0) -> PreTrainedModel:
    """A fresh model with random weights, every matrix `gain` times larger than at initialisation."""
    config = TinyModelConfig(
        family=family, hidden_size=16, num_layers=num_layers, num_heads=2, num_kv_heads=1, seed=seed
    )
    model = build_model(config, TOKENIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
    return model.eval()


def logprobs_of(model: PreTrainedModel, request: Request, *, temperature: float = 1.0) -> torch.Tensor:
    """logprob_TV of the response's positions, one sequence at a time and in float64."""
    ids = torch.tensor([request.prompt_ids + request.response_ids])
    with torch.no_grad():
        logits_TV = model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
    return (logits_TV.double() / temperature).log_softmax(dim=1)


@dataclass(frozen=True)
class Request:
    """A prompt and a response, in tokens."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


@dataclass(frozen=True)
class Response:
    """One response of a sampler, as plain numbers."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True)
class Row:
    """One row of a mini-batch; `index` tells rows apart."""

    source: int
    index: int
    is_own: bool
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    advantage: float
    cross_weight: float
    old_mean_logprob: float
    old_logprobs: tuple[float, ...] | None
    sampler_logprobs: tuple[float, ...] = ()
    teacher_advantages: tuple[float, ...] = ()


def token_rows(rows: Sequence[Request | Row]) -> TokenRows:
    return TokenRows.of([row.prompt_ids for row in rows], [row.response_ids for row in rows])


def scored(learner: BaseLearner, rows: Sequence[Request | Row]) -> list[tuple[float, ...]]:
    """A learner's log-probabilities of each response."""
    return [tuple(found.tolist()) for found in learner.logprobs(token_rows(rows))]


def responses_of(sampled: Sampled) -> list[Response]:
    """What a sampler gave, response by response."""
    return [
        Response(tuple(ids.tolist()), tuple(logprobs.tolist()), "length" if is_cut else "stop")
        for ids, logprobs, is_cut in zip(sampled.token_ids, sampled.logprobs, sampled.is_cut_R, strict=True)
    ]


def minibatch(rows: Sequence[Row], objective: Objective, *, max_tokens: int = 8) -> Minibatch:
    """Rows as columns, with the weights that the objective gives them."""
    tokens, source_B = token_rows(rows), np.array([row.source for row in rows], dtype=np.int64)
    weight_B = objective.row_weights(
        torch.from_numpy(source_B), torch.from_numpy(tokens.responses.lengths), max_tokens=max_tokens
    )
    return Minibatch(
        keys=tuple(RowKey(1, str(row.source), "", row.index) for row in rows),
        tokens=tokens,
        kind_B=np.array([RowKind.OWN if row.is_own else RowKind.FOREIGN for row in rows], dtype=np.int64),
        source_B=source_B,
        advantage_B=np.array([row.advantage for row in rows]),
        weight_B=np.array([row.cross_weight for row in rows]),
        row_weight_B=weight_B.numpy(),
        old_mean_logprob_B=np.array([row.old_mean_logprob for row in rows]),
        old_logprobs=Ragged.of([row.old_logprobs or () for row in rows], np.float32),
        teacher_advantages=Ragged.of([row.teacher_advantages for row in rows], np.float64),
        sampler_logprobs=Ragged.of([row.sampler_logprobs or row.old_logprobs or () for row in rows], np.float32),
        num_own_tokens=sum(len(row.response_ids) for row in rows if row.is_own),
    )


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
        index=index,
        is_own=False,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        advantage=advantage,
        cross_weight=cross_weight,
        old_mean_logprob=old_mean_logprob,
        old_logprobs=None,
    )
