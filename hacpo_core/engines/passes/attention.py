"""Attention over rows that are packed into one sequence and share their prompts, in transformers' own model classes.

Everything else in a layer works token by token. Attention copies the queries, keys and values of each row into blocks
of rows of similar length, padded to the longest of the block, attends causally, and copies the result of each token
back.

Shapes: B sequence, R row of a block, L position in a row, P place in all blocks, T token of a sequence, C copy of a
prompt's token, H head, K head width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hacpo_core.engines.passes.layouts import RowPlaces
from hacpo_core.engines.passes.logprobs import widened

NAME = "sdpa_of_rows"
_ROTATIONS = ("default", "linear", "llama3")  # others depend on the sequence length


def attend(
    module: nn.Module,
    query_BHTK: Tensor,
    key_BHTK: Tensor,
    value_BHTK: Tensor,
    attention_mask: Tensor | None,
    rows: RowPlaces | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Sdpa attention over sequences, or over the rows in one sequence (B = 1). Called by transformers' layers."""
    if rows is None:
        return sdpa_attention_forward(module, query_BHTK, key_BHTK, value_BHTK, attention_mask, **options)
    if attention_mask is not None and attention_mask.numel() != 1:
        raise TypeError("the model builds its own attention mask, which ignores rows")
    parts_PHK = [
        _Spread.apply(part[0].transpose(0, 1), rows, is_query)  # type: ignore[no-untyped-call]
        for part, is_query in ((query_BHTK, True), (key_BHTK, False), (value_BHTK, False))
    ]
    attended, start = [], 0
    for num_rows, length in rows.blocks:
        end = start + num_rows * length
        query, key, value = (part[start:end].unflatten(0, (num_rows, length)).transpose(1, 2) for part in parts_PHK)
        attended_RLHK, _ = sdpa_attention_forward(module, query, key, value, None, **options)
        attended.append(attended_RLHK.flatten(0, 1))
        start = end
    attended_PHK = attended[0] if len(attended) == 1 else torch.cat(attended)
    attended_THK: Tensor = _Collect.apply(attended_PHK, rows)  # type: ignore[no-untyped-call]
    return attended_THK[None], None


def is_plain(config: PreTrainedConfig) -> bool:
    """Whether all layers use full causal attention, with rotations that depend only on the position."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        return False
    return has_plain_rotation(config)


def has_plain_rotation(config: PreTrainedConfig) -> bool:
    """Whether a model's rotations depend only on the position."""
    return all(rotation.get("rope_type", "default") in _ROTATIONS for rotation in rotations(config))


def rotations(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Parameters of a model's rotary embeddings: one set for all layers, or one per type of layer; empty if none."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    of_kinds = [value for value in parameters.values() if isinstance(value, dict)]
    return of_kinds or ([parameters] if parameters else [])


def let_rows_share(model: PreTrainedModel) -> bool:
    """Make a model with sdpa attention use `attend`, which differs only in passes with `rows`.

    Returns:
        whether the model now uses `attend`; False for other or not plain attention, which is kept.
    """
    if not is_plain(model.config.get_text_config()):
        return False
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)


class _Spread(torch.autograd.Function):
    """THK -> PHK: copy the tokens of each row, a prompt's tokens into each of its rows."""

    @staticmethod
    def forward(ctx: Any, part_THK: Tensor, rows: RowPlaces, is_query: bool) -> Tensor:
        ctx.rows, ctx.is_query = rows, is_query
        part_PHK: Tensor = part_THK.index_select(0, rows.token_P)
        return part_PHK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows, grad = ctx.rows, grads[0]
        grad_THK = grad.index_select(0, rows.home_T)
        if ctx.is_query:  # the outputs of a prompt's copies are discarded
            return grad_THK, None, None
        # Sum in fp32: a GPU accumulates in the tensor's dtype, and in bf16 a sum over many rows would lose small terms.
        summed_THK = widened(grad_THK).index_add_(0, rows.original_C, widened(grad.index_select(0, rows.copy_C)))
        return summed_THK.to(grad.dtype), None, None


class _Collect(torch.autograd.Function):
    """PHK -> THK: for each token, the value at its home position."""

    @staticmethod
    def forward(ctx: Any, attended: Tensor, rows: RowPlaces) -> Tensor:
        ctx.rows, ctx.shape = rows, attended.shape
        value_THK: Tensor = attended.index_select(0, rows.home_T)
        return value_THK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].new_zeros(ctx.shape).index_copy_(0, ctx.rows.home_T, grads[0]), None
