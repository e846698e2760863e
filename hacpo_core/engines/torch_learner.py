"""The plain torch learner: AdamW on one device, in fp32 or in bf16 with fp32 master weights.

Shapes: B sequence (row of a micro-batch), T token, N response token of all rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from hacpo_core.algo.methods import Method, Objective, Rows, method_bounds, objective
from hacpo_core.algo.objectives import row_weights
from hacpo_core.batches import Minibatch, Row
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.base import MinibatchOutcome, RowOutcome, ScoreRequest, UpdateOutcome
from hacpo_core.engines.layouts import ForwardPass, forward_passes
from hacpo_core.engines.logprobs import TokenScores
from hacpo_core.engines.models import ScoringHead, check_layout, scoring_head
from hacpo_core.engines.offload import move_data, move_state, release_unused
from hacpo_core.errors import EngineError


def learning_rate(config: OptimizerConfig, *, update: int, total_updates: int) -> float:
    """Learning rate of an update.

        peak * (update + 1) / warmup                                     while update < warmup
        peak                                                             constant
        peak * (1 + cos(pi (update - warmup) / (total - warmup))) / 2    cosine

    Args:
        config: the optimizer's.
        update: 0-based, over the whole run.
        total_updates: of the whole run.
    """
    if update < config.warmup_updates:
        return config.learning_rate * (update + 1) / config.warmup_updates
    if config.schedule == "constant":
        return config.learning_rate
    progress = (update - config.warmup_updates) / max(1, total_updates - config.warmup_updates)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def weights_digest(named: Iterator[tuple[str, Tensor]]) -> str:
    """SHA-256 (hex) of tensors' names, shapes and bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda item: item[0]):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class TorchLearner:
    """Owns a model's weights and their optimizer.

    With `engine.dtype: bfloat16` the optimizer steps fp32 master weights, which are copied into the model after each
    update: a learning rate of 1e-6 would vanish in bf16. Log-softmax is fp32 in any case.
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
        host: torch.device = torch.device("cpu"),  # noqa: B008
    ) -> None:
        self.model = model
        self._device, self._host = model.device, host
        self._are_weights_away = self._is_optimizer_away = False
        self.num_updates = 0
        self._config, self._engine = optimizer, engine
        self._temperature, self._total_updates = temperature, total_updates
        is_wide = engine.head_dtype == "float32"
        self._head: ScoringHead = scoring_head(model, is_wide=is_wide)
        check_layout(self._head, engine.row_layout)
        self._reference = scoring_head(reference, is_wide=is_wide) if isinstance(reference, nn.Module) else reference
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._is_partial = len(self._named) < sum(1 for _ in model.parameters())
        is_narrow = any(p.dtype != torch.float32 for p in self._named.values())
        self._masters = {name: p.detach().float().clone() for name, p in self._named.items()} if is_narrow else {}
        self._optimizer = torch.optim.AdamW(
            list((self._masters or self._named).values()),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        if engine.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def logprobs(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probabilities (nats) of the response tokens under the current weights, in order."""
        self.onload(optimizer=False)
        self.model.eval()
        with torch.no_grad():
            return [tuple(logprob.tolist()) for logprob in self._row_logprobs(self._head, requests)]

    def _row_logprobs(self, head: ScoringHead, requests: Sequence[ScoreRequest]) -> list[Tensor]:
        """Log-probabilities of each row's response tokens, the rows in order."""
        found: dict[int, Tensor] = {}
        for rows, scores in self._score_groups(head, requests):
            lengths = [len(requests[row].response_ids) for row in rows]
            found |= zip(rows, scores.logprob_N.split(lengths), strict=True)
        return [found[row] for row in range(len(requests))]

    def _score_groups(
        self, head: ScoringHead, requests: Sequence[ScoreRequest]
    ) -> Iterator[tuple[Sequence[int], TokenScores]]:
        """Scores of all response tokens, pass by pass, with the positions of the pass's rows in the order of scores."""
        for forward in forward_passes(
            requests,
            layout=self._engine.row_layout,
            max_tokens=self._engine.micro_batch_tokens,
            pack_tokens=self._engine.pack_tokens,
        ):
            yield forward.rows, self._score(head, forward)

    def _score(self, head: ScoringHead, forward: ForwardPass) -> TokenScores:
        return head.scores(
            forward.to(self._device), temperature=self._temperature, chunk_mb=self._engine.logprob_chunk_mb
        )

    def update(
        self,
        minibatches: Sequence[Minibatch],
        method: Method,
        *,
        num_agents: int,
        max_response_tokens: int,
        measures_cosine: bool,
    ) -> UpdateOutcome:
        """One optimizer update per mini-batch, in order.

        Args:
            minibatches: rows of each update.
            method: the declaration.
            num_agents: number of agents that rows may come from.
            max_response_tokens: the constant of seq_mean_token_sum_norm.
            measures_cosine: measure the cosine between the two gradients at the first update.

        Raises:
            EngineError: the gradient is not finite; the weights stay as they were.
        """
        self.onload()
        self.model.train(self._engine.gradient_checkpointing)
        outcomes, rows = [], []
        for m, minibatch in enumerate(minibatches):
            weight_B = row_weights(
                torch.tensor([row.source for row in minibatch.rows], dtype=torch.long),
                torch.tensor([len(row.response_ids) for row in minibatch.rows]),
                num_sources=num_agents,
                is_token_level=method.ratio == "token",
                aggregation=method.aggregation,
                token_aggregation=method.token_aggregation,
                max_tokens=max_response_tokens,
            )
            weighted = list(zip(minibatch.rows, weight_B.tolist(), strict=True))
            skips = self._engine.skip_zero_advantage
            live = [(row, w) for row, w in weighted if not skips or row.advantage != 0.0 or self._has_kl(method, row)]
            cosine = self._gradient_cosine(live, method, m) if measures_cosine and m == 0 else None
            self._clear_gradients()
            own_value, cross_value, row_outcomes = self._accumulate(live, method, m)
            grad_norm, rate = self._step()
            rows.extend(row_outcomes)
            outcomes.append(
                MinibatchOutcome(
                    update=m,
                    own_objective=own_value,
                    cross_objective=cross_value,
                    grad_norm=grad_norm,
                    learning_rate=rate,
                    num_rows=len(weighted),
                    num_skipped=len(weighted) - len(live),
                    num_trained_tokens=sum(len(row.response_ids) for row, _ in live),
                    gradient_cosine=cosine,
                )
            )
        self.model.eval()
        return UpdateOutcome(tuple(outcomes), tuple(rows))

    @staticmethod
    def _has_kl(method: Method, row: Row) -> bool:
        return method.kl_coef > 0 and row.is_own

    def _clear_gradients(self) -> None:
        for parameter in self._named.values():
            parameter.grad = None

    def _accumulate(
        self, weighted: Sequence[tuple[Row, float]], method: Method, update: int, *, sign: float = -1.0
    ) -> tuple[float, float, list[RowOutcome]]:
        """Add `sign` times the objective's gradient; returns J_homo, J_hete and the rows' outcomes."""
        own_value = cross_value = 0.0
        outcomes: list[RowOutcome] = []
        requests = [ScoreRequest(row.prompt_ids, row.response_ids) for row, _ in weighted]
        for positions, scores in self._score_groups(self._head, requests):
            part = [weighted[position] for position in positions]
            value, entropy_B = self._objective(part, scores, method, update)
            (sign * (value.own + value.cross)).backward()
            own_value += float(value.own.detach())
            cross_value += float(value.cross.detach())
            outcomes.extend(_row_outcomes(part, value, entropy_B, method, update))
        return own_value, cross_value, outcomes

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
        """Cosine between the gradients of J_homo and J_hete on this mini-batch; None where one of them is zero."""
        gradients = []
        for is_own in (True, False):
            self._clear_gradients()
            self._accumulate([item for item in weighted if item[0].is_own is is_own], method, update, sign=1.0)
            gradients.append({n: p.grad.double() for n, p in self._named.items() if p.grad is not None})
        own, cross = gradients
        norms = [math.sqrt(sum(float(g.square().sum()) for g in part.values())) for part in gradients]
        if min(norms) == 0.0:
            return None
        # In the parameters' order: a set's order, and with it the last bits of the sum, differs between processes.
        shared = [name for name in own if name in cross]
        return sum(float((own[name] * cross[name]).sum()) for name in shared) / (norms[0] * norms[1])

    def _step(self) -> tuple[float, float]:
        """Clip, step, and copy master weights into the model; returns the norm before clipping and the rate."""
        rate = learning_rate(self._config, update=self.num_updates, total_updates=self._total_updates)
        for name, parameter in self._named.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self._masters:
                self._masters[name].grad = parameter.grad.float()
        trained = list((self._masters or self._named).values())
        norm = float(clip_grad_norm_(trained, self._config.max_grad_norm))
        if not math.isfinite(norm):
            raise EngineError(f"gradient norm is {norm} at update {self.num_updates}; lower optimizer.learning_rate")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        with torch.no_grad():
            for name, master in self._masters.items():
                self._named[name].copy_(master)
                master.grad = None
        self.num_updates += 1
        return norm, rate

    def offload(self, *, weights: bool = False) -> None:
        """Move optimizer state and master weights to host memory, on request all weights too; gradients are dropped.

        Whatever needs them afterwards brings them back by itself, but the sampler: see `onload`.
        """
        if not self._is_optimizer_away:
            move_data(self._masters.values(), self._host)
            move_state(self._optimizer, self._host)
            self._clear_gradients()
            self._is_optimizer_away = True
        if weights and not self._are_weights_away:
            move_data(self._all_weights(), self._host)
            self._are_weights_away = True
        release_unused(self._device)

    def onload(self, *, optimizer: bool = True) -> None:
        """Bring the weights back to the device, and what an update needs besides unless told otherwise."""
        if self._are_weights_away:
            move_data(self._all_weights(), self._device)
            self._are_weights_away = False
        if optimizer and self._is_optimizer_away:
            move_data(self._masters.values(), self._device)
            move_state(self._optimizer, self._device)
            self._is_optimizer_away = False

    def _all_weights(self) -> Iterator[Tensor]:
        """Of the model and of a reference of its own."""
        yield from self.model.parameters()
        if self._reference is not None and self._reference.model is not self.model:
            yield from self._reference.model.parameters()

    def digest(self) -> str:
        """SHA-256 (hex) of the trained weights: the fp32 masters where there are any."""
        return weights_digest(iter((self._masters or self._named).items()))

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's moments and step counts, and the fp32 master weights, by parameter name.

        Where only some weights are trained (adapters), these as well: a model folder holds them merged into the others.
        """
        tensors = {f"master.{name}": master for name, master in self._masters.items()}
        if self._is_partial:
            tensors |= {f"trained.{name}": parameter.detach() for name, parameter in self._named.items()}
        for name, parameter in (self._masters or self._named).items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Inverse of `optimizer_tensors`.

        Raises:
            EngineError: the tensors belong to another model.
        """
        self.onload()
        self._optimizer.state.clear()
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            if name not in self._named:
                raise EngineError(f"optimizer state names {name!r}, which this model does not have; wrong checkpoint")
            if kind in ("master", "trained"):
                with torch.no_grad():
                    (self._masters if kind == "master" else self._named)[name].copy_(value)
                continue
            parameter = (self._masters or self._named)[name]
            self._optimizer.state[parameter][kind] = value.to(self._device).clone()
        self.num_updates = num_updates


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
            value.is_stopped_B.tolist(),
            value.kl_B.tolist(),
            entropy_B.tolist(),
            strict=True,
        )
    ]
