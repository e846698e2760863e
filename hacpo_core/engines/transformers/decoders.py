"""The model's part of sampling with a cache: prompts in, then one token per row at a time, logits out.

    start: prompts ─▶ logits behind each     extend: a token per row ─▶ logits behind it     keep: some rows go on

`ModelDecoder` calls the model's own class, whatever it is. For every new token that class builds a mask, passes hooks
and copies its whole cache, which costs more than the arithmetic of a small model; `LlamaDecoder` computes the same for
models of Llama's and Qwen3's kind from their weights, with a cache that grows in place.

Shapes: U distinct prompt, B sequence (row of the cache), T token, H key head, Q query head of a key head, K head width,
D model width, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from hacpo_core.engines.cpu.products import FrozenLinear, OneDnnLinear, pays
from hacpo_core.engines.logprobs import widened
from hacpo_core.engines.transformers.attention import by_products, is_plain, pays_by_products
from hacpo_core.errors import ModelError, first_line

_log = logging.getLogger(__name__)
GROW_TOKENS = 64
"""least growth of a cache, in tokens of every row"""
LARGEST_COPY = 2**18
"""weights that are copied next to each other for one product in place of several: less calls, but memory"""
LARGEST_PACKED = 2**28
"""weights of a model up to which all are copied into the order that oneDNN multiplies in, where it multiplies"""
FAMILIES = ("llama", "qwen3")
_TRIAL_PROMPTS = ((3, 5, 7), (2, 11, 13, 1, 4))
_TRIAL_ROWS = ((1, (5, 8, 4)), (0, (6, 2)), (1, (7, 9, 1)))
"""prompt and further tokens of each row by which decoders are tried"""
_REMEDY = "set engine.sampler=vllm"


class Decoder(Protocol):
    """One batch of responses under way, from weights that do not change; several batches, one after the other."""

    def start(self, input_UT: Tensor, mask_UT: Tensor, prompt_B: Tensor, *, max_tokens: int) -> Tensor:
        """Forget the last batch, encode each prompt once, and give every row its copy of the cache.

        Args:
            input_UT: prompts, padded on the left.
            mask_UT: 1 where there is no padding.
            prompt_B: the prompt of each row.
            max_tokens: most tokens that rows will be extended by.

        Returns:
            logits_BV behind the prompts.
        """

    def extend(self, token_B: Tensor) -> Tensor:
        """logits_BV behind one more token of every row."""

    def keep(self, row_B: Tensor) -> None:
        """Go on with these rows alone, in this order (ascending)."""


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

    if _is_llama_like(model):
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


class ModelDecoder:
    """Decoding through the model's own class."""

    def __init__(self, model: PreTrainedModel, *, has_wide_head: bool = False) -> None:
        self._model = model
        self._wide_head = _linear(model.get_output_embeddings(), is_wide=True) if has_wide_head else None
        self._cache: Any = None

    def start(self, input_UT: Tensor, mask_UT: Tensor, prompt_B: Tensor, *, max_tokens: int) -> Tensor:
        """See `Decoder`."""
        self._cache = DynamicCache(config=self._model.config)
        logits_UV = self._logits(
            input_ids=input_UT,
            attention_mask=mask_UT,
            position_ids=(mask_UT.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=self._cache,
        )
        self._cache.batch_select_indices(prompt_B)
        self._mask_BT = mask_UT[prompt_B]
        return logits_UV[prompt_B]

    def extend(self, token_B: Tensor) -> Tensor:
        """See `Decoder`."""
        self._mask_BT = torch.cat([self._mask_BT, self._mask_BT.new_ones(len(token_B), 1)], dim=1)
        return self._logits(
            input_ids=token_B[:, None],
            attention_mask=self._mask_BT,
            position_ids=self._mask_BT.sum(dim=1, keepdim=True) - 1,
            past_key_values=self._cache,
        )

    def keep(self, row_B: Tensor) -> None:
        """See `Decoder`."""
        self._cache.batch_select_indices(row_B)
        self._mask_BT = self._mask_BT[row_B]

    def take_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (B, H, T, K) of every layer, which are forgotten here."""
        cache, self._cache = self._cache, None
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _logits(self, **inputs: Any) -> Tensor:
        if self._wide_head is None:
            logits: Tensor = self._model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1]
            return logits
        hidden = self._model.base_model(**inputs, use_cache=True).last_hidden_state[:, -1]
        return self._wide_head(widened(hidden))


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; those that multiply the same input are one matrix where a copy is small or made anyway."""

    norm: Tensor
    qkv: tuple[FrozenLinear, ...]
    head_norm: Tensor | None
    """of query and key heads, (heads, K)"""
    out: FrozenLinear
    mlp_norm: Tensor
    gate_up: tuple[FrozenLinear, ...]
    down: FrozenLinear


class LlamaDecoder:
    """Decoding from the weights of a model of Llama's or Qwen3's kind; prompts go through the model's own class."""

    def __init__(self, model: PreTrainedModel, *, has_wide_head: bool = False) -> None:
        self._prompts = ModelDecoder(model, has_wide_head=has_wide_head)
        base: Any = model.base_model
        config, head = model.config, model.get_output_embeddings()
        packs = sum(parameter.numel() for parameter in model.parameters()) <= LARGEST_PACKED
        self._base = base
        self._num_query, self._num_key = config.num_attention_heads, config.num_key_value_heads
        self._width = base.layers[0].self_attn.head_dim
        self._epsilon = config.rms_norm_eps
        self._head = _linear(head, packs=packs, is_wide=has_wide_head)
        self._has_wide_head = has_wide_head
        self._layers = [_layer(layer, self._num_query, self._num_key, packs=packs) for layer in base.layers]
        self._composes = pays_by_products(head.weight)
        """whether torch has no kernel of its own here that is as good as several plain calls"""
        self._attend = by_products if self._composes else functional.scaled_dot_product_attention
        self._cache: list[Tensor] = []
        """keys and values of each layer, one behind the other: (2, B, H, T, K)"""

    def start(self, input_UT: Tensor, mask_UT: Tensor, prompt_B: Tensor, *, max_tokens: int) -> Tensor:
        """See `Decoder`."""
        self._cache = []
        logits_BV = self._prompts.start(input_UT, mask_UT, torch.arange(len(input_UT)), max_tokens=0)[prompt_B]
        self._length, self._limit = input_UT.shape[1], input_UT.shape[1] + max_tokens
        room = self._room(self._length)
        self._cache = [_grown(torch.stack(layer)[:, prompt_B], room) for layer in self._prompts.take_layers()]
        longest = mask_UT.sum(dim=1)
        self._position_B = longest[prompt_B]
        table = torch.arange(int(longest.max()) + max_tokens, device=input_UT.device)[None]
        cosine_1TK, sine_1TK = self._base.rotary_emb(logits_BV.new_empty(0, dtype=self._cache[0].dtype), table)
        half = self._width // 2
        self._cosine_TK = cosine_1TK[0]
        self._sine_TK = torch.cat([-sine_1TK[0, :, :half], sine_1TK[0, :, half:]], dim=1)
        self._hidden_B11T: Tensor | None = None
        if bool((mask_UT == 0).any()):
            blank = torch.zeros(len(prompt_B), self._limit, dtype=self._cache[0].dtype, device=input_UT.device)
            blank[:, : self._length].masked_fill_(mask_UT[prompt_B] == 0, -torch.inf)
            self._hidden_B11T = blank[:, None, None]
        return logits_BV

    def extend(self, token_B: Tensor) -> Tensor:
        """See `Decoder`."""
        here, self._length = self._length, self._length + 1
        if self._length > self._cache[0].shape[3]:
            room = self._room(self._length)
            for number, buffer in enumerate(self._cache):
                self._cache[number] = _grown(buffer, room)
        rows, num_heads = len(token_B), self._num_query + self._num_key
        cosine_B1K, sine_B1K = self._cosine_TK[self._position_B, None], self._sine_TK[self._position_B, None]
        self._position_B = self._position_B + 1
        mask = None if self._hidden_B11T is None else self._hidden_B11T[:, :, :, : self._length]
        stream_BD = functional.embedding(token_B, self._base.embed_tokens.weight)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            normed_BD = self._norm(stream_BD, layer.norm)
            heads = _product(normed_BD, layer.qkv).view(rows, num_heads + self._num_key, self._width)
            turned = heads[:, :num_heads]
            if layer.head_norm is not None:
                turned = self._norm(turned, None) * layer.head_norm
            swapped = turned.roll(self._width // 2, dims=-1)
            torch.addcmul(turned * cosine_B1K, swapped, sine_B1K, out=heads[:, :num_heads])
            cache[:, :, :, here] = heads[:, self._num_query :].unflatten(1, (2, self._num_key)).transpose(0, 1)
            key_BHTK, value_BHTK = cache[:, :, :, : self._length]
            # Query heads that share a key head stand where tokens stand in a prompt: no key is copied for each.
            attended = self._attend(
                heads[:, : self._num_query].reshape(rows, self._num_key, -1, self._width),
                key_BHTK,
                value_BHTK,
                mask,
            )
            stream_BD = stream_BD + layer.out(attended.reshape(rows, -1))
            gate, up = _products(self._norm(stream_BD, layer.mlp_norm), layer.gate_up, 2)
            stream_BD = stream_BD + layer.down(functional.silu(gate) * up)
        last_BD = self._norm(stream_BD, self._base.norm.weight)
        return self._head(widened(last_BD) if self._has_wide_head else last_BD)

    def keep(self, row_B: Tensor) -> None:
        """See `Decoder`."""
        for number, buffer in enumerate(self._cache):
            kept = buffer[:, : len(row_B)]  # in place: rows move up, and what is behind them is left unused
            kept[:, :, :, : self._length] = buffer[:, row_B, :, : self._length]
            self._cache[number] = kept
        self._position_B = self._position_B[row_B]
        if self._hidden_B11T is not None:
            self._hidden_B11T = self._hidden_B11T[row_B]

    def _norm(self, value: Tensor, weight: Tensor | None) -> Tensor:
        if not self._composes:
            return functional.rms_norm(value, value.shape[-1:], weight, self._epsilon)
        # The same as torch composes it on the CPU, but for the one pass over the values that finds their length.
        length = torch.linalg.vector_norm(value, dim=-1, keepdim=True)
        normed: Tensor = value * length.square_().div_(value.shape[-1]).add_(self._epsilon).rsqrt_()
        if weight is not None:
            normed.mul_(weight)
        return normed

    def _room(self, length: int) -> int:
        return min(self._limit, length + max(GROW_TOKENS, length // 2))


def _is_llama_like(model: PreTrainedModel) -> bool:
    config: Any = model.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu" or not is_plain(config):
        return False
    # An adapter, for one, is another class, and would be left out.
    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    names = [*attention, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    layers: Any = model.base_model.layers
    linears = [model.get_output_embeddings(), *(layer.get_submodule(name) for layer in layers for name in names)]
    return all(type(linear) in (nn.Linear, OneDnnLinear) for linear in linears)


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


def _layer(layer: Any, num_query: int, num_key: int, *, packs: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    head_norm = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight, attention.k_norm.weight
        head_norm = torch.cat([query.expand(num_query, -1), key.expand(num_key, -1)])
    return _Layer(
        norm=layer.input_layernorm.weight,
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj, packs=packs),
        head_norm=head_norm,
        out=_linear(attention.o_proj, packs=packs),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=_joined(mlp.gate_proj, mlp.up_proj, packs=packs),
        down=_linear(mlp.down_proj, packs=packs),
    )


def _joined(*modules: Any, packs: bool) -> tuple[FrozenLinear, ...]:
    weights = [module.weight for module in modules]
    biases = [module.bias for module in modules if module.bias is not None]
    if sum(weight.numel() for weight in weights) > LARGEST_COPY and not (packs and pays(weights[0])):
        return tuple(_linear(module) for module in modules)
    return (FrozenLinear(torch.cat(weights), torch.cat(biases) if biases else None, packs),)


def _linear(module: Any, *, packs: bool = False, is_wide: bool = False) -> FrozenLinear:
    weight, bias = module.weight, module.bias
    if is_wide:
        weight, bias = widened(weight), None if bias is None else widened(bias)
    return FrozenLinear(weight, bias, packs)


def _product(value: Tensor, parts: Sequence[FrozenLinear]) -> Tensor:
    """What layers make of the same value, side by side in one tensor."""
    if len(parts) == 1:
        return parts[0](value)
    return torch.cat([part(value) for part in parts], dim=-1)


def _products(value: Tensor, parts: Sequence[FrozenLinear], number: int) -> Sequence[Tensor]:
    """The same of `number` layers of one width, a tensor each: nothing is copied to lie side by side."""
    if len(parts) == 1:
        return parts[0](value).chunk(number, dim=-1)
    return [part(value) for part in parts]


def _grown(buffer: Tensor, room: int) -> Tensor:
    *outer, length, width = buffer.shape
    grown = buffer.new_empty(*outer, room, width)
    grown[..., :length, :] = buffer
    return grown
