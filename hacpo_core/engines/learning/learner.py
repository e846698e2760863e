"""Common part of all learners: forward passes over rows, the objective, the learning rate schedule.

    update: old log-probabilities of own rows, where the sampler's are not the learner's
            for each mini-batch: passes ─▶ objective_values ─▶ backward, then optimizer_step

Subclasses implement the backward pass and the optimizer's step.

Shapes: B sequence (row of a mini-batch or micro-batch), T token, N response token of all rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import AUTO, EngineConfig, OptimizerConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.optimizer import learning_rate
from hacpo_core.engines.learning.outcomes import MinibatchOutcome, UpdateOutcome
from hacpo_core.engines.learning.weights import Fingerprint
from hacpo_core.engines.models.loading import recompute_activations
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.passes.attention import let_rows_share
from hacpo_core.engines.passes.compiled import CompiledLayers
from hacpo_core.engines.passes.first_ratios import log_ratios_by_agent, with_log_centers
from hacpo_core.engines.passes.layouts import ForwardPass, forward_passes
from hacpo_core.engines.passes.logprobs import TokenScores
from hacpo_core.engines.passes.loss import loss_rows, objective_values, padded
from hacpo_core.engines.passes.scoring import Head, ScoringHead, row_layout, scoring_head
from hacpo_core.errors import EngineError
from hacpo_core.methods.base import State
from hacpo_core.methods.build import TrainedRows
from hacpo_core.methods.checks import checked_log_centers
from hacpo_core.methods.objective import Objective, RowKind


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Gradient norm before clipping, and the learning rate of the step."""

    grad_norm: float
    learning_rate: float


class BaseLearner(ABC):
    """Trains a model; subclasses implement the optimizer, the backward pass and the optimizer's step."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerConfig,
        engine: EngineConfig,
        temperature: float,
        total_updates: int,
        reference: PreTrainedModel | ScoringHead | None = None,
    ) -> None:
        self.model = model
        self.num_updates = 0
        self._config, self._engine = optimizer, engine
        self._temperature, self._total_updates = temperature, total_updates
        self._position: float | None = None
        """of the next update in the schedule of the learning rate, see `update`"""
        self._device = model.device
        head = scoring_head(model)
        self.layout = row_layout(head, engine.row_layout)
        self.head: Head = replace(head, is_compiled=engine.compile)
        if isinstance(reference, nn.Module):
            let_rows_share(reference)
            reference = scoring_head(reference)
        self._reference = reference
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._compiled_layers = CompiledLayers(model).used if engine.compile else nullcontext
        assert engine.gradient_checkpointing != AUTO, "planning replaces auto, see flows.planning.capacity"
        self._recomputes = bool(engine.gradient_checkpointing)
        if self._recomputes:
            recompute_activations(model, engine.gradient_checkpointing)
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Make the optimizer; all else is there."""

    def logprobs(self, rows: TokenRows) -> Ragged:
        """Log-probabilities (float32, nats) of the response tokens under the current weights, in order."""
        self.model.eval()
        with torch.no_grad(), self._compiled_layers():
            return self._logprobs_by(self.head, rows)

    def _reference_logprobs(self, rows: TokenRows, mask_BT: Tensor) -> Tensor:
        """Log-probabilities (nats) under the reference, 0 outside the mask."""
        assert self._reference is not None, "kl_coef > 0 needs a reference model"
        with torch.no_grad():
            values = self._logprobs_by(self._reference, rows).value_N
        return padded(torch.from_numpy(values).to(mask_BT.device), mask_BT)

    def logprobs_of_each(self, rows: TokenRows) -> Ragged:
        """As `logprobs`, but with several ranks, each may pass different rows."""
        return self.logprobs(rows)

    def _logprobs_by(self, head: Head, rows: TokenRows) -> Ragged:
        """Log-probabilities of each row's response tokens under a head, the rows in order."""
        values = Ragged(np.empty(len(rows.responses.value_N), np.float32), rows.responses.edge)
        for positions, scores in self._score_groups(head, rows):
            value_N, start = scores.logprob_N.float().cpu().numpy(), 0
            for row in positions:
                end = start + len(values[row])
                values[row][:] = value_N[start:end]
                start = end
        return values

    def _score_groups(
        self, head: Head, rows: TokenRows, *, has_entropy_gradient: bool = False
    ) -> Iterator[tuple[Sequence[int], TokenScores]]:
        """Scores of all response tokens, pass by pass, each with its rows' positions in the order of the scores."""
        for forward in self._forward_passes(rows):
            scores = head.scores(
                forward.to(self._device),
                temperature=self._temperature,
                chunk_mb=self._engine.logprob_chunk_mb,
                has_entropy_gradient=has_entropy_gradient,
            )
            yield forward.rows, scores

    def _forward_passes(self, rows: TokenRows) -> Iterator[ForwardPass]:
        # On CUDA, attention's kernels make a plan for each new shape of a block, 20 to 70 ms long.
        unit, engine = 128 if self._device.type == "cuda" else 1, self._engine
        budget = engine.micro_batch_tokens
        return forward_passes(
            rows, layout=self.layout, max_tokens=budget, max_places=engine.max_places, block_unit=unit
        )

    def update(
        self,
        minibatches: Sequence[Minibatch],
        objective: Objective,
        *,
        planned_updates: range | None = None,
        scores_own: bool = False,
        objective_state: State | None = None,
    ) -> UpdateOutcome:
        """One optimizer update per mini-batch, in order.

        Args:
            minibatches: rows of each update; one may come several times.
            objective: the method's.
            planned_updates: the updates that the schedule of the learning rate has for this step; None: as many as are
                made, after those of the earlier steps.
            scores_own: the old log-probabilities of own rows are the learner's: of the first mini-batch from the
                passes that train it, in which they are alone, of the others from passes before the first update.
            objective_state: of the previous step; None: {}.

        Raises:
            EngineError: a gradient is not finite; earlier mini-batches have already changed the weights.
        """
        planned_updates = planned_updates or range(self.num_updates, self.num_updates + len(minibatches))
        outcomes: list[MinibatchOutcome] = []
        trained_rows: list[TrainedRows] = []
        with self._compiled_layers():
            first_log_ratios = partial(log_ratios_by_agent, minibatches, self.logprobs)
            centers, state = checked_log_centers(objective, first_log_ratios, objective_state or {})
            prepared = {
                id(rows): with_log_centers(rows.take(np.flatnonzero(self._has_gradient(rows, objective))), centers)
                for rows in minibatches
            }
            training_rows = [prepared[id(rows)] for rows in minibatches]
            if scores_own:
                training_rows = self._with_learners_old(training_rows)
            self.model.train(self._recomputes)
            for m, (minibatch, rows) in enumerate(zip(minibatches, training_rows, strict=True)):
                self._position = planned_updates.start + m * len(planned_updates) / len(minibatches)
                parts = own_and_others(rows) if scores_own else [rows]
                trained = TrainedRows.joined([self.passes(part, objective, m) for part in parts])
                outcomes.append(_minibatch_outcome(m, minibatch, rows, trained, self.optimizer_step()))
                trained_rows.append(trained)
            self.model.eval()
        return UpdateOutcome(tuple(outcomes), TrainedRows.joined(trained_rows), centers, state)

    def _has_gradient(self, rows: Minibatch, objective: Objective) -> NDArray[np.bool_]:
        """Rows that an update passes through the model. A row with advantage 0 contributes only its own terms."""
        if not self._engine.skip_zero_advantage:
            return np.ones(len(rows), bool)
        has_own_terms = objective.kl_coef > 0 or objective.entropy_coef > 0
        has_terms_B = (rows.kind_B != RowKind.FOREIGN) if has_own_terms else np.zeros(len(rows), bool)
        has_teacher_B = rows.teacher_advantages.lengths > 0
        trains_B: NDArray[np.bool_] = (rows.advantage_B != 0.0) | has_terms_B | has_teacher_B
        return trains_B

    def _with_learners_old(self, minibatches: Sequence[Minibatch]) -> list[Minibatch]:
        """Mini-batches whose own rows have old log-probabilities of the weights before the first update.

        The passes are the same as in training: in bfloat16, log-probabilities depend on the shape of the batch by more
        than GSPO's clip range. A first mini-batch that does not come again takes them from the pass that trains it.
        """
        later = {id(rows): rows for rows in minibatches[1:]}
        scored = {key: self._with_own_old(rows) for key, rows in later.items()}
        return [scored.get(id(rows)) or replace(rows, old_is_current=True) for rows in minibatches]

    def _with_own_old(self, rows: Minibatch) -> Minibatch:
        """The rows of an update, with the old log-probabilities of own rows under the current weights."""
        own_B = np.flatnonzero(rows.kind_B == RowKind.OWN)
        return rows.with_old_logprobs(own_B, self.logprobs(rows.tokens.take(own_B))) if len(own_B) else rows

    def passes(self, rows: Minibatch, objective: Objective, update: int) -> TrainedRows:
        """Add the gradient of minus the objective of these rows, micro-batch by micro-batch."""
        trained = [TrainedRows.none()]
        has_bonus = objective.entropy_coef > 0
        for positions, scores in self._score_groups(self.head, rows.tokens, has_entropy_gradient=has_bonus):
            logprob_N, part = scores.logprob_N, rows.take(positions)
            if part.old_is_current:
                part = part.with_old_of_pass(logprob_N)
            micro_batch = loss_rows(part, objective, device=logprob_N.device, dtype=logprob_N.dtype)
            mask_BT = micro_batch.mask_BT
            entropy_BT = padded(scores.entropy_N.to(logprob_N.dtype), mask_BT)
            value_B, columns = objective_values(
                objective,
                micro_batch,
                padded(logprob_N, mask_BT),
                torch.from_numpy(part.row_weight_B).to(logprob_N),
                update=update,
                num_own_tokens=part.num_own_tokens,
                reference_logprob_BT=self._reference_logprobs(part.tokens, mask_BT) if objective.kl_coef > 0 else None,
                entropy_BT=entropy_BT,
            )
            self.backward(-value_B.sum())
            columns |= {"value": value_B, "entropy": entropy_BT.detach().sum(dim=1) / mask_BT.sum(dim=1)}
            trained.append(part.trained_rows(update, columns))
        return TrainedRows.joined(trained)

    def gradient_cosine(self, rows: Minibatch, objective: Objective) -> float | None:
        """Cosine between the gradients of J_homo and J_hete on a mini-batch, without an update.

        None if it cannot be measured: one of them is 0, or the learner holds no whole gradient.

        Source: HACPO, Theorem 4.3.
        """
        return None

    def _rate(self) -> float:
        """Learning rate of the next update."""
        return learning_rate(
            self._config, update=self.num_updates, total_updates=self._total_updates, position=self._position
        )

    def _check_norm(self, norm: float) -> None:
        if not math.isfinite(norm):
            raise EngineError(
                f"gradient norm is {norm} at update {self.num_updates}, expected a finite one; lower "
                "optimizer.learning_rate"
            )

    def _check_name(self, name: str) -> None:
        if name not in self.trainable:
            raise EngineError(
                f"optimizer state: got parameter {name!r}, which this model does not have; use its own checkpoint"
            )

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch's loss."""

    @abstractmethod
    def optimizer_step(self) -> OptimizerStep:
        """Clip the gradient and update the weights."""

    @abstractmethod
    def close(self) -> None:
        """Release the learner's external resources."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Identity of the trained weights, or of their fp32 masters if there are any; all ranks must call this."""

    @abstractmethod
    def optimizer_parts(self) -> Iterator[TensorPart]:
        """AdamW's moments and step counts, and fp32 master weights, by parameter name; all ranks must read them."""

    @abstractmethod
    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Set tensors from `optimizer_parts`."""


def own_and_others(rows: Minibatch) -> list[Minibatch]:
    """The rows that the learner sampled in this step, and the others; without empty parts."""
    is_own_B = rows.kind_B == RowKind.OWN
    parts = [rows.take(np.flatnonzero(is_own_B)), rows.take(np.flatnonzero(~is_own_B))]
    return [part for part in parts if len(part)] or [rows]


def _minibatch_outcome(
    update: int, minibatch: Minibatch, rows: Minibatch, trained: TrainedRows, step: OptimizerStep
) -> MinibatchOutcome:
    """The outcome of a mini-batch of which `rows` were passed through the model."""
    is_foreign_B, value_B = trained.kind_B == RowKind.FOREIGN, trained.figures["value"]
    return MinibatchOutcome(
        update=update,
        own_objective=float(value_B[~is_foreign_B].sum()),
        cross_objective=float(value_B[is_foreign_B & (trained.figures["stopped_share"] < 1.0)].sum()),
        grad_norm=step.grad_norm,
        learning_rate=step.learning_rate,
        num_rows=len(minibatch),
        num_skipped=len(minibatch) - len(rows),
        num_trained_tokens=rows.num_tokens,
    )
