"""Choice of the decoder for a model: the fast one if a short trial shows that it computes the same logits.

Shapes: U distinct prompt, B sequence (row of the cache), T token, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.engines.speedups import fast_decoder
from hacpo_core.engines.transformers.decoders import Decoder, ModelDecoder
from hacpo_core.errors import ModelError, first_line

_log = logging.getLogger(__name__)
_TRIAL_PROMPTS = ((3, 5, 7), (2, 11, 13, 1, 4))
_TRIAL_ROWS = ((1, (5, 8, 4)), (0, (6, 2)), (1, (7, 9, 1)))
"""prompt and further tokens of each row of the trial"""
_REMEDY = "set engine.sampler=vllm"


def decoder_of(model: PreTrainedModel, *, has_wide_head: bool = False) -> Callable[[], Decoder]:
    """A factory of decoders: of the fast one if a short trial shows that it computes the same logits.

    Args:
        model: each decoder reads its weights once; create a new decoder after an update.
        has_wide_head: compute logits in fp32; the head must be linear.

    Raises:
        ModelError: the model cannot be decoded here, for example because its state is not a KV cache.
    """
    name = type(model).__name__

    def general() -> Decoder:
        return ModelDecoder(model, has_wide_head=has_wide_head)

    fast = fast_decoder(model, has_wide_head=has_wide_head)
    if fast is not None:
        difference = _difference(_try_out(fast(), model), _try_out(general(), model))
        if difference <= 2**5 * torch.finfo(model.dtype).eps:
            return fast
        _log.warning(
            "%s: logits of the fast decoder are off by %.1e of the largest; using the model's own class",
            *(name, difference),
        )
    try:
        difference = _difference(_try_out(general(), model), _plain_logits(model))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot be sampled token by token ({first_line(error)}); {_REMEDY}") from error
    if math.isnan(difference):
        raise ModelError(
            f"{name}: got nan logits, so its weights contain nan or infinity; save the model again or, if training "
            "diverged, start a new experiment with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    if not difference <= max(1e-3, 2**5 * torch.finfo(model.dtype).eps):
        raise ModelError(f"{name}: logits token by token are off by {difference:.1e} of the largest; {_REMEDY}")
    return general


@torch.no_grad()
def _try_out(decoder: Decoder, model: PreTrainedModel) -> Tensor:
    """Logits of the trial: after the prompts of three rows, after two more tokens of each, and one more of two rows."""
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
    """The same logits, from one full pass over each row without a cache."""
    size, of_rows = model.config.get_text_config().vocab_size, []
    for prompt, tokens in _TRIAL_ROWS:
        ids = torch.tensor([*_TRIAL_PROMPTS[prompt], *tokens], device=model.device)[None] % size
        of_rows.append(model(input_ids=ids, use_cache=False).logits[0, len(_TRIAL_PROMPTS[prompt]) - 1 :])
    return torch.stack([of_rows[row][t] for t in range(4) for row in _rows_at(t - 1)]).float()


def _rows_at(t: int) -> list[int]:
    """Rows of the trial with a token number `t`; for -1, all rows."""
    return [row for row, (_, tokens) in enumerate(_TRIAL_ROWS) if t < len(tokens)]


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())
