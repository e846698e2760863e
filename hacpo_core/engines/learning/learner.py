"""Common part of all learners: forward passes over rows, the objective, the learning rate schedule.

    update: mini-batch ─▶ log-ratios of others' rows, if the objective reads them
                       ─▶ leave out rows with advantage 0; old log-probabilities of own rows, but for the first update
                       ─▶ weight of the entropy bonus; entropy from which tokens train
                       ─▶ accumulate: _score_groups ─▶ _values ─▶ backward   for each micro-batch
                       ─▶ optimizer_step

Subclasses implement the backward pass and the optimizer's step.

Shapes: B sequence (row of a micro-batch), T token, N response token of all rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from hacpo_core import algo
from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import AUTO, EngineConfig, OptimizerConfig
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.entropy_control import EntropyControl, without_control
from hacpo_core.engines.learning.optimizer import learning_rate
from hacpo_core.engines.learning.outcomes import MinibatchOutcome, RowOutcomes, UpdateOutcome
from hacpo_core.engines.learning.weights import Fingerprint
from hacpo_core.engines.models.loading import check_steady, recompute_activations
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.passes.attention import let_rows_share
from hacpo_core.engines.passes.compiled import CompiledLayers
from hacpo_core.engines.passes.first_ratios import first_log_ratios, with_log_centers
from hacpo_core.engines.passes.layouts import ForwardPass, forward_passes
from hacpo_core.engines.passes.logprobs import TokenScores
from hacpo_core.engines.passes.loss import loss_rows, objective_values, padded
from hacpo_core.engines.passes.scoring import Head, ScoringHead, row_layout, scoring_head
from hacpo_core.errors import EngineError
from hacpo_core.methods.base import Objective, RowKind, State
from hacpo_core.methods.checks import checked_log_centers

COSINE_CHUNK = 2**24
"""elements of a gradient that are converted to float64 at a time"""


@dataclass(frozen=True, slots=True)
class PassTotals:
    """J_homo and J_hete of some rows, and the measurements of each row, in the order of the passes.

    In J_hete, rows whose gradient clipping set to 0 count as 0.
    """

    own_objective: float
    cross_objective: float
    outcomes: RowOutcomes

    @classmethod
    def joined(cls, parts: Sequence[PassTotals], row_B: Sequence[NDArray[np.int64]]) -> PassTotals:
        """PassTotals of a mini-batch from those of parts of it, whose rows are at `row_B`."""
        outcomes = [
            replace(part.outcomes, row_B=at_B[part.outcomes.row_B]) for part, at_B in zip(parts, row_B, strict=True)
        ]
        return cls(
            sum(part.own_objective for part in parts),
            sum(part.cross_objective for part in parts),
            RowOutcomes.joined(outcomes),
        )


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Gradient norm before clipping, and the learning rate of the step."""

    grad_norm: float
    learning_rate: float


class BaseLearner(ABC):
    """Trains a model; subclasses implement the backward pass and the optimizer's step.

    After `refresh_policy`, `policy` is the model with its current, unsharded weights, for sampling and saving.
    """

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
        self.model = self.policy = model
        self.num_updates = 0
        self._config, self._engine = optimizer, engine
        self._temperature, self._total_updates = temperature, total_updates
        self._position: float | None = None
        """of the next update in the schedule of the learning rate, see `update`"""
        self._device = model.device
        is_wide = engine.head_dtype == "float32"
        head = scoring_head(model, is_wide=is_wide)
        self.layout = row_layout(head, engine.row_layout)
        self.head: Head = replace(head, is_compiled=engine.compile)
        if isinstance(reference, nn.Module):
            let_rows_share(reference)
            reference = scoring_head(reference, is_wide=is_wide)
        self._reference = reference
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._compiled_layers = CompiledLayers(model).used if engine.compile else nullcontext
        assert engine.gradient_checkpointing != AUTO, "planning replaces auto, see flows.planning.capacity"
        self._recomputes = bool(engine.gradient_checkpointing)
        if self._recomputes:
            recompute_activations(model, engine.gradient_checkpointing)
            check_steady(model)

    @abstractmethod
    def offload(self, *, weights: bool = False) -> None:
        """Move optimizer states and master weights to host memory, and with `weights` the model's weights too."""

    @abstractmethod
    def onload(self, *, optimizer: bool = True) -> None:
        """Move the weights back to the device, and with `optimizer` its states too; `update` calls this itself."""

    @abstractmethod
    def refresh_policy(self) -> None:
        """Update `policy` to the current weights; all ranks must call this."""

    def logprobs(self, rows: TokenRows, *, temperature: float | None = None) -> Ragged:
        """Log-probabilities (float32, nats) of the response tokens under the current weights, in order.

        They are those of softmax(logits / temperature); None: the temperature of the rollouts.
        """
        return self._scored(rows, _logprob, temperature=temperature)

    def reference_logprobs(self, rows: TokenRows, *, temperature: float | None = None) -> Ragged:
        """As `logprobs`, under the reference's weights, which every rank has whole."""
        assert self._reference is not None, "a score by the reference needs one"
        self.onload(optimizer=False)
        with torch.no_grad():
            return self._row_values(self._reference, rows, _logprob, temperature=temperature)

    def entropies(self, rows: TokenRows) -> Ragged:
        """Entropies (float32, nats) of the distributions that predict the response tokens, in order."""
        return self._scored(rows, _entropy)

    def _scored(
        self, rows: TokenRows, read: Callable[[TokenScores], Tensor], *, temperature: float | None = None
    ) -> Ragged:
        """What `read` takes from the scores of each response token under the current weights, in order."""
        self.onload(optimizer=False)
        self.model.eval()
        with torch.no_grad(), self._compiled_layers():
            return self._row_values(self.head, rows, read, temperature=temperature)

    def logprobs_of_each(self, rows: TokenRows) -> Ragged:
        """As `logprobs`, but with several ranks, each may pass different rows."""
        return self.logprobs(rows)

    def _row_values(
        self,
        head: Head,
        rows: TokenRows,
        read: Callable[[TokenScores], Tensor],
        *,
        temperature: float | None = None,
    ) -> Ragged:
        """What `read` takes from the scores of each row's response tokens, the rows in order."""
        values = Ragged(np.empty(len(rows.responses.value_N), np.float32), rows.responses.edge)
        for positions, scores in self._score_groups(head, rows, temperature=temperature):
            value_N, start = read(scores).float().cpu().numpy(), 0
            for row in positions:
                end = start + len(values[row])
                values[row][:] = value_N[start:end]
                start = end
        return values

    def _score_groups(
        self, head: Head, rows: TokenRows, *, has_entropy_gradient: bool = False, temperature: float | None = None
    ) -> Iterator[tuple[Sequence[int], TokenScores]]:
        """Scores of all response tokens, pass by pass, each with its rows' positions in the order of the scores."""
        for forward in self._forward_passes(rows):
            scores = head.scores(
                forward.to(self._device),
                temperature=self._temperature if temperature is None else temperature,
                chunk_mb=self._engine.logprob_chunk_mb,
                has_entropy_gradient=has_entropy_gradient,
            )
            yield forward.rows, scores

    def _forward_passes(self, rows: TokenRows) -> Iterator[ForwardPass]:
        max_tokens = self._engine.micro_batch_tokens
        return forward_passes(rows, layout=self.layout, max_tokens=max_tokens)

    def update(
        self,
        minibatches: Sequence[Minibatch],
        objective: Objective,
        *,
        measures_cosine: bool,
        planned_updates: range | None = None,
        recomputes_own: bool = False,
        num_iterations: int = 1,
        objective_state: State | None = None,
    ) -> UpdateOutcome:
        """One optimizer update per mini-batch, in order, and all of them again in each further iteration.

        Args:
            minibatches: rows of each update.
            objective: the method's.
            measures_cosine: measure the cosine between the gradients of J_homo and J_hete at the first update.
            planned_updates: the updates that the schedule of the learning rate has for this step; None: as many as are
                made, after those of the earlier steps.
            recomputes_own: take the old log-probabilities of own rows from the same passes that train them, in the
                first update from the pass itself, for the others from a pass before it; otherwise use those of the
                rows. Own rows then have passes without other rows.
            num_iterations: how often each mini-batch is trained on.
            objective_state: of the previous step; None: {}.

        Raises:
            EngineError: a gradient is not finite; earlier mini-batches have already changed the weights.
        """
        self.onload()
        control = EntropyControl.of(objective, objective_state or {})
        outcomes: list[MinibatchOutcome] = []
        row_outcomes: list[RowOutcomes] = []
        num_updates = num_iterations * len(minibatches)
        planned_updates = planned_updates or range(self.num_updates, self.num_updates + num_updates)
        with self._compiled_layers():
            minibatches, centers, state = self._centered(minibatches, objective, objective_state or {})
            gradient_rows = [np.flatnonzero(self._has_gradient(minibatch, objective)) for minibatch in minibatches]
            training_rows = [minibatch.take(rows) for minibatch, rows in zip(minibatches, gradient_rows, strict=True)]
            if recomputes_own:
                training_rows = self._with_current_old(training_rows, num_iterations)
            accumulate = self._accumulate_apart if recomputes_own else self.accumulate
            self.model.train(self._recomputes)
            for m, (minibatch, rows, position_B) in enumerate(
                num_iterations * [*zip(minibatches, training_rows, gradient_rows, strict=True)]
            ):
                self._position = planned_updates.start + m * len(planned_updates) / num_updates
                if objective.selects_tokens:
                    rows = replace(rows, min_entropy=self._min_entropy(minibatch, objective.top_entropy_share))
                weighted_objective = control.weighted
                cosine = self._gradient_cosine(rows, weighted_objective, m) if measures_cosine and m == 0 else None
                totals = accumulate(rows, weighted_objective, m)
                step = self.optimizer_step()
                control = control.after(rows, totals.outcomes)
                row_outcomes.append(replace(totals.outcomes, row_B=position_B[totals.outcomes.row_B]))
                outcome = _minibatch_outcome(m, minibatch, rows, totals, step, cosine)
                if objective.has_entropy_bonus:
                    outcome = replace(outcome, entropy_coef=weighted_objective.entropy_coef)
                outcomes.append(outcome)
            self.model.eval()
        rows_joined = RowOutcomes.joined([RowOutcomes.none(), *row_outcomes])
        return UpdateOutcome(tuple(outcomes), rows_joined, centers, {**state, **control.state})

    def _centered(
        self, minibatches: Sequence[Minibatch], objective: Objective, state: State
    ) -> tuple[Sequence[Minibatch], dict[str, float], State]:
        """Mini-batches with the centers of others' log-ratios, the centers, and the objective's state after them."""
        state = without_control(state)
        if not objective.reads_first_ratios:
            return minibatches, {}, state
        first_ratios = first_log_ratios(minibatches, self.logprobs)
        centers, state = checked_log_centers(objective, first_ratios, state)
        return [with_log_centers(minibatch, centers) for minibatch in minibatches], centers, state

    def _has_gradient(self, rows: Minibatch, objective: Objective) -> NDArray[np.bool_]:
        """Rows that an update passes through the model. A row with advantage 0 contributes only its own terms."""
        if not self._engine.skip_zero_advantage:
            return np.ones(len(rows), bool)
        has_own_terms = objective.kl_coef > 0 or objective.has_entropy_bonus
        has_terms_B = (rows.kind_B != RowKind.FOREIGN) if has_own_terms else np.zeros(len(rows), bool)
        has_teacher_B = rows.teacher_advantages.lengths > 0
        trains_B: NDArray[np.bool_] = (rows.advantage_B != 0.0) | has_terms_B | has_teacher_B
        return trains_B

    def _min_entropy(self, minibatch: Minibatch, share: float) -> float:
        """Entropy from which a mini-batch's own tokens train. Rows without advantage count, whether passed or not."""
        own_rows = minibatch.take(np.flatnonzero(minibatch.kind_B != RowKind.FOREIGN))
        if not len(own_rows):
            return -math.inf
        entropy_N = self.entropies(own_rows.tokens).value_N
        self.model.train(self._recomputes)
        return algo.entropy.top_share_threshold(entropy_N, share)

    def _with_current_old(self, minibatches: Sequence[Minibatch], num_iterations: int) -> list[Minibatch]:
        """Mini-batches whose own rows have old log-probabilities of the weights before the first update.

        The first mini-batch takes them from the pass that trains it, unless further iterations need them again.
        """
        first, *others = minibatches
        first = replace(first, old_is_current=True) if num_iterations == 1 else self._with_own_old(first)
        return [first, *map(self._with_own_old, others)]

    def _with_own_old(self, rows: Minibatch) -> Minibatch:
        """The rows of an update, with the old log-probabilities of own rows recomputed under the current weights.

        The passes are the same as in training: in bfloat16, log-probabilities depend on the shape of the batch by more
        than GSPO's clip range.
        """
        own_B = np.flatnonzero(rows.kind_B == RowKind.OWN)
        return rows.with_old_logprobs(own_B, self.logprobs(rows.tokens.take(own_B))) if len(own_B) else rows

    def accumulate(self, rows: Minibatch, objective: Objective, update: int) -> PassTotals:
        """Add the gradient of minus the objective of these rows."""
        return self.run_passes(rows, objective, update, self.head, lambda value: self.backward(-value))

    def _accumulate_apart(self, rows: Minibatch, objective: Objective, update: int) -> PassTotals:
        """As `accumulate`, but this step's own rows have passes without other rows, as `_with_own_old` scores them."""
        is_own_B = rows.kind_B == RowKind.OWN
        parts_B = [np.flatnonzero(is_own_B), np.flatnonzero(~is_own_B)]
        if not all(map(len, parts_B)):
            return self.accumulate(rows, objective, update)
        return PassTotals.joined([self.accumulate(rows.take(part_B), objective, update) for part_B in parts_B], parts_B)

    def run_passes(
        self,
        rows: Minibatch,
        objective: Objective,
        update: int,
        head: Head,
        differentiate: Callable[[Tensor], None],
    ) -> PassTotals:
        """Call `differentiate` with the objective of each micro-batch of these rows."""
        own_value = cross_value = 0.0
        outcomes = [RowOutcomes.none()]
        has_bonus = objective.entropy_coef > 0
        for positions, scores in self._score_groups(head, rows.tokens, has_entropy_gradient=has_bonus):
            part = rows.take(positions)
            value_B, columns = self._values(part, scores, objective, update)
            differentiate(value_B.sum())
            is_foreign_B = torch.from_numpy(part.kind_B == RowKind.FOREIGN).to(value_B.device)
            own_value += float(value_B.detach().where(~is_foreign_B, 0.0).sum())
            cross_value += float(value_B.detach().where(is_foreign_B & (columns["stopped_share"] < 1.0), 0.0).sum())
            outcomes.append(_outcomes(positions, columns, update))
        return PassTotals(own_value, cross_value, RowOutcomes.joined(outcomes))

    def _values(
        self, rows: Minibatch, scores: TokenScores, objective: Objective, update: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`objective_values` of a micro-batch; its columns also have the mean entropy of each row."""
        logprob_N = scores.logprob_N
        if rows.old_is_current:
            own_B = np.flatnonzero(rows.kind_B == RowKind.OWN)
            current = Ragged(logprob_N.detach().float().cpu().numpy(), rows.tokens.responses.edge)
            rows = rows.with_old_logprobs(own_B, current.take(own_B))
        micro_batch = loss_rows(rows, objective, device=logprob_N.device, dtype=logprob_N.dtype)
        mask_BT, reference_BT = micro_batch.mask_BT, None
        entropy_BT = padded(scores.entropy_N.to(logprob_N.dtype), mask_BT)
        if rows.min_entropy is not None:
            trains_BT = mask_BT & ((entropy_BT >= rows.min_entropy) | micro_batch.is_foreign_B[:, None])
            micro_batch = replace(micro_batch, trains_BT=trains_BT)
        if objective.kl_coef > 0:
            assert self._reference is not None, "kl_coef > 0 needs a reference model"
            with torch.no_grad():
                reference_N = self._row_values(self._reference, rows.tokens, _logprob).value_N
                reference_BT = padded(torch.from_numpy(reference_N).to(logprob_N), mask_BT)
        value_B, columns = objective_values(
            objective,
            micro_batch,
            padded(logprob_N, mask_BT),
            torch.from_numpy(rows.row_weight_B).to(logprob_N),
            update=update,
            num_own_tokens=rows.num_own_tokens,
            reference_logprob_BT=reference_BT,
            entropy_BT=entropy_BT,
        )
        return value_B, columns | {"entropy": entropy_BT.detach().sum(dim=1) / mask_BT.sum(dim=1)}

    def _gradient_cosine(self, rows: Minibatch, objective: Objective, update: int) -> float | None:
        """Cosine between the gradients of J_homo and J_hete on this mini-batch; None if one of them is 0.

        To save memory, the first gradient is kept on the host, and both are converted to float64 in chunks.
        """
        own_rows, cross_rows = own_and_cross(rows)
        if not len(own_rows) or not len(cross_rows):
            return None
        own_gradient = self._gradient(own_rows, objective, update)
        own_norm = math.sqrt(sum(_dot(g, g) for g in own_gradient.values()))
        own_gradient = {name: gradient.cpu() for name, gradient in own_gradient.items()}
        cross_gradient = self._gradient(cross_rows, objective, update)
        cross_norm = math.sqrt(sum(_dot(g, g) for g in cross_gradient.values()))
        if min(own_norm, cross_norm) == 0.0:
            return None
        # Sum in the parameters' order: a set's order differs between processes, and with it the last bits of the sum.
        return sum(
            _dot(own_gradient[name], cross_gradient[name]) for name in own_gradient if name in cross_gradient
        ) / (own_norm * cross_norm)

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
    def _gradient(self, rows: Minibatch, objective: Objective, update: int) -> dict[str, Tensor]:
        """Unsharded gradient of the objective of these rows, by parameter name; parameters without one are left out."""

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


def _logprob(scores: TokenScores) -> Tensor:
    return scores.logprob_N


def _entropy(scores: TokenScores) -> Tensor:
    return scores.entropy_N


def _dot(one: Tensor, other: Tensor) -> float:
    """Dot product in float64, on the device of `other`, in chunks."""
    pairs = zip(one.flatten().split(COSINE_CHUNK), other.flatten().split(COSINE_CHUNK), strict=True)
    return sum(float(a.to(b.device, torch.float64) @ b.double()) for a, b in pairs)


def own_and_cross(rows: Minibatch) -> tuple[Minibatch, Minibatch]:
    """The learner's own rows, and those of other agents."""
    is_foreign_B = rows.kind_B == RowKind.FOREIGN
    return rows.take(np.flatnonzero(~is_foreign_B)), rows.take(np.flatnonzero(is_foreign_B))


def _minibatch_outcome(
    update: int, minibatch: Minibatch, rows: Minibatch, totals: PassTotals, step: OptimizerStep, cosine: float | None
) -> MinibatchOutcome:
    """The outcome of a mini-batch of which `rows` were trained on."""
    return MinibatchOutcome(
        update=update,
        own_objective=totals.own_objective,
        cross_objective=totals.cross_objective,
        grad_norm=step.grad_norm,
        learning_rate=step.learning_rate,
        num_rows=len(minibatch),
        num_skipped=len(minibatch) - len(rows),
        num_trained_tokens=rows.num_tokens,
        gradient_cosine=cosine,
    )


def _outcomes(positions: Sequence[int], columns: Mapping[str, Tensor], update: int) -> RowOutcomes:
    return RowOutcomes(
        row_B=np.asarray(positions, np.int64),
        update_B=np.full(len(positions), update),
        figures={name: value_B.detach().double().cpu().numpy() for name, value_B in columns.items()},
    )
