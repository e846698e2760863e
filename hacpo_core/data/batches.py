"""Mini-batches of one learner in one step: rows of responses, in the learner's tokens, stored as columns.

Shapes: B row of a mini-batch, R response of one agent in one step, N response token of all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hacpo_core.columns import Positions, Ragged, TokenRows, join_rows, take_rows
from hacpo_core.data.tokens.retokenize import Retokenizer, without_eos
from hacpo_core.methods.build import TrainedRows
from hacpo_core.methods.checks import checked_row_weights
from hacpo_core.methods.estimate import Estimate
from hacpo_core.methods.objective import Objective, RowKind
from hacpo_core.records import RowKey
from hacpo_core.responses import Responses


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """The rows of one update. Rows left out of the forward passes still count in the averages.

    Attributes:
        keys: the responses that the rows come from.
        tokens: int32, in the learner's tokens.
        kind_B: a `RowKind`.
        source_B: index of the agent that sampled the row.
        advantage_B, weight_B: from the estimate.
        row_weight_B: weight of the row in the mini-batch's objective, see `Objective.row_weights`.
        old_mean_logprob_B: mean log-probability, nats per token, under the policy that sampled the row, over that
            policy's tokens.
        old_logprobs: float32, nats, for each token of the learner's own rows; empty for foreign rows. The sampler's,
            unless the learner scores them.
        teacher_advantages: float64, the teacher's term of the advantage for each token of own rows; else empty.
        sampler_logprobs: of the same tokens, as stored with the responses.
        log_center_B: see `LossRows.log_center_B`; set by the learner.
        num_own_tokens: tokens of the whole mini-batch's rows that are not foreign; `take` keeps it.
        old_is_current: the old log-probabilities of own rows are those of the very pass that trains them; set by the
            learner for a step's first update.
    """

    keys: tuple[RowKey, ...]
    tokens: TokenRows
    kind_B: NDArray[np.int64]
    source_B: NDArray[np.int64]
    advantage_B: NDArray[np.float64]
    weight_B: NDArray[np.float64]
    row_weight_B: NDArray[np.float64]
    old_mean_logprob_B: NDArray[np.float64]
    old_logprobs: Ragged
    teacher_advantages: Ragged
    sampler_logprobs: Ragged
    log_center_B: NDArray[np.float64] | None = None
    num_own_tokens: int = 0
    old_is_current: bool = False

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.keys)

    @property
    def num_tokens(self) -> int:
        """Tokens of all responses."""
        return len(self.tokens.responses.value_N)

    @classmethod
    def joined(cls, parts: Sequence[Minibatch]) -> Minibatch:
        """The rows of all parts (at least one), concatenated."""
        return join_rows(parts)

    def take(self, rows: Positions) -> Minibatch:
        """Some rows, in that order."""
        return take_rows(self, rows)

    def with_old_logprobs(self, rows: Positions, logprobs: Ragged) -> Minibatch:
        """The same rows, some of them with other old log-probabilities (float32, nats)."""
        at = np.asarray(rows, np.int64)
        old, old_mean_B = list(self.old_logprobs), self.old_mean_logprob_B.copy()
        for row, values in zip(at.tolist(), logprobs, strict=True):
            old[row] = values
        old_mean_B[at] = logprobs.means()
        return replace(self, old_logprobs=Ragged.of(old, np.float32), old_mean_logprob_B=old_mean_B)

    def with_old_of_pass(self, logprob_N: torch.Tensor) -> Minibatch:
        """The same rows, those sampled in this step with the values of the pass itself as old log-probabilities."""
        own_B = np.flatnonzero(self.kind_B == RowKind.OWN)
        current = Ragged(logprob_N.detach().float().cpu().numpy(), self.tokens.responses.edge)
        return self.with_old_logprobs(own_B, current.take(own_B)) if len(own_B) else self

    def trained_rows(self, update: int, columns: Mapping[str, torch.Tensor]) -> TrainedRows:
        """What update m measured of these rows.

        Args:
            update: m.
            columns: by name, one number per row.
        """
        own_B = np.flatnonzero(self.kind_B != RowKind.FOREIGN)
        difference_B, bias_B = np.zeros(len(self)), np.zeros(len(self))
        if len(own_B):
            bias_N = self.old_logprobs.value_N - self.sampler_logprobs.value_N
            for column_B, value_N in ((difference_B, np.abs(bias_N)), (bias_B, bias_N)):
                column_B[own_B] = Ragged(value_N, self.old_logprobs.edge).take(own_B).means()
        figures = {name: value_B.detach().double().cpu().numpy() for name, value_B in columns.items()}
        return TrainedRows(
            key_B=self.keys,
            kind_B=self.kind_B,
            update_B=np.full(len(self), update),
            advantage_B=self.advantage_B,
            weight_B=self.weight_B,
            num_tokens_B=self.tokens.responses.lengths,
            figures=figures | {"sampler_difference": difference_B, "sampler_bias": bias_B},
        )


@dataclass(frozen=True, slots=True)
class RowReader:
    """Sources of the data of a learner's rows.

    Attributes:
        learner: the agent that trains on the rows.
        agents: all agents' names, in order.
        step: the current one.
        responses: returns an agent's verified responses of a step.
        estimate: returns the estimate of a step.
        prompt_ids: returns a problem's prompt under the learner's tokenizer and chat template, for other agents'
            responses. The learner's own responses keep the prompt from which they were sampled.
        retokenizers: from each other agent's tokens to the learner's.
        eos_ids: EOS ids of every source.
        teacher_advantages: returns the teacher's terms for the learner's tokens of a step; None without teachers.
        drops_eos: remove the EOS at the end of own responses, and its log-probability for every source
            (`retokenize.eos: drop`). A response that consists of EOS only keeps it.
    """

    learner: str
    agents: tuple[str, ...]
    step: int
    responses: Callable[[int, str], Responses]
    estimate: Callable[[int], Estimate]
    prompt_ids: Callable[[str], Sequence[int]]
    retokenizers: Mapping[str, Retokenizer]
    eos_ids: Mapping[str, frozenset[int]]
    teacher_advantages: Callable[[int], Ragged] | None
    drops_eos: bool

    def kind(self, step: int, agent: str) -> RowKind:
        """The origin of a row that an agent sampled in a step."""
        if agent != self.learner:
            return RowKind.FOREIGN
        return RowKind.OWN if step == self.step else RowKind.OLD


def learner_minibatches(
    reader: RowReader, batches: Sequence[Sequence[RowKey]], objective: Objective, *, max_response_tokens: int
) -> tuple[list[Minibatch], dict[str, float]]:
    """A learner's mini-batches, without unscored, empty and masked responses, and metrics of their construction.

    Args:
        reader: source of the rows' data.
        batches: keys of each mini-batch's rows, in order.
        objective: determines the row weights and the masked rows.
        max_response_tokens: limit of other agents' responses in the learner's tokens, and the constant of
            seq_mean_token_sum_norm.
    """
    all_keys = list(itertools.chain.from_iterable(batches))
    chosen = frozenset(all_keys)
    limit, drifts, num_truncated = max_response_tokens, list[NDArray[np.float64]](), 0
    scored, masked, parts = set[RowKey](), set[RowKey](), list[Minibatch]()
    for step, agent in dict.fromkeys((key.step, key.agent) for key in all_keys):
        responses = reader.responses(step, agent)
        rows = np.array([row for row, key in enumerate(responses.row_keys()) if key in chosen], np.int64)
        rows = rows[responses.is_scored_R[rows]]
        responses = responses if len(rows) == len(responses) else responses.take(rows)
        scored.update(responses.row_keys())
        lengths, converted = _lengths(reader, responses), None
        if agent != reader.learner:
            converted = reader.retokenizers[agent].convert(responses)
            num_truncated += int((converted.lengths > limit).sum())
            if not reader.retokenizers[agent].is_pass_through:
                drifts.append((converted.lengths - lengths) / np.maximum(lengths, 1))
        part, is_masked_B = _rows(reader, responses, rows, lengths, converted, objective, limit)
        masked.update(itertools.compress(part.keys, is_masked_B.tolist()))
        parts.append(part.take(np.flatnonzero(~is_masked_B)) if is_masked_B.any() else part)
    table = Minibatch.joined(parts)
    place = {key: row for row, key in enumerate(table.keys)}
    rows_of = [[place[key] for key in batch if key in place] for batch in batches]
    minibatches = [_weighed(table.take(rows), objective, limit) for rows in rows_of]
    num_scored, num_masked = (sum(key in part for key in all_keys) for part in (scored, masked))
    num_rows = sum(map(len, minibatches))
    figures = {
        "text/length_drift": float(np.concatenate(drifts).mean()) if drifts else 0.0,
        "text/num_truncated": num_truncated,
        "text/num_empty": num_scored - num_masked - num_rows,
        "update/num_unscored": len(all_keys) - num_scored,
    }
    if objective.mask_truncated != "none":
        figures["update/masked_share"] = num_masked / max(1, num_rows + num_masked)
    return minibatches, figures


def _lengths(reader: RowReader, responses: Responses) -> NDArray[np.int64]:
    """Numbers of the responses' own tokens that count: without a final EOS where it is dropped."""
    if not reader.drops_eos:
        return responses.token_ids.lengths
    return np.array([len(without_eos(ids, reader.eos_ids[responses.agent])) for ids in responses.token_ids], np.int64)


def _rows(
    reader: RowReader,
    responses: Responses,
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    converted: Ragged | None,
    objective: Objective,
    limit: int,
) -> tuple[Minibatch, NDArray[np.bool_]]:
    """Responses of one agent and step as rows of the learner, empty ones left out, and which of them are masked.

    Args:
        reader: source of the rows' data.
        responses: some of the step's.
        rows: their positions in all of the step.
        lengths: as `_lengths`.
        converted: another agent's responses in the learner's tokens; None: they are the learner's own.
        objective: determines the masked rows.
        limit: of the learner's tokens.
    """
    step, agent, is_own = responses.step, responses.agent, converted is None
    old_logprobs, zero_lengths = responses.logprobs.cut(lengths), np.zeros(len(rows), np.int64)
    is_cut_R = np.array([reason == "length" for reason in responses.finish_reason], dtype=bool)
    if converted is None:
        token_ids, prompts = responses.token_ids.cut(lengths), list[Any](responses.prompt_ids)
    else:
        token_ids = converted.cut(np.minimum(converted.lengths, limit))
        is_cut_R = is_cut_R | (converted.lengths > limit)
        prompts = [reader.prompt_ids(problem_id) for problem_id in responses.problem_id]
    teacher_advantages = Ragged.from_lengths(np.empty(0), zero_lengths)
    if is_own and reader.teacher_advantages is not None:
        teacher_advantages = reader.teacher_advantages(step).take(rows).cut(old_logprobs.lengths)
    estimate = reader.estimate(step)
    is_kept_R = (token_ids.lengths > 0) & (old_logprobs.lengths > 0)
    kept_rows = np.flatnonzero(is_kept_R)
    old_logprobs = old_logprobs.take(kept_rows)
    part = Minibatch(
        keys=tuple(itertools.compress(responses.row_keys(), is_kept_R.tolist())),
        tokens=TokenRows.of([prompts[row] for row in kept_rows.tolist()], token_ids.take(kept_rows)),
        kind_B=np.full(len(kept_rows), reader.kind(step, agent), dtype=np.int64),
        source_B=np.full(len(kept_rows), reader.agents.index(agent), dtype=np.int64),
        advantage_B=estimate.advantages[reader.learner][agent][rows[kept_rows]],
        weight_B=estimate.weight_R(reader.learner, agent)[rows[kept_rows]],
        row_weight_B=np.zeros(len(kept_rows)),
        old_mean_logprob_B=old_logprobs.means(),
        old_logprobs=old_logprobs if is_own else old_logprobs.cut(zero_lengths[kept_rows]),
        teacher_advantages=teacher_advantages.take(kept_rows),
        sampler_logprobs=old_logprobs if is_own else old_logprobs.cut(zero_lengths[kept_rows]),
    )
    return part, objective.masked_rows(is_cut_R[kept_rows], part.advantage_B * part.weight_B)


def _weighed(rows: Minibatch, objective: Objective, max_response_tokens: int) -> Minibatch:
    """The rows as one mini-batch: with the objective's weights, and no prompts of other rows."""
    weight_B = checked_row_weights(
        objective,
        torch.from_numpy(rows.source_B),
        torch.from_numpy(rows.tokens.responses.lengths),
        max_tokens=max_response_tokens,
    )
    is_own_B = rows.kind_B != RowKind.FOREIGN
    return replace(
        rows,
        tokens=rows.tokens.compacted(),
        row_weight_B=weight_B.numpy(),
        num_own_tokens=int(rows.tokens.responses.lengths[is_own_B].sum()),
    )


def own_minibatch(
    tokens: TokenRows, old_logprobs: Ragged, advantage_B: Sequence[float] | NDArray[np.float64], objective: Objective
) -> Minibatch:
    """A mini-batch of own rows only, for trials and measurements.

    Args:
        tokens: prompts and responses.
        old_logprobs: nats, of the responses' tokens.
        advantage_B: of each row.
        objective: determines the row weights.
    """
    num_rows = len(tokens)
    nothing = np.zeros(num_rows, np.int64)
    rows = Minibatch(
        keys=tuple(RowKey(1, "", "", row) for row in range(num_rows)),
        tokens=tokens,
        kind_B=np.full(num_rows, RowKind.OWN),
        source_B=nothing,
        advantage_B=np.asarray(advantage_B, dtype=np.float64),
        weight_B=np.ones(num_rows),
        row_weight_B=np.zeros(num_rows),
        old_mean_logprob_B=old_logprobs.means(),
        old_logprobs=old_logprobs,
        teacher_advantages=Ragged.from_lengths(np.empty(0), nothing),
        sampler_logprobs=old_logprobs,
    )
    return _weighed(rows, objective, int(tokens.responses.lengths.max()))
