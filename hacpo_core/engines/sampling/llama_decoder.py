"""Decoding with the weights of a Llama, Mistral, Qwen2 or Qwen3 model and a KV cache that grows in place.

For every new token, the model's own class builds a mask, runs hooks and copies its whole KV cache. This costs more than
the arithmetic of a small model. `LlamaDecoder` computes the same without it.

Shapes: U distinct prompt, B sequence (row of the cache), T token, H key head, K head width, D model width,
V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from hacpo_core.engines.passes.attention import has_plain_rotation
from hacpo_core.engines.sampling.decoders import ModelDecoder

GROW_TOKENS = 64
"""smallest growth of a cache, in tokens per row"""
PART_TOKENS = 4096
"""largest number of prompt tokens that are encoded in one pass, padding included"""


FAMILIES = {"llama": False, "mistral": False, "qwen2": False, "qwen3": True}
"""whether query and key heads are normalised before they are rotated; biases are read from the weights"""
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class _Linear:
    """Weights of a linear layer."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, value: Tensor) -> Tensor:
        return functional.linear(value, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer."""

    norm: Tensor
    qkv: tuple[_Linear, ...]
    head_norm: Tensor | None
    """norm weights of query and key heads, (heads, K)"""
    out: _Linear
    mlp_norm: Tensor
    gate: _Linear
    up: _Linear
    down: _Linear


class LlamaDecoder:
    """Decoder with the weights of a model of FAMILIES. The model's own class processes the prompts."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._prompts = ModelDecoder(model)
        base: Any = model.base_model
        config = model.config
        self._base = base
        self._num_query, self._num_key = config.num_attention_heads, config.num_key_value_heads
        self._width = base.layers[0].self_attn.head_dim
        self._epsilon = config.rms_norm_eps
        self._head = _linear(model.get_output_embeddings())
        self._layers = [_layer(layer, self._num_query, self._num_key) for layer in base.layers]
        self._cache: list[Tensor] = []
        """stacked keys and values of each layer: (2, B, H, T, K)"""

    def start(self, input_UT: Tensor, mask_UT: Tensor, prompt_B: Tensor, *, max_tokens: int) -> Tensor:
        """As `ModelDecoder`."""
        self._cache = []
        self._length, self._limit = input_UT.shape[1], input_UT.shape[1] + max_tokens
        longest = mask_UT.sum(dim=1)
        logits_BV, layers = self._encoded(input_UT, mask_UT, longest.tolist())
        logits_BV = logits_BV[prompt_B]
        room = self._room(self._length)
        while layers:
            self._cache.append(_grown(layers.pop(0)[:, prompt_B], room))
        self._position_B = longest[prompt_B]
        table = torch.arange(int(longest.max()) + max_tokens, device=input_UT.device)[None]
        cosine_1TK, sine_1TK = self._base.rotary_emb(logits_BV.new_empty(0, dtype=self._cache[0].dtype), table)
        half = self._width // 2
        self._cosine_TK = cosine_1TK[0]
        self._sine_TK = torch.cat([-sine_1TK[0, :, :half], sine_1TK[0, :, half:]], dim=1)
        self._padding_mask_B11T: Tensor | None = None
        if bool((mask_UT == 0).any()):
            padding_mask_BT = torch.zeros(
                len(prompt_B), self._limit, dtype=self._cache[0].dtype, device=input_UT.device
            )
            padding_mask_BT[:, : self._length].masked_fill_(mask_UT[prompt_B] == 0, -torch.inf)
            self._padding_mask_B11T = padding_mask_BT[:, None, None]
        return logits_BV

    def _encoded(self, input_UT: Tensor, mask_UT: Tensor, lengths: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """logits_UV behind the prompts, and stacked keys and values of each layer; zeros where there is padding.

        Prompts are encoded in parts of similar length, each with its own padding: evaluations have as many as rows.
        """
        logits, layers = [], []
        for part in prompt_parts(lengths):
            width = max(lengths[part])
            ids, mask = input_UT[part, -width:], mask_UT[part, -width:]
            logits.append(self._prompts.start(ids, mask, torch.arange(len(ids), device=ids.device), max_tokens=0))
            padded_layers = [torch.stack(layer) for layer in self._prompts.take_layers()]
            layers.append([functional.pad(layer, (0, 0, self._length - layer.shape[3], 0)) for layer in padded_layers])
        return torch.cat(logits), [torch.cat(parts, dim=1) for parts in zip(*layers, strict=True)]

    def extend(self, token_B: Tensor) -> Tensor:
        """As `ModelDecoder`."""
        here, self._length = self._length, self._length + 1
        if self._length > self._cache[0].shape[3]:
            room = self._room(self._length)
            for number, buffer in enumerate(self._cache):
                self._cache[number] = _grown(buffer, room)
        rows, num_heads = len(token_B), self._num_query + self._num_key
        cosine_B1K, sine_B1K = self._cosine_TK[self._position_B, None], self._sine_TK[self._position_B, None]
        self._position_B = self._position_B + 1
        stream_BD = functional.embedding(token_B, self._base.embed_tokens.weight)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            normed_BD = self._norm(stream_BD, layer.norm)
            heads = torch.cat([part(normed_BD) for part in layer.qkv], dim=1).view(rows, -1, self._width)
            rotated = heads[:, :num_heads]
            if layer.head_norm is not None:
                rotated = self._norm(rotated, None) * layer.head_norm
            swapped = rotated.roll(self._width // 2, dims=-1)
            torch.addcmul(rotated * cosine_B1K, swapped, sine_B1K, out=heads[:, :num_heads])
            cache[:, :, :, here] = heads[:, self._num_query :].unflatten(1, (2, self._num_key)).transpose(0, 1)
            key_BHTK, value_BHTK = cache[:, :, :, : self._length]
            # Query heads of one key head go into the query dimension, so that keys need not be copied for each.
            attended = functional.scaled_dot_product_attention(
                heads[:, : self._num_query].reshape(rows, self._num_key, -1, self._width),
                key_BHTK,
                value_BHTK,
                None if self._padding_mask_B11T is None else self._padding_mask_B11T[..., : self._length],
            )
            stream_BD = stream_BD + layer.out(attended.reshape(rows, -1))
            normed_BD = self._norm(stream_BD, layer.mlp_norm)
            stream_BD = stream_BD + layer.down(functional.silu(layer.gate(normed_BD)) * layer.up(normed_BD))
        return self._head(self._norm(stream_BD, self._base.norm.weight))

    def keep(self, row_B: Tensor) -> None:
        """As `ModelDecoder`."""
        for number, buffer in enumerate(self._cache):
            row_buffer = buffer[:, : len(row_B)]  # in place: kept rows move to the front, the rest stays unused
            row_buffer[:, :, :, : self._length] = buffer[:, row_B, :, : self._length]
            self._cache[number] = row_buffer
        self._position_B = self._position_B[row_B]
        if self._padding_mask_B11T is not None:
            self._padding_mask_B11T = self._padding_mask_B11T[row_B]

    def _norm(self, value: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(value, value.shape[-1:], weight, self._epsilon)

    def _room(self, length: int) -> int:
        return min(self._limit, length + max(GROW_TOKENS, length // 2))


def why_unsupported(model: PreTrainedModel) -> str | None:
    """Why `LlamaDecoder` does not support a model's architecture; None if it does."""
    config: Any = model.config
    if config.model_type not in FAMILIES:
        return f"there is one for {', '.join(FAMILIES)}, not for {config.model_type}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if not has_plain_rotation(config):
        return "its rotations depend on the length of a row"
    has_window = getattr(config, "sliding_window", None) is not None
    kinds_of_layers = set(getattr(config, "layer_types", None) or [_SLIDING if has_window else _FULL])
    if kinds_of_layers != {_FULL}:
        return f"its layers are {', '.join(sorted(kinds_of_layers))}"
    layers: Any = model.base_model.layers
    if any(hasattr(layer.self_attn, "q_norm") != FAMILIES[config.model_type] for layer in layers):
        return f"its attention is not that of {config.model_type}"
    # Other classes, such as adapters, compute more than the product with their weight.
    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    names = [*attention, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    linears = [model.get_output_embeddings(), *(layer.get_submodule(name) for layer in layers for name in names)]
    kinds = {type(linear).__name__ for linear in linears if type(linear) is not nn.Linear}
    return f"its linear layers are {', '.join(sorted(kinds))}" if kinds else None


def _layer(layer: Any, num_query: int, num_key: int) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    head_norm = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight, attention.k_norm.weight
        head_norm = torch.cat([query.expand(num_query, -1), key.expand(num_key, -1)])
    return _Layer(
        norm=layer.input_layernorm.weight,
        qkv=tuple(_linear(getattr(attention, f"{name}_proj")) for name in "qkv"),
        head_norm=head_norm,
        out=_linear(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
    )


def _linear(module: Any) -> _Linear:
    return _Linear(module.weight, module.bias)


def _grown(buffer: Tensor, room: int) -> Tensor:
    *outer, length, width = buffer.shape
    larger_buffer = buffer.new_empty(*outer, room, width)
    larger_buffer[..., :length, :] = buffer
    return larger_buffer


def prompt_parts(lengths: Sequence[int]) -> Iterator[slice]:
    """Consecutive prompts that are encoded together: PART_TOKENS tokens at most, padding included, or one prompt."""
    start = 0
    while start < len(lengths):
        end, width = start + 1, lengths[start]
        while end < len(lengths) and (end + 1 - start) * max(width, lengths[end]) <= PART_TOKENS:
            width = max(width, lengths[end])
            end += 1
        yield slice(start, end)
        start = end
