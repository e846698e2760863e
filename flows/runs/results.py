"""Results of an experiment, as a record and as tables; does not import torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.records.files import experiments_dir
from flows.records.gridfile import GridRecord
from flows.records.progress import Spent
from flows.records.states import RESULT_FILE
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.results import EvaluationResult, read_result, result_phase
from hacpo_core.evaluation.stopping import last_step
from hacpo_core.files import read_json

if TYPE_CHECKING:  # pandas takes 0.2 s, and Experiment imports torch
    import pandas as pd

    from hacpo_core.experiment import Experiment

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """Result of a complete experiment: its folder, and one row per agent (`result_table`)."""

    id: str
    root: Path
    table: list[dict[str, Any]]
    digests: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def read_final(root: Path) -> ExperimentResult | None:
    """Result of the complete experiment in this folder, None for any other."""
    path = root / RESULT_FILE
    if not path.is_file():
        return None
    try:
        return ExperimentResult(root=root, **read_json(path))
    except StoreError:
        _log.warning("%s is corrupt and will be written again from the step store", path)
        return None


def grid_table(record: GridRecord, runs_dir: Path) -> pd.DataFrame:
    """Results of a grid's complete cells, in its order: rows of result tables with the grid's names, and `run`."""
    import pandas as pd

    finals = {name: read_final(experiments_dir(runs_dir) / name) for name in {c.experiment for c in record.cells}}
    rows = []
    for cell in record.cells:
        final = finals[cell.experiment]
        names = {"pair": cell.pair, "method": cell.method, "label": cell.label, "seed": cell.seed}
        names["run"] = cell.experiment
        rows += [row | names for row in (final.table if final is not None else []) if row["agent"] == cell.agent]
    return pd.DataFrame(rows, columns=None if rows else ["pair", "method", "label", "seed", "agent", "run"])


def result_values(result: EvaluationResult) -> dict[str, float]:
    """An evaluation as metrics: `evaluate/<benchmark>_accuracy` is avg@k, others are `..._<kind>_at_<k>`."""
    values = {}
    for estimate in result.estimates:
        kind, _, k = estimate.metric.partition("@")
        name = "accuracy" if kind == "avg" else f"{kind}_at_{k}"
        values[f"evaluate/{result.benchmark}_{name}"] = estimate.value
    values[f"evaluate/{result.benchmark}_cut_share"] = result.cut_share
    values[f"evaluate/{result.benchmark}_unscored_share"] = result.unscored_share
    return values


def result_table(experiment: Experiment) -> pd.DataFrame:
    """One row per agent: score on each final benchmark before and after training, tokens, wall and GPU seconds.

    A benchmark with unscored responses has their largest share in a column of its own.
    """
    import pandas as pd

    store = experiment.ledger.store
    num_steps = last_step(store.root, experiment.config)
    metrics = [store.metrics(step) for step in range(1, num_steps + 1)]
    final = dict.fromkeys(experiment.config.evaluate.final)
    rows = []
    for agent in experiment.agents:
        row: dict[str, Any] = {
            "pair": experiment.config.pair.name,
            "method": experiment.method.name,
            "seed": experiment.config.seed,
            "agent": agent,
        }
        for name in final:
            before, after = (read_result(store, step, result_phase(name, agent)) for step in (0, num_steps))
            row |= {f"{name}_before": before.value, f"{name}_after": after.value}
            row[f"{name}_unscored"] = max(before.unscored_share, after.unscored_share)
        spent = Spent()
        agent_metrics = [step_metrics["agents"][agent] for step_metrics in metrics]
        for values in agent_metrics:
            spent = spent.plus(values)
        row["tokens_sampled"] = spent.tokens
        row["tokens_trained"] = int(sum(values["tokens/trained"] for values in agent_metrics))
        row["seconds"], row["gpu_seconds"] = round(spent.seconds, 2), round(spent.gpu_s, 2)
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.drop(columns=[f"{name}_unscored" for name in final if not table[f"{name}_unscored"].any()])
