"""Choice of the decoder for a model: the fast one if it agrees with the model's own class as well as that with itself.

A model's own class computes slightly other log-probabilities for the same row in another batch, behind other padding,
or without a cache. These differences, the model's *noise*, grow with its depth, its outliers and its dtype. So the fast
decoder is compared with the noise, not with a constant.

Shapes: U prompt, B row, T token, N row and token of the trial, V vocabulary.
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.engines.sampling.llama_decoder import LlamaDecoder, why_unsupported
from hacpo_core.errors import ModelError, first_line

_log = logging.getLogger(__name__)
Decoder: TypeAlias = ModelDecoder | LlamaDecoder
NOISE_FACTOR = 3.0
"""largest difference of the fast decoder, as a multiple of the noise; right ones have 0.2 to 2, wrong ones 4 or more"""
SLOWER = (
    "takes about twice as long on a CPU and 3 to 5 times on a GPU (measured on other models, of 0.1 to 0.5 B weights)"
)
"""574 to 590 against 280 tokens/s of SmolLM2-135M, 64 rows, two threads; rollouts of Qwen2.5-0.5B on an H200"""
_REMEDY = "set engine.sampler=vllm"
NUM_TOKENS = 10
"""tokens of each row of the trial"""


def decoder_of(model: PreTrainedModel) -> Callable[[], Decoder]:
    """A factory of decoders: of the fast one if a short trial shows that it computes the same log-probabilities.

        mean |fast - whole| <= max(NOISE_FACTOR mean |own - whole|, eps mean |whole|)

    of the model's own class token by token (own) and in whole rows without a cache. Means are over all rows, tokens and
    words, because a model with outliers may differ by nats in a single token.

    Args:
        model: each decoder reads its weights once; create a new decoder after an update.

    Raises:
        ModelError: the model cannot be decoded here, for example because its state is not a KV cache.
    """
    name = f"{type(model).__name__} {model.name_or_path}".strip()
    general, fast = partial(ModelDecoder, model), partial(LlamaDecoder, model)
    try:
        whole, own = _in_whole_rows(general(), model), _token_by_token(general(), model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot be sampled token by token ({first_line(error)}); {_REMEDY}") from error
    size, noise, eps = float(whole.abs().mean()), _difference(own, whole), torch.finfo(model.dtype).eps
    if math.isnan(size):
        raise ModelError(
            f"{name}: got nan logits, so its weights contain nan or infinity; save the model again or, if training "
            "diverged, start a new experiment with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    if not noise <= max(1e-3, 2**5 * eps) * size:
        raise ModelError(f"{name}: log-probabilities token by token are off by {noise:.1e} nats on average; {_REMEDY}")
    why = why_unsupported(model)
    if why is None:
        difference, tolerance = (
            _difference(_token_by_token(fast(), model), whole),
            max(NOISE_FACTOR * noise, eps * size),
        )
        if difference <= tolerance:
            return fast
        why = f"its log-probabilities are off by {difference:.1e} nats on average, expected at most {tolerance:.1e}"
    _log.warning("%s: the fast decoder is not used (%s), so sampling %s", name, why, SLOWER)
    return general


def _trial(model: PreTrainedModel) -> tuple[list[list[int]], Tensor]:
    """Prompts of 13, 2 and 29 random tokens, and NUM_TOKENS further ones of each, token_BT."""
    size, random = model.config.get_text_config().vocab_size, torch.Generator().manual_seed(0)
    prompts = [torch.randint(size, (length,), generator=random).tolist() for length in (13, 2, 29)]
    return prompts, torch.randint(size, (len(prompts), NUM_TOKENS), generator=random).to(model.device)


@torch.no_grad()
def _token_by_token(decoder: Decoder, model: PreTrainedModel) -> Tensor:
    """logprob_NV behind the prompts, padded, and behind each further token."""
    prompts, token_BT = _trial(model)
    longest = max(map(len, prompts))
    input_UT = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask_UT = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    prompt_B = torch.arange(len(prompts), device=model.device)
    logits = [decoder.start(input_UT, mask_UT, prompt_B, max_tokens=NUM_TOKENS)]
    logits += [decoder.extend(token_B) for token_B in token_BT.T]
    return torch.stack(logits, dim=1).flatten(0, 1).float().log_softmax(dim=1)


@torch.no_grad()
def _in_whole_rows(decoder: ModelDecoder, model: PreTrainedModel) -> Tensor:
    """The same log-probabilities, from one pass over each row alone without a cache."""
    prompts, token_BT = _trial(model)
    rows = [
        torch.tensor([*prompt, *ids], device=model.device)
        for prompt, ids in zip(prompts, token_BT.tolist(), strict=True)
    ]
    logits = torch.cat([decoder.logits(row[None], num_kept=NUM_TOKENS + 1)[0] for row in rows])
    return logits.float().log_softmax(dim=1)


def _difference(one: Tensor, other: Tensor) -> float:
    """Mean difference, nats."""
    return float((one - other).abs().mean())
