"""Log-probabilities of rows from a model's last hidden states, and the layout in which rows are passed through it.

Shapes: B sequence, T token, N token (of all rows, padding left out), D model width, V vocabulary.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hacpo_core.columns import TokenRows
from hacpo_core.engines.passes.attention import let_rows_share
from hacpo_core.engines.passes.layouts import ForwardPass, forward_passes
from hacpo_core.engines.passes.logprobs import TokenScores, scores_of_logits, token_scores, widened
from hacpo_core.engines.ranks import all_ranks
from hacpo_core.errors import EngineError, first_line

_log = logging.getLogger(__name__)
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""configuration fields that cap the logits: Gemma's, RecurrentGemma's, xLSTM's"""


class Head(Protocol):
    """Computes log-probabilities of tokens; see `ScoringHead.scores`."""

    def scores(
        self, forward: ForwardPass, *, temperature: float, chunk_mb: int, has_entropy_gradient: bool = False
    ) -> TokenScores:
        """Scores of a pass's targets, in their order."""


@dataclass(frozen=True, slots=True)
class ScoringHead:
    """Computes log-probabilities from a model's last hidden states.

    `is_linear` is True if the model's logits are just its output embedding applied to its last hidden states. Other
    models (soft-capped or scaled logits) are scored from their full logits. `is_compiled`: see `token_scores`.
    """

    model: PreTrainedModel
    is_linear: bool
    is_compiled: bool = False

    def scores(
        self, forward: ForwardPass, *, temperature: float, chunk_mb: int, has_entropy_gradient: bool = False
    ) -> TokenScores:
        """Scores of a pass's targets, in their order.

        Args:
            forward: rows as tensors on the model's device.
            temperature: > 0.
            chunk_mb: see `token_scores`.
            has_entropy_gradient: see `token_scores`.
        """
        if not self.is_linear:
            return scores_of_logits(
                self._full_logits(forward),
                forward.target_N,
                temperature=temperature,
                has_entropy_gradient=has_entropy_gradient,
            )
        hidden_ND = self._hidden(forward)
        head: Any = self.model.get_output_embeddings()
        bias_V = getattr(head, "bias", None)
        return token_scores(
            hidden_ND,
            head.weight,
            bias_V,
            forward.target_N,
            temperature=temperature,
            chunk_mb=chunk_mb,
            has_entropy_gradient=has_entropy_gradient,
            is_compiled=self.is_compiled,
        )

    def logits(self, forward: ForwardPass) -> Tensor:
        """Logits_NV at a pass's targets, with gradient, in fp32: all of them at once, unlike `scores`."""
        if not self.is_linear:
            return widened(self._full_logits(forward))
        head: Any = self.model.get_output_embeddings()
        return widened(head(self._hidden(forward)))

    def _full_logits(self, forward: ForwardPass) -> Tensor:
        logits_BTV: Tensor = self.model(**self._inputs(forward), use_cache=False).logits
        return logits_BTV[forward.sequence_N, forward.column_N]

    def _hidden(self, forward: ForwardPass) -> Tensor:
        hidden_BTD: Tensor = self.model.base_model(**self._inputs(forward), use_cache=False).last_hidden_state
        return hidden_BTD[forward.sequence_N, forward.column_N]

    def _inputs(self, forward: ForwardPass) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": forward.input_BT}
        if forward.position_BT is not None:
            inputs["position_ids"] = forward.position_BT
        if forward.places is not None:
            inputs["rows"] = forward.places
            # A four-dimensional mask is passed on unchanged, which avoids building one of tokens x tokens.
            inputs["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=self.model.dtype, device=forward.input_BT.device)
        return inputs


def scoring_head(model: PreTrainedModel) -> ScoringHead:
    """The scoring head of a model; a short forward pass determines whether it is linear."""
    head: Any = model.get_output_embeddings()
    # The probe below cannot detect a soft cap, which changes small logits too little.
    text = model.config.get_text_config()
    is_linear = isinstance(head, nn.Linear) and not any(getattr(text, name, None) for name in SOFT_CAPS)
    if is_linear:
        device = head.weight.device
        probe_BT = torch.arange(4, device=device)[None] % text.vocab_size
        with torch.no_grad():
            expected = model(input_ids=probe_BT, use_cache=False).logits.float()
            product = head(model.base_model(input_ids=probe_BT, use_cache=False).last_hidden_state).float()
        # nan weights say nothing about the head (equal_nan); sampling and training report them.
        is_linear = bool(torch.allclose(product, expected, rtol=1e-2, atol=1e-3, equal_nan=True))
    if not is_linear:
        _log.warning("%s has no plain linear head, so full logits are kept in memory", type(model).__name__)
    return ScoringHead(model, is_linear)


def row_layout(head: ScoringHead, layout: str) -> str:
    """The layout for this model's rows: `auto` is shared_prompts if the model supports it, else padded.

    A short pass tests it: the error must be far smaller than it would be if rows attended to each other. The first rank
    decides for all; all ranks must call this.

    Raises:
        EngineError: shared_prompts is configured, but the model does not support it.
    """
    if layout == "padded":
        return layout
    # Near the limits of the trial, ranks might decide otherwise, make other passes and wait for each other forever.
    problem = all_ranks(_why_not_shared(head))[0]
    if problem is None:
        return "shared_prompts"
    if layout != "auto":
        raise EngineError(f"engine.row_layout: {problem}; set engine.row_layout=padded")
    _log.warning("rows are padded: %s", problem)
    return "padded"


def _why_not_shared(head: ScoringHead) -> str | None:
    model, name = head.model, type(head.model).__name__
    if not let_rows_share(model):
        return (
            "shared_prompts needs full causal sdpa attention with rotations that depend only on the position, which "
            f"{name} does not have"
        )
    size = model.config.get_text_config().vocab_size
    prompts, lengths = ((1, 2, 3, 5), (7, 4)), (5, 3, 1, 6)
    rows = TokenRows.of(
        [[token % size for token in prompts[n % 2]] for n in range(len(lengths))],
        [[(11 * n + 3 * t + 2) % size for t in range(length)] for n, length in enumerate(lengths)],
    )

    def scores_N(layout: str, *, is_leaky: bool = False) -> Tensor:
        (forward,) = forward_passes(rows, layout=layout, max_tokens=1000)
        pieces: dict[int, Tensor] = {}
        if is_leaky:
            forward = replace(forward, position_BT=None, places=None)
        scores = head.scores(forward.to(model.device), temperature=1.0, chunk_mb=64)
        for row, piece in zip(
            forward.rows, scores.logprob_N.split([lengths[row] for row in forward.rows]), strict=True
        ):
            pieces[row] = piece
        return torch.cat([pieces[row] for row in range(len(lengths))])

    with torch.no_grad():
        padded_N = scores_N("padded")
        try:
            difference = float((scores_N("shared_prompts") - padded_N).abs().mean())
            leaky_difference = float((scores_N("shared_prompts", is_leaky=True) - padded_N).abs().mean())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  classes written for padded rows may raise anything
            return f"{name} does not support shared_prompts ({first_line(error)})"
    share = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
    if difference <= 1e-5 + share * leaky_difference:
        return None
    return f"{name} scores rows differently with shared_prompts (off by {difference:.1e} nats on average)"
