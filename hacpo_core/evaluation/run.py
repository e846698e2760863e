"""Greedy accuracy of one agent on one split, committed like any other phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

from hacpo_core.algorithm import Experiment
from hacpo_core.ledger import PhaseCost
from hacpo_core.records import Problem
from hacpo_core.stopwatch import Stopwatch

EvaluationSplit = Literal["dev", "test"]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Accuracy over scored responses, and the shares that were cut by the limit or left unscored."""

    split: str
    agent: str
    step: int
    accuracy: float
    num_problems: int
    cut_share: float
    unscored_share: float
    cost: PhaseCost


def phase_kind(split: EvaluationSplit) -> str:
    """Kind of the evaluation phase of a split."""
    return f"evaluate.{split}"


def evaluate(x: Experiment, step: int, k: str, split: EvaluationSplit, problems: Sequence[Problem]) -> None:
    """Answer every problem once, greedily, with agent k as it is after `step`, and verify.

    Every response is committed beside the result, in `evaluate.<split>.<agent>.parquet`.
    """
    phase = f"{phase_kind(split)}.{k}"
    if x.ledger.store.is_intact(step, phase):
        return
    agent = x.agent_at(k, step)
    with Stopwatch(x.config.engine.device) as watch:
        rollouts = agent.answer(problems, max_tokens=x.config.evaluate.max_response_tokens)
        verdicts = x.verifier.verify([r.text for r in rollouts], [problem.answer for problem in problems])
    scored = [verdict.reward for verdict in verdicts if verdict.reward is not None]
    result = EvaluationResult(
        split=split,
        agent=k,
        step=step,
        accuracy=sum(reward > 0 for reward in scored) / len(scored) if scored else float("nan"),
        num_problems=len(problems),
        cut_share=sum(r.finish_reason == "length" for r in rollouts) / len(rollouts),
        unscored_share=1.0 - len(scored) / len(verdicts),
        cost=watch.cost(sum(len(r.token_ids) for r in rollouts)),
    )
    frame = pd.DataFrame(
        {
            "problem_id": [problem.id for problem in problems],
            "question": [problem.messages[-1].content for problem in problems],
            "answer": [problem.answer for problem in problems],
            "text": [r.text for r in rollouts],
            "finish_reason": [r.finish_reason for r in rollouts],
            "status": [verdict.status for verdict in verdicts],
            "extracted": [verdict.extracted for verdict in verdicts],
        }
    )
    outputs = {f"{phase}.parquet": frame, f"{phase}.json": asdict(result)}
    x.ledger.store.commit(step, phase, outputs)


def read_result(x: Experiment, step: int, k: str, split: EvaluationSplit) -> EvaluationResult:
    """A committed result."""
    phase = f"{phase_kind(split)}.{k}"
    value = x.ledger.store.read_value(step, phase, f"{phase}.json")
    return EvaluationResult(**{**value, "cost": PhaseCost(**value["cost"])})
