"""Mini-batches of one learner in one step: rows of responses, in the learner's tokens, stored as columns.

Shapes: B row of a mini-batch, R response of one agent in one step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hacpo_core.columns import Positions, Ragged, TokenRows
from hacpo_core.data.tokens.retokenize import Retokenizer, SharedResponses, without_eos
from hacpo_core.methods.base import Estimate, Objective, RowKind
from hacpo_core.methods.checked_objective import checked_row_weights
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
        old_logprobs: float32, nats, for each token of the learner's own rows; empty for foreign rows.
        token_advantages: float64, the teacher's term of the advantage for each token of own rows; else empty.
        sampler_logprobs: the sampler's log-probabilities of the same tokens, if the objective corrects; else empty.
        log_center_B: see `LossRows.log_center_B`; set by the learner.
        num_own_tokens: tokens of the whole mini-batch's rows that are not foreign; `take` keeps it.
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
    token_advantages: Ragged
    sampler_logprobs: Ragged
    log_center_B: NDArray[np.float64] | None = None
    num_own_tokens: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.keys)

    @property
    def num_tokens(self) -> int:
        """Tokens of all responses."""
        return len(self.tokens.responses.value_N)

    def take(self, rows: Positions) -> Minibatch:
        """Some rows, in that order."""
        at = np.asarray(rows, np.int64)
        columns = ("kind_B", "source_B", "advantage_B", "weight_B", "row_weight_B", "old_mean_logprob_B")
        return replace(
            self,
            keys=tuple(self.keys[row] for row in at),
            tokens=self.tokens.take(at),
            old_logprobs=self.old_logprobs.take(at),
            token_advantages=self.token_advantages.take(at),
            sampler_logprobs=self.sampler_logprobs.take(at),
            log_center_B=None if self.log_center_B is None else self.log_center_B[at],
            **{name: getattr(self, name)[at] for name in columns},
        )


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Counts of what the construction of mini-batches did to the responses.

    `num_unscored` and `num_empty` count responses that were left out, own ones included. `num_truncated` counts
    cross-agent responses that were cut at the learner's limit. `num_control_dropped` counts control tokens that were
    removed: other agents' texts spelled them, and the learner's tokenizer cannot encode them as plain text.
    `length_drift_mean` is the mean of (learner tokens - source tokens) / source tokens over retokenised responses, 0 if
    there are none.
    """

    num_unscored: int = 0
    num_truncated: int = 0
    num_empty: int = 0
    length_drift_mean: float = 0.0
    num_control_dropped: int = 0


@dataclass(frozen=True, slots=True)
class LearnerBatch:
    """A learner's mini-batches, and the counts of their construction."""

    minibatches: tuple[Minibatch, ...]
    counts: BatchCounts


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
        token_advantages: returns the teacher's terms for the learner's tokens of a step; None without teachers.
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
    token_advantages: Callable[[int], Ragged] | None
    drops_eos: bool

    def kind(self, key: RowKey) -> RowKind:
        """The row's origin."""
        if key.agent != self.learner:
            return RowKind.FOREIGN
        return RowKind.OWN if key.step == self.step else RowKind.OLD


def learner_batch(
    reader: RowReader, batches: Sequence[Sequence[RowKey]], objective: Objective, *, max_response_tokens: int
) -> LearnerBatch:
    """Build a learner's mini-batches. Unscored and empty responses are left out and counted.

    Args:
        reader: source of the rows' data.
        batches: keys of each mini-batch's rows, in order.
        objective: determines the row weights.
        max_response_tokens: the constant of seq_mean_token_sum_norm.

    Raises:
        KeyError: a key has no response or no estimate.
    """
    of_source: dict[tuple[int, str], list[RowKey]] = {}
    for key in dict.fromkeys(itertools.chain.from_iterable(batches)):
        of_source.setdefault((key.step, key.agent), []).append(key)
    rows: dict[RowKey, _Row] = {}
    shared: list[SharedResponses] = []
    for (step, agent), keys in of_source.items():
        responses = reader.responses(step, agent)
        assert responses.verdicts is not None, "training follows verification"
        positions = responses.positions()
        taken = np.sort(np.array([positions[key] for key in keys], dtype=np.int64))
        taken = taken[responses.verdicts.is_scored_R[taken]]
        of_row = list(positions)
        scored = (of_row[row] for row in taken.tolist())
        rows |= zip(scored, _rows(reader, responses, step, agent, taken, shared), strict=True)
    num_unscored = num_empty = 0
    minibatches = []
    for batch in batches:
        with_reward = [key for key in batch if key in rows]
        present = {key: rows[key] for key in with_reward if len(rows[key].token_ids)}
        num_unscored += len(batch) - len(with_reward)
        num_empty += len(with_reward) - len(present)
        minibatches.append(_minibatch(reader, present, objective, max_response_tokens))
    drifts = np.concatenate([np.empty(0), *(part.length_drift_R for part in shared if not part.is_passed_through)])
    counts = BatchCounts(
        num_unscored=num_unscored,
        num_truncated=sum(int(part.is_truncated_R.sum()) for part in shared),
        num_empty=num_empty,
        length_drift_mean=float(drifts.mean()) if len(drifts) else 0.0,
        num_control_dropped=sum(part.num_control_dropped for part in shared),
    )
    return LearnerBatch(tuple(minibatches), counts)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row's values before they are collected into columns; `token_ids` is empty if no token is left."""

    prompt_ids: Any
    token_ids: NDArray[np.int32]
    old_logprobs: NDArray[np.float32]
    token_advantages: NDArray[np.float64]
    sampler_logprobs: NDArray[np.float32]
    advantage: float
    weight: float


def _rows(
    reader: RowReader,
    responses: Responses,
    step: int,
    agent: str,
    rows: NDArray[np.int64],
    shared: list[SharedResponses],
) -> list[_Row]:
    """Some responses of one agent and step as rows of the learner; converted responses are appended to `shared`."""
    is_own = agent == reader.learner
    taken = responses if len(rows) == len(responses) else responses.take(rows)
    old = taken.behaviour_logprobs
    if reader.drops_eos:
        old = old.cut([len(without_eos(ids, reader.eos_ids[agent])) for ids in taken.token_ids])
    if is_own:
        token_ids = taken.token_ids.cut(old.lengths) if reader.drops_eos else taken.token_ids
        prompts: Sequence[Any] = list(taken.prompt_ids)
    else:
        shared.append(reader.retokenizers[agent].convert(taken))
        token_ids = shared[-1].token_ids
        prompts = [reader.prompt_ids(problem_id) for problem_id in taken.problem_id]
    carried = reader.estimate(step).carried[reader.learner][agent]
    advantages, weights = carried.advantage_R[rows].tolist(), carried.weight_R[rows].tolist()
    added: Iterable[NDArray[np.float64]] = itertools.repeat(np.empty(0), len(rows))
    if is_own and reader.token_advantages is not None:
        added = reader.token_advantages(step).take(rows)
    columns = zip(prompts, token_ids, old, added, taken.logprobs, advantages, weights, strict=True)
    return [
        _Row(prompt, ids if len(olds) else ids[:0], olds, adds[: len(olds)], sampled[: len(olds)], advantage, weight)
        for prompt, ids, olds, adds, sampled, advantage, weight in columns
    ]


def _minibatch(
    reader: RowReader, rows: Mapping[RowKey, _Row], objective: Objective, max_response_tokens: int
) -> Minibatch:
    tokens = TokenRows.of([row.prompt_ids for row in rows.values()], [row.token_ids for row in rows.values()])
    kind_B = np.array([reader.kind(key) for key in rows], dtype=np.int64)
    source_B = np.array([reader.agents.index(key.agent) for key in rows], dtype=np.int64)
    old = [row.old_logprobs for row in rows.values()]
    is_own = (kind_B != RowKind.FOREIGN).tolist()
    corrects = objective.correction != "none"
    num_kept = [
        len(row.sampler_logprobs) if own and corrects else 0 for row, own in zip(rows.values(), is_own, strict=True)
    ]
    sampler = [row.sampler_logprobs[:kept] for row, kept in zip(rows.values(), num_kept, strict=True)]
    weight_B = checked_row_weights(
        objective,
        torch.from_numpy(source_B),
        torch.from_numpy(tokens.responses.lengths),
        max_tokens=max_response_tokens,
    )
    return Minibatch(
        keys=tuple(rows),
        tokens=tokens,
        kind_B=kind_B,
        source_B=source_B,
        advantage_B=np.array([row.advantage for row in rows.values()], dtype=np.float64),
        weight_B=np.array([row.weight for row in rows.values()], dtype=np.float64),
        row_weight_B=weight_B.numpy(),
        old_mean_logprob_B=Ragged.of(old, np.float32).means(),
        old_logprobs=Ragged.of([each if own else each[:0] for each, own in zip(old, is_own, strict=True)], np.float32),
        token_advantages=Ragged.of([row.token_advantages for row in rows.values()], np.float64),
        sampler_logprobs=Ragged.of(sampler, np.float32),
        num_own_tokens=int(tokens.responses.lengths[is_own].sum()),
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
    weight_B = objective.row_weights(
        torch.zeros(num_rows, dtype=torch.long),
        torch.from_numpy(tokens.responses.lengths),
        max_tokens=int(tokens.responses.lengths.max()),
    )
    return Minibatch(
        keys=tuple(RowKey(1, "", "", row) for row in range(num_rows)),
        tokens=tokens,
        kind_B=np.full(num_rows, RowKind.OWN),
        source_B=np.zeros(num_rows, np.int64),
        advantage_B=np.asarray(advantage_B, dtype=np.float64),
        weight_B=np.ones(num_rows),
        row_weight_B=weight_B.numpy(),
        old_mean_logprob_B=old_logprobs.means(),
        old_logprobs=old_logprobs,
        token_advantages=Ragged.from_lengths(np.empty(0), np.zeros(num_rows, np.int64)),
        sampler_logprobs=Ragged.from_lengths(np.empty(0, np.float32), np.zeros(num_rows, np.int64)),
        num_own_tokens=len(tokens.responses.value_N),
    )
