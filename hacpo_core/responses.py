"""Responses of one agent in one step, or in one shard of an evaluation, as columns.

Shapes: R response, N token of all responses, F reward function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from hacpo_core.columns import Positions, Ragged, join_rows, take_rows
from hacpo_core.records import RowKey, Verdict, max_figures

ORDINARY = ""
"""tag of a response sampled in the usual way; only these count in capabilities and group statistics"""
SEARCHED = "search"
"""tag of a searched response"""


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
        logprobs: float32, nats, of these tokens under the policy, as reported by the sampler; the learner's where
            `rollout` scored them (found by a search, or for builders of old rows).
        text: without special tokens.
        finish_reason: "stop", or "length" if the response was cut at the limit.
        num_sampled_R: tokens sampled for each response, including those discarded by a search; None if responses
            contain all sampled tokens.
        sampler_figures: what the sampler measured, by metric; the maximum over its calls, ranks and rounds.
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
    sampler_figures: Mapping[str, float] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] | None = None

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

    @property
    def raw_reward_R(self) -> NDArray[np.float64]:
        """Verified reward of each response, in [0, 1]; nan where unscored."""
        assert self.verdicts is not None, "rewards exist after verification"
        return np.array([verdict.reward for verdict in self.verdicts], dtype=np.float64)  # None becomes nan

    @property
    def is_scored_R(self) -> NDArray[np.bool_]:
        """True where there is a reward."""
        return ~np.isnan(self.raw_reward_R)

    def ordinary_rewards(self) -> Iterator[tuple[str, float]]:
        """Problem and raw reward of each scored response without a tag."""
        for problem_id, tag, reward in zip(self.problem_id, self.tag, self.raw_reward_R.tolist(), strict=True):
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
        return take_rows(self, rows)

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
        return replace(join_rows(parts), sampler_figures=max_figures([part.sampler_figures for part in parts]))


# --- conversion to and from Arrow tables ---

_VERDICT_COLUMNS = {
    "status": ("status", pyarrow.string()),
    "raw_reward": ("reward", pyarrow.float64()),
    "extracted": ("extracted", pyarrow.string()),
    "seconds": ("seconds", pyarrow.float64()),
    "reason": ("reason", pyarrow.string()),
    "parts": ("parts", pyarrow.list_(pyarrow.float64())),
}
"""attribute of `Verdict` and type of each column"""


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
    assert responses.verdicts is not None, "verdicts exist after verification"
    columns = {
        name: pyarrow.array([getattr(verdict, of) for verdict in responses.verdicts], kind)
        for name, (of, kind) in _VERDICT_COLUMNS.items()
    }
    return pyarrow.table(_keys(responses) | columns)


def from_arrow(table: pyarrow.Table, *, step: int, agent: str, figures: Mapping[str, float]) -> Responses:
    """Responses from a table of `as_arrow`, and what the sampler measured."""
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
        sampler_figures=figures,
    )


def verdicts_from_arrow(table: pyarrow.Table) -> tuple[Verdict, ...]:
    """Verdicts from a table of `verdicts_as_arrow`."""
    columns = {of: table[name].to_pylist() for name, (of, _) in _VERDICT_COLUMNS.items()}
    columns["parts"] = [tuple(rewards) for rewards in columns["parts"]]
    return tuple(Verdict(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


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
