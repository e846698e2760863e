"""Responses one by one, for tests that make them up; the library holds them as columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hacpo_core.columns import Ragged
from hacpo_core.records import Verdict
from hacpo_core.responses import ORDINARY, Responses


@dataclass(frozen=True)
class Rollout:
    """One response."""

    problem_id: str
    agent: str
    index: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str
    tag: str = ORDINARY
    reward: float | None = 1.0


def responses_of(rollouts: Sequence[Rollout], *, step: int = 1) -> Responses:
    """All of one agent, with verdicts."""
    verdicts = tuple(
        Verdict("unscored" if r.reward is None else "correct" if r.reward else "wrong", r.reward, None, 0.0)
        for r in rollouts
    )
    return Responses(
        step=step,
        agent=rollouts[0].agent if rollouts else "",
        problem_id=tuple(rollout.problem_id for rollout in rollouts),
        sample_R=np.array([rollout.index for rollout in rollouts], dtype=np.int64),
        tag=tuple(rollout.tag for rollout in rollouts),
        policy_version_R=np.zeros(len(rollouts), np.int64),
        prompt_ids=Ragged.of([rollout.prompt_ids for rollout in rollouts], np.int32),
        token_ids=Ragged.of([rollout.token_ids for rollout in rollouts], np.int32),
        logprobs=Ragged.of([rollout.logprobs for rollout in rollouts], np.float32),
        text=tuple(rollout.text for rollout in rollouts),
        finish_reason=tuple(rollout.finish_reason for rollout in rollouts),
        verdicts=verdicts,
    )
