"""Results of an experiment's evaluations as pandas tables, for users, reports and dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hacpo_core.errors import StoreError
from hacpo_core.evaluation.results import intact_results, read_result, result_phase, shard_kind
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # see hacpo_core.store.steps
    import pandas as pd

_OF_PLACE, _OF_ESTIMATE = ("step", "benchmark", "agent"), ("metric", "value", "low", "high")
_OF_RESULT = ("num_problems", "num_samples", "cut_share", "unscored_share")
_RESPONSES = [
    *("problem_id", "sample", "question", "answer", "text", "num_tokens"),
    *("finish_reason", "status", "reward", "extracted"),
]


def read_evaluations(root: Path) -> pd.DataFrame:
    """Every metric of every complete evaluation.

    Args:
        root: folder of the experiment.

    Returns:
        long form: step, benchmark, agent, metric ("avg@1", "best@30", "bootstrap_best@30", "pass@8", ...),
        value, low, high (95 % interval over problems), num_problems, num_samples, cut_share,
        unscored_share.
    """
    import pandas as pd

    rows = [
        [
            *(getattr(result, name) for name in _OF_PLACE),
            *(getattr(estimate, name) for name in _OF_ESTIMATE),
            *(getattr(result, name) for name in _OF_RESULT),
        ]
        for result in intact_results(root)
        for estimate in result.estimates
    ]
    return pd.DataFrame(rows, columns=[*_OF_PLACE, *_OF_ESTIMATE, *_OF_RESULT])


def read_responses(
    root: Path, *, step: int, benchmark: str, agent: str, columns: Sequence[str] = _RESPONSES
) -> pd.DataFrame:
    """Every response of one complete evaluation, in the benchmark's order.

    Args:
        root: folder of the experiment.
        step: training step after which the agent was evaluated; 0: before training.
        benchmark: its name.
        agent: its name.
        columns: some of those below.

    Returns:
        problem_id, sample, question, answer, text, num_tokens, finish_reason, status, reward (nan where unscored),
        extracted (missing if no answer was found).

    Raises:
        StoreError: there is no such evaluation.
    """
    import pandas as pd

    store, phase = StepStore(root), result_phase(benchmark, agent)
    if phase not in store.committed(step):
        evaluations = sorted(
            {(result.step, result.benchmark) for result in intact_results(root) if result.agent == agent}
        )
        evaluation_names = ", ".join(f"step {step} {name}" for step, name in evaluations) or "none"
        raise StoreError(
            f"{root} has no evaluation of {agent} on {benchmark} after step {step}; it has {evaluation_names}"
        )
    frames = []
    for first, end in read_result(store, step, phase).shards:
        shard = f"{shard_kind(benchmark, range(first, end))}.{agent}"
        frames.append(store.read_table(step, shard, f"{shard}.parquet", columns=columns))
    return pd.concat(frames, ignore_index=True)
