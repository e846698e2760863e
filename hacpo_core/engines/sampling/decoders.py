"""Decoding with a KV cache: prompts in, then one token per row at a time, logits out.

    start: prompts ─▶ next-token logits     extend: a token per row ─▶ next-token logits     keep: drop other rows

Shapes: U distinct prompt, B sequence (row of the cache), T token, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class ModelDecoder:
    """Decodes batches of responses by the model's own class, one batch after another, with fixed weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache: Any = None

    def start(self, input_UT: Tensor, mask_UT: Tensor, prompt_B: Tensor, *, max_tokens: int) -> Tensor:
        """Discard the last batch, encode each prompt once, and give every row a copy of the cache.

        Args:
            input_UT: prompts, padded on the left.
            mask_UT: 1 where there is no padding.
            prompt_B: the prompt of each row.
            max_tokens: largest number of tokens by which rows will be extended.

        Returns:
            logits_BV of the first response token.
        """
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
        """Append one token to every row and return logits_BV of the next token."""
        self._mask_BT = torch.cat([self._mask_BT, self._mask_BT.new_ones(len(token_B), 1)], dim=1)
        return self._logits(
            input_ids=token_B[:, None],
            attention_mask=self._mask_BT,
            position_ids=self._mask_BT.sum(dim=1, keepdim=True) - 1,
            past_key_values=self._cache,
        )

    def keep(self, row_B: Tensor) -> None:
        """Continue with these rows only; indices are ascending."""
        self._cache.batch_select_indices(row_B)
        self._mask_BT = self._mask_BT[row_B]

    def take_layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values (B, H, T, K) of every layer, and drop them here."""
        cache, self._cache = self._cache, None
        return [(layer.keys, layer.values) for layer in cache.layers]

    def logits(self, input_BT: Tensor, *, num_kept: int) -> Tensor:
        """logits_BTV behind the last `num_kept` tokens of whole rows, without a cache."""
        return self._forward(num_kept, input_ids=input_BT, use_cache=False)

    def _logits(self, **inputs: Any) -> Tensor:
        return self._forward(1, **inputs, use_cache=True)[:, -1]

    def _forward(self, num_kept: int, **inputs: Any) -> Tensor:
        logits: Tensor = self._model(**inputs, logits_to_keep=num_kept).logits
        return logits
