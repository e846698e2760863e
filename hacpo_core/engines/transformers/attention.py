"""Attention over rows that lie in one sequence and share their prompts, inside transformers' own model classes.

Everything else in a layer treats token by token and needs to know nothing of rows. Attention copies each row's queries,
keys and values side by side, as padded rows have them, attends causally, and copies back what each token stands for.

Shapes: B sequence, R row, L place in a row, T token of a sequence, Q query, G query head of a key head, H head, K head
width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hacpo_core.engines.cpu.attention import SHORT, causal_by_products, pays_by_products
from hacpo_core.engines.layouts import RowPlaces
from hacpo_core.engines.logprobs import widened

NAME = "sdpa_of_rows"
_ROTATIONS = ("default", "linear", "llama3")  # others depend on how long a sequence is


def attend(
    module: nn.Module,
    query_BHTK: Tensor,
    key_BHTK: Tensor,
    value_BHTK: Tensor,
    attention_mask: Tensor | None,
    rows: RowPlaces | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What sdpa attention makes of sequences, or of the rows in one (B = 1); called by transformers' layers."""
    if rows is None:
        return sdpa_attention_forward(module, query_BHTK, key_BHTK, value_BHTK, attention_mask, **options)
    if attention_mask is not None and attention_mask.numel() != 1:
        raise TypeError("a mask of the model's own, which says nothing of rows")
    query, key, value = (
        _Spread.apply(part[0].transpose(0, 1), rows, is_query).transpose(1, 2)  # type: ignore[no-untyped-call]
        for part, is_query in ((query_BHTK, True), (key_BHTK, False), (value_BHTK, False))
    )
    if pays_by_products(query) and query.shape[2] <= SHORT and not options.get("dropout"):
        attended_RLHK = causal_by_products(query, key, value, options.get("scaling"))
    else:
        attended_RLHK, _ = sdpa_attention_forward(module, query, key, value, None, **options)
    attended_THK: Tensor = _Collect.apply(attended_RLHK.flatten(0, 1), rows, query_BHTK.shape[2])  # type: ignore[no-untyped-call]
    return attended_THK[None], None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def is_plain(config: PreTrainedConfig) -> bool:
    """Whether layers attend to everything before a token, and rotate it by its place alone."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        return False
    return all(rotation.get("rope_type", "default") in _ROTATIONS for rotation in rotations(config))


def rotations(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Parameters of a model's rotary embeddings: one for all layers, or one for each kind of them; none without."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    of_kinds = [value for value in parameters.values() if isinstance(value, dict)]
    return of_kinds or ([parameters] if parameters else [])


def let_rows_share(model: PreTrainedModel) -> bool:
    """Have a model with sdpa attention run `attend` from now on, which changes nothing but for passes with `rows`.

    Returns:
        False for another attention, which stays, and for one that is not plain.
    """
    if not is_plain(model.config.get_text_config()):
        return False
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)


class _Spread(torch.autograd.Function):
    """THK -> RLHK: each row's tokens side by side, prompts once for each of their rows."""

    @staticmethod
    def forward(ctx: Any, part_THK: Tensor, rows: RowPlaces, is_query: bool) -> Tensor:
        ctx.rows, ctx.is_query, ctx.num_tokens = rows, is_query, len(part_THK)
        spread: Tensor = part_THK.index_select(0, rows.token_RL.flatten())
        return spread.view(*rows.token_RL.shape, *part_THK.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows, grad = ctx.rows, grads[0].flatten(0, 1)
        grad_THK = _picked(grad, rows.home_T, ctx.num_tokens)
        if ctx.is_query:  # nothing is made of what a prompt's copies ask for
            return grad_THK, None, None
        # In fp32: a GPU adds in the dtype that it is given, and a sum over many rows in bf16 would lose small terms.
        summed_THK = widened(grad_THK).index_add_(0, rows.original_C, widened(grad.index_select(0, rows.copy_C)))
        return summed_THK.to(grad.dtype), None, None


class _Collect(torch.autograd.Function):
    """(RL)HK -> THK: of each token, what stands at its home."""

    @staticmethod
    def forward(ctx: Any, attended: Tensor, rows: RowPlaces, num_tokens: int) -> Tensor:
        ctx.rows, ctx.shape = rows, attended.shape
        return _picked(attended, rows.home_T, num_tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        home_T = ctx.rows.home_T
        grad_THK = grads[0][: len(home_T)]
        return grad_THK.new_zeros(ctx.shape).index_copy_(0, home_T, grad_THK), None, None


def _picked(places: Tensor, home_T: Tensor, num_tokens: int) -> Tensor:
    """Of each token what stands at its place, then zeros for the tokens that stand for nothing."""
    picked = places.new_empty(num_tokens, *places.shape[1:])
    torch.index_select(places, 0, home_T, out=picked[: len(home_T)])
    picked[len(home_T) :] = 0
    return picked
