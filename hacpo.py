"""hacpo for notebooks: train a pair, and read runs, results and responses as tables.

import hacpo
hacpo.train("tiny", "hacpo", num_steps=5)
hacpo.runs()
hacpo.results("demo")
"""

from pathlib import Path
from typing import Any

import pandas as pd

from flows.planning.compose import compose
from flows.planning.plans import find_plan, plan, save_plan
from flows.process import configure_process
from flows.records.gridfile import read_grids
from flows.records.states import experiment_status, run_records
from flows.runs import samples as responses
from flows.runs.results import grid_table, read_final
from hacpo_core.errors import ConfigError

__all__ = ["results", "runs", "samples", "train"]


def train(
    pair: str,
    method: str,
    *overrides: str,
    num_steps: int | None = None,
    seed: int | None = None,
    hardware: str = "cpu",
    runs_dir: Path | str = "runs",
) -> pd.DataFrame:
    """Train a pair with a method in this process; an interrupted run is resumed, a complete one is read.

    Args:
        pair, method, hardware: names in `experiments/`, or paths of YAML files.
        overrides: "section.field=value".
        num_steps, seed: `train.num_steps` and `seed`; None: as declared.
        runs_dir: folder of all runs.

    Returns:
        one row per agent: the run's id, accuracies before and after training, tokens and seconds.

    Raises:
        HacpoError: with a remedy; the same call continues from the last committed phase.
    """
    from flows.runs.display import TerminalWatcher
    from flows.runs.experiment import run_experiment
    from hacpo_core.phases.runner import DirectRunner

    configure_process()
    fields = {"train.num_steps": num_steps, "seed": seed, "runtime.runs_dir": runs_dir, "runtime.runner": "direct"}
    words = [f"{name}={value}" for name, value in fields.items() if value is not None]
    planned = plan(compose(pair, method, hardware=hardware, overrides=[*overrides, *words]))
    if experiment_status(planned.root).state != "done":
        save_plan(planned)
    with TerminalWatcher(planned.id) as watcher:
        result = run_experiment(planned, DirectRunner(), watcher)
    return pd.DataFrame(result.table).assign(run=planned.id)


def runs(runs_dir: Path | str = "runs") -> pd.DataFrame:
    """All runs of a folder: one row per run and agent, with its state, steps, reward and last accuracies."""
    rows: list[dict[str, Any]] = []
    for record in run_records(Path(runs_dir)):
        reward, tokens, accuracy = (record.pop(name, {}) for name in ("reward", "tokens", "accuracy"))
        for agent in tokens or [""]:
            own = {"agent": agent, "reward": reward.get(agent), "tokens": tokens.get(agent)}
            rows.append({"run": record["id"], **record, **own, **accuracy.get(agent, {})})
    return pd.DataFrame(rows).drop(columns="id", errors="ignore")


def results(name: str, runs_dir: Path | str = "runs") -> pd.DataFrame:
    """Results of a grid's complete trainings, or of one run: one row per agent, as `train` returns.

    Raises:
        ConfigError: there is no such grid, and no complete run of this id.
    """
    folder = Path(runs_dir)
    grids = {record.name: record for record in read_grids(folder)}
    if name not in grids:
        found = find_plan(folder, name)
        final = read_final(found.root)
        if final is None:
            raise ConfigError(f"{found.id} is not complete; train it first: `hacpo resume {found.id}`")
        return pd.DataFrame(final.table).assign(run=found.id)
    return grid_table(grids[name], folder)


def samples(run: str, step: int = 1, *, runs_dir: Path | str = "runs") -> pd.DataFrame:
    """All responses of a training step, with verdict and reward, and each learner's advantage and ratio.

    Args:
        run: id of a run, or an unambiguous prefix.
        step: training step.
        runs_dir: folder of all runs.
    """
    return responses.step_samples(find_plan(Path(runs_dir), run), step)
