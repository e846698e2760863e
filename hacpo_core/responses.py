"""Responses of one agent in one step, or in one shard of an evaluation, as columns.

Shapes: R response, N token of all responses, F reward function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from hacpo_core.columns import Positions, Ragged
from hacpo_core.records import RowKey, Verdict

ORDINARY = ""
"""tag of a response sampled in the usual way; only these count in capabilities and group statistics"""
SEARCHED = "search"
"""tag of a searched response"""


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Verdicts of responses.

    Attributes:
        status: "correct", "wrong", "partial" or "unscored", see `Verdict`.
        raw_reward_R: verified reward in [0, 1]; nan where unscored.
        extracted: the answer found in the text, None if there was none.
        seconds_R: duration of the verification.
        reason: why a response is unscored, else "".
        parts_RF: reward of each reward function; nan where unscored, None with one function.
    """

    status: tuple[str, ...]
    raw_reward_R: NDArray[np.float64]
    extracted: tuple[str | None, ...]
    seconds_R: NDArray[np.float64]
    reason: tuple[str, ...]
    parts_RF: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        """Make the arrays read-only, because several phases share them."""
        for column in (self.raw_reward_R, self.seconds_R, self.parts_RF):
            if column is not None:
                column.setflags(write=False)

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Verdicts:
        """From one verdict per response."""
        num_functions = max((len(v.parts) for v in verdicts), default=0)
        parts = [v.parts or (math.nan,) * num_functions for v in verdicts]
        return cls(
            status=tuple(v.status for v in verdicts),
            raw_reward_R=np.array([v.reward for v in verdicts], dtype=np.float64),  # None becomes nan
            extracted=tuple(v.extracted for v in verdicts),
            seconds_R=np.array([v.seconds for v in verdicts], dtype=np.float64),
            reason=tuple(v.reason for v in verdicts),
            parts_RF=np.array(parts, dtype=np.float64) if num_functions else None,
        )

    def __len__(self) -> int:
        """Number of responses."""
        return len(self.status)

    @property
    def is_scored_R(self) -> NDArray[np.bool_]:
        """True where there is a reward."""
        return ~np.isnan(self.raw_reward_R)


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """One agent's responses of one step; the key of a response is (step, agent, problem, sample).

    Attributes:
        step: 1-based.
        agent: its name.
        problem_id: of each response.
        sample_R: 0-based number among the agent's responses to that problem in that step.
        tag: how it was sampled; `ORDINARY` for most.
        policy_version_R: number of update phases applied to the policy that sampled it.
        prompt_ids: int32, in the agent's tokens.
        token_ids: int32, including the final EOS of finished responses.
        logprobs: float32, nats, of these tokens under the policy, as reported by the sampler.
        text: without special tokens.
        finish_reason: "stop", or "length" if the response was cut at the limit.
        num_sampled_R: tokens sampled for each response, including those discarded by a search; None if responses
            contain all sampled tokens.
        verdicts: None before verification.
    """

    step: int
    agent: str
    problem_id: tuple[str, ...]
    sample_R: NDArray[np.int64]
    tag: tuple[str, ...]
    policy_version_R: NDArray[np.int64]
    prompt_ids: Ragged
    token_ids: Ragged
    logprobs: Ragged
    text: tuple[str, ...]
    finish_reason: tuple[str, ...]
    num_sampled_R: NDArray[np.int64] | None = None
    verdicts: Verdicts | None = None

    def __len__(self) -> int:
        """Number of responses."""
        return len(self.problem_id)

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens, including those discarded by searches."""
        return len(self.token_ids.value_N) if self.num_sampled_R is None else int(self.num_sampled_R.sum())

    def row_keys(self) -> Iterator[RowKey]:
        """Key of each response."""
        for problem_id, sample in zip(self.problem_id, self.sample_R.tolist(), strict=True):
            yield RowKey(self.step, self.agent, problem_id, sample)

    def positions(self) -> dict[RowKey, int]:
        """Position of each response by its key."""
        return {key: row for row, key in enumerate(self.row_keys())}

    def ordinary_rewards(self) -> Iterator[tuple[str, float]]:
        """Problem and raw reward of each scored response without a tag."""
        assert self.verdicts is not None, "rewards exist after verification"
        for problem_id, tag, reward in zip(self.problem_id, self.tag, self.verdicts.raw_reward_R.tolist(), strict=True):
            if tag == ORDINARY and not math.isnan(reward):
                yield problem_id, reward

    def rewards_by_problem(self) -> dict[str, list[float]]:
        """Raw rewards of the scored responses without a tag, by problem."""
        rewards: dict[str, list[float]] = {}
        for problem_id, reward in self.ordinary_rewards():
            rewards.setdefault(problem_id, []).append(reward)
        return rewards

    def take(self, rows: Positions) -> Responses:
        """Some responses, in that order."""
        return replace(self, **{f.name: _take_rows(getattr(self, f.name), rows) for f in fields(self)})

    @classmethod
    def none(cls, step: int, agent: str) -> Responses:
        """No responses."""
        nothing = np.empty(0, np.int64)
        tokens, values = Ragged.of([], np.int32), Ragged.of([], np.float32)
        return cls(step, agent, (), nothing, (), nothing, tokens, tokens, values, (), ())

    @classmethod
    def joined(cls, parts: Sequence[Responses]) -> Responses:
        """The responses of all parts (at least one) of one agent and step, concatenated."""
        if len(parts) == 1:
            return parts[0]
        if any(part.num_sampled_R is not None for part in parts):
            parts = [
                part if part.num_sampled_R is not None else replace(part, num_sampled_R=part.token_ids.lengths)
                for part in parts
            ]
        return replace(parts[0], **{f.name: _joined([getattr(part, f.name) for part in parts]) for f in fields(cls)})


def _take_rows(column: Any, rows: Positions) -> Any:
    if isinstance(column, tuple):
        return tuple(column[row] for row in rows)
    if isinstance(column, Ragged):
        return column.take(rows)
    if isinstance(column, Verdicts):
        return replace(column, **{f.name: _take_rows(getattr(column, f.name), rows) for f in fields(column)})
    return column[np.asarray(rows, np.int64)] if isinstance(column, np.ndarray) else column


def _joined(columns: Sequence[Any]) -> Any:
    first = columns[0]
    if isinstance(first, tuple):
        return tuple(value for column in columns for value in column)
    if isinstance(first, Ragged):
        return Ragged.joined(columns)
    if isinstance(first, Verdicts):
        columns = [column for column in columns if len(column)] or columns[:1]  # those of no response have no parts
        first = columns[0]
        parts = {f.name: _joined([getattr(column, f.name) for column in columns]) for f in fields(first)}
        return Verdicts(**parts)
    return np.concatenate(columns) if isinstance(first, np.ndarray) else first


# --- conversion to and from Arrow tables ---


def as_arrow(responses: Responses) -> pyarrow.Table:
    """All columns except verdicts."""
    columns = _keys(responses) | {
        "tag": _strings(responses.tag),
        "policy_version": responses.policy_version_R,
        "prompt_ids": as_lists(responses.prompt_ids),
        "token_ids": as_lists(responses.token_ids),
        "logprobs": as_lists(responses.logprobs),
        "text": _strings(responses.text),
        "finish_reason": _strings(responses.finish_reason),
    }
    if responses.num_sampled_R is not None:
        columns["num_sampled"] = responses.num_sampled_R
    return pyarrow.table(columns)


def verdicts_as_arrow(responses: Responses) -> pyarrow.Table:
    """The verdicts, with the keys of their responses."""
    verdicts = responses.verdicts
    assert verdicts is not None, "verdicts exist after verification"
    columns = _keys(responses) | {
        "status": _strings(verdicts.status),
        "raw_reward": pyarrow.array(verdicts.raw_reward_R, from_pandas=True),  # nan becomes null
        "extracted": _strings(verdicts.extracted),
        "seconds": verdicts.seconds_R,
        "reason": _strings(verdicts.reason),
    }
    if verdicts.parts_RF is not None:
        num_rows, num_functions = verdicts.parts_RF.shape
        columns["parts"] = as_lists(Ragged.from_lengths(verdicts.parts_RF.ravel(), [num_functions] * num_rows))
    return pyarrow.table(columns)


def from_arrow(table: pyarrow.Table, *, step: int, agent: str) -> Responses:
    """Responses from a table of `as_arrow`."""
    return Responses(
        step=step,
        agent=agent,
        problem_id=tuple(table["problem_id"].to_pylist()),
        sample_R=table["sample"].to_numpy(),
        tag=tuple(table["tag"].to_pylist()),
        policy_version_R=table["policy_version"].to_numpy(),
        prompt_ids=as_ragged(table["prompt_ids"]),
        token_ids=as_ragged(table["token_ids"]),
        logprobs=as_ragged(table["logprobs"]),
        text=tuple(table["text"].to_pylist()),
        finish_reason=tuple(table["finish_reason"].to_pylist()),
        num_sampled_R=table["num_sampled"].to_numpy() if "num_sampled" in table.column_names else None,
    )


def verdicts_from_arrow(table: pyarrow.Table) -> Verdicts:
    """Verdicts from a table of `verdicts_as_arrow`."""
    return Verdicts(
        status=tuple(table["status"].to_pylist()),
        raw_reward_R=table["raw_reward"].to_numpy(),  # null becomes nan
        extracted=tuple(table["extracted"].to_pylist()),
        seconds_R=table["seconds"].to_numpy(),
        reason=tuple(table["reason"].to_pylist()),
        parts_RF=as_ragged(table["parts"]).value_N.reshape(len(table), -1) if "parts" in table.column_names else None,
    )


def _keys(responses: Responses) -> dict[str, Any]:
    return {
        "step": np.full(len(responses), responses.step),
        "agent": _strings([responses.agent] * len(responses)),
        "problem_id": _strings(responses.problem_id),
        "sample": responses.sample_R,
    }


def _strings(values: Sequence[str | None]) -> pyarrow.Array:
    return pyarrow.array(values, pyarrow.string())


def as_lists(column: Ragged) -> pyarrow.Array:
    """A ragged column as a column of lists."""
    return pyarrow.ListArray.from_arrays(pyarrow.array(column.edge.astype(np.int32)), pyarrow.array(column.value_N))


def as_ragged(column: pyarrow.ChunkedArray) -> Ragged:
    """A ragged column from a column of `as_lists`."""
    whole = column.combine_chunks()
    return Ragged.from_lengths(whole.flatten().to_numpy(), whole.value_lengths().to_numpy())
