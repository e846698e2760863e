"""Which decoder samples from a model: the fast one where a short trial shows that it computes the same.

Shapes: U distinct prompt, B sequence (row of the cache), T token, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.engines.cpu.llama_decoder import LlamaDecoder, is_llama_like
from hacpo_core.engines.cpu.switch import has_speedups
from hacpo_core.engines.transformers.decoders import Decoder, ModelDecoder
from hacpo_core.errors import ModelError, first_line

_log = logging.getLogger(__name__)
_TRIAL_PROMPTS = ((3, 5, 7), (2, 11, 13, 1, 4))
_TRIAL_ROWS = ((1, (5, 8, 4)), (0, (6, 2)), (1, (7, 9, 1)))
"""prompt and further tokens of each row by which decoders are tried"""
_REMEDY = "set engine.sampler=vllm"


def decoder_of(model: PreTrainedModel, *, has_wide_head: bool = False) -> Callable[[], Decoder]:
    """What makes decoders: of the fast kind where a short trial shows that it computes the same.

    Args:
        model: its weights are read anew by each decoder, which must not outlive a change of them.
        has_wide_head: multiply with the output embedding in fp32; the head must be linear.

    Raises:
        ModelError: the model keeps a state that is no cache of keys and values, and cannot be decoded here.
    """
    name = type(model).__name__

    def general() -> Decoder:
        return ModelDecoder(model, has_wide_head=has_wide_head)

    def fast() -> Decoder:
        return LlamaDecoder(model, has_wide_head=has_wide_head)

    if has_speedups() and is_llama_like(model):
        difference = _difference(_try_out(fast(), model), _try_out(general(), model))
        if difference <= 2**5 * torch.finfo(model.dtype).eps:
            return fast
        _log.warning(
            "%s: logits of the fast decoder are off by %.1e of the largest; the model's own class samples",
            *(name, difference),
        )
    try:
        difference = _difference(_try_out(general(), model), _plain_logits(model))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot be sampled from token by token ({first_line(error)}); {_REMEDY}") from error
    if math.isnan(difference):
        raise ModelError(
            f"{name}: logits are no numbers, its weights hold nan or infinity: save the model again, or, where "
            "training spoilt it, start again with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    if not difference <= max(1e-3, 2**5 * torch.finfo(model.dtype).eps):
        raise ModelError(f"{name}: logits token by token are off by {difference:.1e} of the largest; {_REMEDY}")
    return general


@torch.no_grad()
def _try_out(decoder: Decoder, model: PreTrainedModel) -> Tensor:
    """Logits of the trial: behind the prompts of three rows, behind two tokens of each, and one more of two rows."""
    size, device = model.config.get_text_config().vocab_size, model.device
    longest = max(map(len, _TRIAL_PROMPTS))
    padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in _TRIAL_PROMPTS]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in _TRIAL_PROMPTS]
    prompts = [prompt for prompt, _ in _TRIAL_ROWS]
    logits = [
        decoder.start(
            torch.tensor(padded, device=device) % size,
            *(torch.tensor(values, device=device) for values in (mask, prompts)),
            max_tokens=3,
        )
    ]
    for t in range(3):
        rows = _rows_at(t)
        if len(rows) < len(_rows_at(t - 1)):
            decoder.keep(torch.tensor(rows, device=device))
        tokens = [_TRIAL_ROWS[row][1][t] for row in rows]
        logits.append(decoder.extend(torch.tensor(tokens, device=device) % size))
    return torch.cat(logits).float()


@torch.no_grad()
def _plain_logits(model: PreTrainedModel) -> Tensor:
    """The same from each row alone, all of its tokens at once."""
    size, of_rows = model.config.get_text_config().vocab_size, []
    for prompt, tokens in _TRIAL_ROWS:
        ids = torch.tensor([*_TRIAL_PROMPTS[prompt], *tokens], device=model.device)[None] % size
        of_rows.append(model(input_ids=ids, use_cache=False).logits[0, len(_TRIAL_PROMPTS[prompt]) - 1 :])
    return torch.stack([of_rows[row][t] for t in range(4) for row in _rows_at(t - 1)]).float()


def _rows_at(t: int) -> list[int]:
    """Rows of the trial that have a token at this place; all of them have a prompt."""
    return [row for row, (_, tokens) in enumerate(_TRIAL_ROWS) if t < len(tokens)]


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())
