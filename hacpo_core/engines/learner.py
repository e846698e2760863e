"""What every learner does in the same way: passes over rows, the objective, the schedule.

    update: mini-batch ─▶ weights of rows, rows without advantage left out, own rows' old log-probabilities
                       ─▶ _accumulate: _score_groups ─▶ _objective ─▶ _backward     for each micro-batch
                       ─▶ _step

A learner says how a loss is differentiated and how the optimizer steps.

Shapes: B sequence (row of a micro-batch), T token, N response token of all rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hacpo_core.algo.methods import Method, Objective, Rows, method_bounds, objective
from hacpo_core.algo.objectives import row_weights
from hacpo_core.batches import Minibatch, Row
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.attention import let_rows_share
from hacpo_core.engines.base import MinibatchOutcome, RowOutcome, ScoreRequest, UpdateOutcome
from hacpo_core.engines.layouts import ForwardPass, forward_passes
from hacpo_core.engines.logprobs import TokenScores
from hacpo_core.engines.models import check_steady
from hacpo_core.engines.optimizer import learning_rate
from hacpo_core.engines.products import OneDnnLinear
from hacpo_core.engines.scoring import Head, ScoringHead, row_layout, scoring_head
from hacpo_core.engines.tensor_files import TensorPart
from hacpo_core.engines.weights import Fingerprint
from hacpo_core.errors import EngineError

COSINE_CHUNK = 2**24
"""numbers of a gradient that are widened at a time"""


@dataclass(frozen=True, slots=True)
class Totals:
    """J_homo and J_hete of a mini-batch, and what was seen of each row, by its position in what was passed over."""

    own: float
    cross: float
    outcomes: dict[int, RowOutcome]


@dataclass(frozen=True, slots=True)
class Stepped:
    """Norm of the gradient before clipping, and the learning rate that was used."""

    grad_norm: float
    learning_rate: float


class BaseLearner(ABC):
    """Owns a model's weights; how they are differentiated and stepped is said by a subclass.

    `policy` is the model with the current whole weights, after `refresh_policy`: for samplers and for saving.
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
        self._device = model.device
        is_wide = engine.head_dtype == "float32"
        head = scoring_head(model, is_wide=is_wide)
        self._layout = row_layout(head, engine.row_layout)
        self._fills_passes = any(isinstance(module, OneDnnLinear) for module in model.modules())
        self._head: Head = head
        if isinstance(reference, nn.Module):
            let_rows_share(reference)
            reference = scoring_head(reference, is_wide=is_wide)
        self._reference = reference
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if engine.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            check_steady(model)

    @abstractmethod
    def offload(self, *, weights: bool = False) -> None:
        """Leave the device to others: optimizer state and masters, on request all weights, go to host memory."""

    @abstractmethod
    def onload(self, *, optimizer: bool = True) -> None:
        """Bring the weights back, and the optimizer's part unless told otherwise; `update` does so by itself."""

    @abstractmethod
    def refresh_policy(self) -> None:
        """Bring `policy` up to the current weights; on all ranks."""

    def logprobs(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probabilities (nats) of the response tokens under the current weights, in order."""
        self.onload(optimizer=False)
        self.model.eval()
        with torch.no_grad():
            return [tuple(logprob.tolist()) for logprob in self._row_logprobs(self._head, requests)]

    def logprobs_of_each(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """As `logprobs`; ranks, where there are several, may ask for different ones."""
        return self.logprobs(requests)

    def _row_logprobs(self, head: Head, requests: Sequence[ScoreRequest]) -> list[Tensor]:
        """Log-probabilities of each row's response tokens, the rows in order."""
        found: dict[int, Tensor] = {}
        for rows, scores in self._score_groups(head, requests):
            lengths = [len(requests[row].response_ids) for row in rows]
            found |= zip(rows, scores.logprob_N.split(lengths), strict=True)
        return [found[row] for row in range(len(requests))]

    def _score_groups(
        self, head: Head, requests: Sequence[ScoreRequest]
    ) -> Iterator[tuple[Sequence[int], TokenScores]]:
        """Scores of all response tokens, pass by pass, with the positions of the pass's rows in the order of scores."""
        for forward in self._forward_passes(requests):
            scores = head.scores(
                forward.to(self._device), temperature=self._temperature, chunk_mb=self._engine.logprob_chunk_mb
            )
            yield forward.rows, scores

    def _forward_passes(self, requests: Sequence[ScoreRequest]) -> Iterator[ForwardPass]:
        max_tokens = self._engine.micro_batch_tokens
        return forward_passes(requests, layout=self._layout, max_tokens=max_tokens, is_filled=self._fills_passes)

    def update(
        self,
        minibatches: Sequence[Minibatch],
        method: Method,
        *,
        num_agents: int,
        max_response_tokens: int,
        measures_cosine: bool,
        recomputes_own: bool = False,
    ) -> UpdateOutcome:
        """One optimizer update per mini-batch, in order.

        Args:
            minibatches: rows of each update.
            method: the declaration.
            num_agents: number of agents that rows may come from.
            max_response_tokens: the constant of seq_mean_token_sum_norm.
            measures_cosine: measure the cosine between the two gradients at the first update.
            recomputes_own: take the old log-probabilities of own rows from the very passes that train them, before the
                first update; else those that the rows hold.

        Raises:
            EngineError: a gradient is not finite; earlier mini-batches have changed the weights by then.
        """
        self.onload()
        weighted = [self._weighted(minibatch, method, num_agents, max_response_tokens) for minibatch in minibatches]
        live_rows = [[item for item in minibatch if self._has_gradient(item[0], method)] for minibatch in weighted]
        if recomputes_own:
            live_rows = [self._with_own_old(live) for live in live_rows]
        self.model.train(self._engine.gradient_checkpointing)
        outcomes: list[MinibatchOutcome] = []
        rows: list[RowOutcome] = []
        for m, live in enumerate(live_rows):
            cosine = self._gradient_cosine(live, method, m) if measures_cosine and m == 0 else None
            totals = self._accumulate(live, method, m)
            stepped = self._step()
            rows.extend(totals.outcomes.values())
            outcomes.append(
                MinibatchOutcome(
                    update=m,
                    own_objective=totals.own,
                    cross_objective=totals.cross,
                    grad_norm=stepped.grad_norm,
                    learning_rate=stepped.learning_rate,
                    num_rows=len(weighted[m]),
                    num_skipped=len(weighted[m]) - len(live),
                    num_trained_tokens=sum(len(row.response_ids) for row, _ in live),
                    gradient_cosine=cosine,
                )
            )
        self.model.eval()
        return UpdateOutcome(tuple(outcomes), tuple(rows))

    def _weighted(
        self, minibatch: Minibatch, method: Method, num_agents: int, max_response_tokens: int
    ) -> list[tuple[Row, float]]:
        """The rows of a mini-batch with their weights in its objective."""
        weight_B = row_weights(
            torch.tensor([row.source for row in minibatch.rows], dtype=torch.long),
            torch.tensor([len(row.response_ids) for row in minibatch.rows]),
            num_sources=num_agents,
            is_token_level=method.ratio == "token",
            aggregation=method.aggregation,
            token_aggregation=method.token_aggregation,
            max_tokens=max_response_tokens,
        )
        return list(zip(minibatch.rows, weight_B.tolist(), strict=True))

    def _has_gradient(self, row: Row, method: Method) -> bool:
        """Whether an update passes the row through the model; one without advantage adds nothing but its KL."""
        return not self._engine.skip_zero_advantage or row.advantage != 0.0 or (method.kl_coef > 0 and row.is_own)

    def _with_own_old(self, live: Sequence[tuple[Row, float]]) -> list[tuple[Row, float]]:
        """The rows of an update, own ones with the log-probabilities that its passes give under the current weights.

        In bfloat16 a score changes with the shape of its batch by more than GSPO's clip, so the passes are the same.
        """
        if not any(row.is_own for row, _ in live):
            return list(live)
        scored = self.logprobs([ScoreRequest(row.prompt_ids, row.response_ids) for row, _ in live])
        return [
            (replace(row, old_logprobs=old, old_mean_logprob=fmean(old)) if row.is_own else row, weight)
            for (row, weight), old in zip(live, scored, strict=True)
        ]

    def _accumulate(self, weighted: Sequence[tuple[Row, float]], method: Method, update: int) -> Totals:
        """Add the gradient of minus the objective of these rows."""
        return self._pass_over(weighted, method, update, self._head, lambda value: self._backward(-value))

    def _pass_over(
        self,
        weighted: Sequence[tuple[Row, float]],
        method: Method,
        update: int,
        head: Head,
        differentiate: Callable[[Tensor], None],
    ) -> Totals:
        """Hand the objective of each micro-batch of these rows to `differentiate`."""
        own_value = cross_value = 0.0
        outcomes: dict[int, RowOutcome] = {}
        requests = [ScoreRequest(row.prompt_ids, row.response_ids) for row, _ in weighted]
        for positions, scores in self._score_groups(head, requests):
            part = [weighted[position] for position in positions]
            value, entropy_B = self._objective(part, scores, method, update)
            differentiate(value.own + value.cross)
            own_value += float(value.own.detach())
            cross_value += float(value.cross.detach())
            outcomes |= zip(positions, _row_outcomes(part, value, entropy_B, method, update), strict=True)
        return Totals(own_value, cross_value, outcomes)

    def _objective(
        self, part: Sequence[tuple[Row, float]], scores: TokenScores, method: Method, update: int
    ) -> tuple[Objective, Tensor]:
        device, dtype = scores.logprob_N.device, scores.logprob_N.dtype
        rows = [row for row, _ in part]
        lengths = torch.tensor([len(row.response_ids) for row in rows], device=device)
        mask_BT = torch.arange(int(lengths.max()), device=device)[None, :] < lengths[:, None]

        def spread(value_N: Tensor) -> Tensor:
            return torch.zeros(mask_BT.shape, dtype=dtype, device=device).masked_scatter(mask_BT, value_N.to(dtype))

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        old_BT = reference_BT = None
        if method.ratio == "token":
            old_BT = spread(column([value for row in rows for value in row.old_logprobs or ()]))
        if method.kl_coef > 0:
            assert self._reference is not None, "kl_coef > 0 needs a reference model"
            with torch.no_grad():
                requests = [ScoreRequest(row.prompt_ids, row.response_ids) for row in rows]
                reference_BT = spread(torch.cat(self._row_logprobs(self._reference, requests)))
        entropy_BT = spread(scores.entropy_N)
        value = objective(
            method,
            Rows(
                mask_BT=mask_BT,
                is_own_B=torch.tensor([row.is_own for row in rows], device=device),
                advantage_B=column([row.advantage for row in rows]),
                cross_weight_B=column([row.cross_weight for row in rows]),
                old_mean_logprob_B=column([row.old_mean_logprob for row in rows]),
                row_weight_B=column([weight for _, weight in part]),
                old_logprob_BT=old_BT,
                reference_logprob_BT=reference_BT,
            ),
            spread(scores.logprob_N),
            update=update,
        )
        return value, entropy_BT.sum(dim=1) / lengths

    def _gradient_cosine(self, weighted: Sequence[tuple[Row, float]], method: Method, update: int) -> float | None:
        """Cosine between the gradients of J_homo and J_hete on this mini-batch; None where one of them is zero.

        They may be billions of numbers: one of the two waits in host memory, and none is widened as a whole.
        """
        own_rows, cross_rows = ([item for item in weighted if item[0].is_own is is_own] for is_own in (True, False))
        if not own_rows or not cross_rows:
            return None
        own = self._gradient(own_rows, method, update)
        own_norm = math.sqrt(sum(_dot(g, g) for g in own.values()))
        own = {name: gradient.cpu() for name, gradient in own.items()}
        cross = self._gradient(cross_rows, method, update)
        cross_norm = math.sqrt(sum(_dot(g, g) for g in cross.values()))
        if min(own_norm, cross_norm) == 0.0:
            return None
        # In the parameters' order: a set's order, and with it the last bits of the sum, differs between processes.
        return sum(_dot(own[name], cross[name]) for name in own if name in cross) / (own_norm * cross_norm)

    def _rate(self) -> float:
        """Learning rate of the next update."""
        return learning_rate(self._config, update=self.num_updates, total_updates=self._total_updates)

    def _check_norm(self, norm: float) -> None:
        if not math.isfinite(norm):
            raise EngineError(f"gradient norm is {norm} at update {self.num_updates}; lower optimizer.learning_rate")

    def _check_name(self, name: str) -> None:
        if name not in self._named:
            raise EngineError(f"optimizer state names {name!r}, which this model does not have; wrong checkpoint")

    @abstractmethod
    def _backward(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch's loss."""

    @abstractmethod
    def _gradient(self, weighted: Sequence[tuple[Row, float]], method: Method, update: int) -> dict[str, Tensor]:
        """Gradient of the objective of these rows by parameter name, whole; parameters without one are left out."""

    @abstractmethod
    def _step(self) -> Stepped:
        """Clip the gradient and step."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the learner holds outside its own memory."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Identity of the trained weights: of the fp32 masters where there are any; on all ranks."""

    @abstractmethod
    def optimizer_parts(self) -> Iterator[TensorPart]:
        """AdamW's moments and step counts, and the fp32 master weights, by parameter name; read by all ranks."""

    @abstractmethod
    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Set what `optimizer_parts` read."""


def _dot(one: Tensor, other: Tensor) -> float:
    """Scalar product in float64, where the second one lies, some numbers at a time."""
    pairs = zip(one.flatten().split(COSINE_CHUNK), other.flatten().split(COSINE_CHUNK), strict=True)
    return sum(float(a.to(b.device, torch.float64) @ b.double()) for a, b in pairs)


def _row_outcomes(
    part: Sequence[tuple[Row, float]], value: Objective, entropy_B: Tensor, method: Method, update: int
) -> list[RowOutcome]:
    own, cross = method_bounds(method, update=update)
    return [
        RowOutcome(
            source=row.source,
            problem=row.problem,
            index=row.index,
            is_own=row.is_own,
            update=update,
            advantage=row.advantage,
            cross_weight=row.cross_weight,
            ratio=ratio,
            floor=(own if row.is_own else cross).floor,
            ceiling=(own if row.is_own else cross).ceiling,
            stopped_share=stopped,
            kl=kl,
            entropy=entropy,
            num_tokens=len(row.response_ids),
        )
        for (row, _), ratio, stopped, kl, entropy in zip(
            part,
            value.ratio_B.tolist(),
            value.stopped_share_B.tolist(),
            value.kl_B.tolist(),
            entropy_B.tolist(),
            strict=True,
        )
    ]
