"""`hacpo list`."""

from __future__ import annotations

import difflib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import AsJson, RunsDir
from hacpo_core.errors import ConfigError, HacpoError
from hacpo_core.evaluation.metrics import BITS_PER_BYTE

if TYPE_CHECKING:  # importing pandas takes a while
    import pandas as pd


def list_runs(
    prefix: Annotated[str, typer.Argument(help="beginning of the ids; default: all")] = "",
    metric: Annotated[
        str | None, typer.Option(help="show this metric, such as reward/mean, in place of the last accuracies")
    ] = None,
    at: Annotated[
        str, typer.Option(help="with --metric: a step, last, or best (the highest; of bits per byte, the lowest)")
    ] = "last",
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List a runs folder: id, state, step and each agent's last accuracies or a metric, newest first."""
    from flows.records.states import CONFIG_FILE, ExperimentStatus, experiment_status

    if at not in ("last", "best") and not at.isdecimal():
        raise ConfigError(f"--at: got {at!r}, expected a step, last or best")
    if at != "last" and metric is None:
        raise ConfigError("--at: chooses a step of a metric; name one with --metric")

    def values(root: Path, status: ExperimentStatus) -> dict[str, dict[str, Any]]:
        """Figures of each agent: accuracies by benchmark, or the metric's value and its step."""
        if metric is not None:
            return _metric(root, metric, at)
        accuracies: dict[str, dict[str, Any]] = {}
        for evaluation in status.progress.evaluations if status.progress else ():
            accuracies.setdefault(evaluation.agent, {})[evaluation.benchmark] = evaluation.value
        return accuracies

    metric = _full_name(metric) if metric is not None else None
    folders = [path.parent for path in (runs_dir / "experiments").glob(f"{prefix}*/{CONFIG_FILE}")]
    rows: list[dict[str, Any]] = []
    for root in sorted(folders, key=lambda root: root.stat().st_mtime, reverse=True):
        status = experiment_status(root)
        progress = status.progress
        rows.append(
            {
                "id": root.name,
                "state": status.state,
                "step": progress.step if progress else 0,
                "num_steps": progress.num_steps if progress else None,
                "accuracy" if metric is None else metric: values(root, status),
                "reason": status.reason,
            }
        )
    if metric is not None and not any(row[metric] for row in rows):
        print(_without_values(metric, at, folders), file=sys.stderr)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print(f"no experiment in {runs_dir}" + (f" begins with {prefix}" if prefix else ""))
        return
    width = max(len(row["id"]) for row in rows)
    for row in rows:
        steps = f"{row['step']}/{row['num_steps']}" if row["num_steps"] else "-"
        figures = _text(row["accuracy"] if metric is None else row[metric])
        print(f"{row['id']:<{width}}  {row['state']:<8} {steps:>9}  {figures or row['reason']}".rstrip())


def _metric(root: Path, metric: str, at: str) -> dict[str, dict[str, Any]]:
    """Value and step of a metric by agent; agents without it at that step are left out."""
    try:
        curves = _curves(root)
    except HacpoError as error:
        print(f"{root.name}: {error}", file=sys.stderr)
        return {}
    curves = curves[(curves.metric == metric) & curves.value.notna()]
    if at.isdecimal():
        curves = curves[curves.step == int(at)]
    is_lower_better = metric.endswith(BITS_PER_BYTE)
    if at == "best":  # the first of equals, as `checkpoint.keep_best` has it
        last_rows = curves.sort_values(["value", "step"], ascending=[not is_lower_better, False])
    else:
        last_rows = curves.sort_values("step", kind="stable")
    last_rows = last_rows.groupby("agent").tail(1).set_index("agent")
    return {
        agent: {"value": float(last_rows.value[agent]), "step": int(last_rows.step[agent])}
        for agent in dict.fromkeys(curves.agent)
    }


def _full_name(metric: str) -> str:
    """A metric's name, from a short one: reward, accuracy.<benchmark>, bits_per_byte.<benchmark>."""
    kind, _, benchmark = metric.partition(".")
    if kind in ("accuracy", BITS_PER_BYTE) and benchmark:
        return f"evaluate/{benchmark}_{kind}"
    return "reward/mean" if metric == "reward" else metric


def _curves(root: Path) -> pd.DataFrame:
    from flows.planning.compose import load_config
    from flows.records.states import CONFIG_FILE
    from flows.runs.results import read_curves

    return read_curves(root, load_config(root / CONFIG_FILE))


def _without_values(metric: str, at: str, folders: list[Path]) -> str:
    """Why a list has no value: the metric is unknown, with similar names, or the step is."""
    names: set[str] = set()
    for root in folders:
        with suppress(HacpoError):  # told already
            names |= set(_curves(root).metric)
    if metric in names:
        return f"no run has {metric} at step {at}"
    close = difflib.get_close_matches(metric, sorted(names), n=2)
    remedy = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(names)) or 'none'}"
    return f"no run has the metric {metric!r}; {remedy}"


def _text(figures: dict[str, dict[str, Any]]) -> str:
    texts = []
    for agent, agent_figures in figures.items():
        if agent_figures.keys() == {"value", "step"}:
            texts.append(f"{agent} {agent_figures['value']:.4g} (step {agent_figures['step']})")
        else:
            texts.append(f"{agent} " + ", ".join(f"{name} {value:.3f}" for name, value in agent_figures.items()))
    return "; ".join(texts)
