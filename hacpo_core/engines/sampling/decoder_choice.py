"""Choice of the decoder for a model: the fast one if it agrees with the model's own class as well as that with itself.

A model's own class computes slightly other log-probabilities for the same row in another batch, behind other padding,
or without a cache. These differences, the model's *noise*, grow with its depth, its outliers and its dtype. So the fast
decoder is compared with the noise, not with a constant.

Shapes: N row and token of the trial, V vocabulary.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.engines.sampling.decoders import Decoder, ModelDecoder
from hacpo_core.engines.sampling.llama_decoder import LlamaDecoder, why_unsupported
from hacpo_core.errors import ModelError, first_line

_log = logging.getLogger(__name__)
NOISE_FACTOR = 3.0
"""largest difference of the fast decoder, as a multiple of the noise; right ones have 0.2 to 2, wrong ones 4 or more"""
SLOWER = (
    "takes about twice as long on a CPU and 3 to 5 times on a GPU (measured on other models, of 0.1 to 0.5 B weights)"
)
"""574 to 590 against 280 tokens/s of SmolLM2-135M, 64 rows, two threads; rollouts of Qwen2.5-0.5B on an H200"""
_REMEDY = "set engine.sampler=vllm"


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rows to decode: random tokens of the vocabulary."""

    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, tuple[int, ...]], ...]
    """prompt and further tokens of each row; some end earlier than others"""

    def rows_at(self, t: int) -> list[int]:
        """Rows with a token number `t`; for -1, all rows."""
        return [row for row, (_, tokens) in enumerate(self.rows) if t < len(tokens)]

    @property
    def num_tokens(self) -> int:
        """Further tokens of the longest row."""
        return max(len(tokens) for _, tokens in self.rows)


def decoder_of(model: PreTrainedModel, *, has_wide_head: bool = False) -> Callable[[], Decoder]:
    """A factory of decoders: of the fast one if a short trial shows that it computes the same log-probabilities.

        mean |fast - own| <= max(NOISE_FACTOR mean |own - own'|, eps mean |own|),   own, own': two ways of its own class

    Means are over all rows, tokens and words, because a model with outliers may differ by nats in a single token.

    Args:
        model: each decoder reads its weights once; create a new decoder after an update.
        has_wide_head: compute logits in fp32; the head must be linear.

    Raises:
        ModelError: the model cannot be decoded here, for example because its state is not a KV cache.
    """
    name = f"{type(model).__name__} {model.name_or_path}".strip()
    trial, eps = _trial(model.config.get_text_config().vocab_size), torch.finfo(model.dtype).eps

    def general() -> Decoder:
        return ModelDecoder(model, has_wide_head=has_wide_head)

    try:
        references = [_decoded(general(), trial, padding=padding, device=model.device) for padding in (0, 3)]
        references.append(_full_passes(ModelDecoder(model, has_wide_head=has_wide_head), trial, device=model.device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot be sampled token by token ({first_line(error)}); {_REMEDY}") from error
    noise = max(_difference(one, other) for one, other in itertools.combinations(references, 2))
    size = float(references[0].abs().mean())
    if math.isnan(size):
        raise ModelError(
            f"{name}: got nan logits, so its weights contain nan or infinity; save the model again or, if training "
            "diverged, start a new experiment with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    if not noise <= max(1e-3, 2**5 * eps) * size:
        raise ModelError(f"{name}: log-probabilities token by token are off by {noise:.1e} nats on average; {_REMEDY}")

    def fast() -> Decoder:
        return LlamaDecoder(model, has_wide_head=has_wide_head)

    why = why_unsupported(model)
    if why is None:
        difference = _difference(_decoded(fast(), trial, padding=0, device=model.device), references[0])
        tolerance = max(NOISE_FACTOR * noise, eps * size)
        if difference <= tolerance:
            return fast
        why = f"its log-probabilities are off by {difference:.1e} nats on average, expected at most {tolerance:.1e}"
    _log.warning("%s: the fast decoder is not used (%s), so sampling %s", name, why, SLOWER)
    return general


def _trial(vocab_size: int) -> _Trial:
    """Prompts of 2 to 29 tokens and rows of 6 to 11 further ones."""
    random = torch.Generator().manual_seed(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocab_size, (number,), generator=random).tolist())

    prompts = tuple(tokens(number) for number in (13, 2, 29))
    return _Trial(prompts, tuple((prompt, tokens(number)) for prompt, number in ((1, 11), (0, 6), (2, 11), (1, 9))))


@torch.no_grad()
def _decoded(decoder: Decoder, trial: _Trial, *, padding: int, device: torch.device) -> Tensor:
    """logprob_NV of the trial: behind the prompts, and behind each further token.

    Args:
        decoder: to try.
        trial: its rows.
        padding: additional padding of all prompts, in tokens.
        device: of the model.
    """
    longest = max(map(len, trial.prompts)) + padding
    prompt_ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in trial.prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in trial.prompts]
    prompts = [prompt for prompt, _ in trial.rows]
    logits = [
        decoder.start(
            *(torch.tensor(values, device=device) for values in (prompt_ids, mask, prompts)),
            max_tokens=trial.num_tokens,
        )
    ]
    for t in range(trial.num_tokens):
        earlier_rows, rows = trial.rows_at(t - 1), trial.rows_at(t)
        if len(rows) < len(earlier_rows):
            decoder.keep(torch.tensor([earlier_rows.index(row) for row in rows], device=device))
        logits.append(decoder.extend(torch.tensor([trial.rows[row][1][t] for row in rows], device=device)))
    return torch.cat(logits).float().log_softmax(dim=1)


@torch.no_grad()
def _full_passes(decoder: ModelDecoder, trial: _Trial, *, device: torch.device) -> Tensor:
    """The same log-probabilities, from one pass over each row alone without a cache."""
    of_rows = []
    for prompt, tokens in trial.rows:
        ids = torch.tensor([*trial.prompts[prompt], *tokens], device=device)[None]
        of_rows.append(decoder.logits(ids, num_kept=len(tokens) + 1)[0])
    logits = torch.stack([of_rows[row][t] for t in range(trial.num_tokens + 1) for row in trial.rows_at(t - 1)])
    return logits.float().log_softmax(dim=1)


def _difference(one: Tensor, other: Tensor) -> float:
    """Mean difference, nats."""
    return float((one - other).abs().mean())
