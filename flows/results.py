"""Tables and pictures of what an experiment's store holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hacpo_core.algorithm import Experiment
from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.run import EvaluationSplit, read_result
from hacpo_core.store import StepStore

CURVES = {
    "reward": ("reward/mean", "mean reward of the step's rollouts"),
    "capability": ("capability/smoothed", "capability, mean of the last K steps"),
    "ratio_cross": ("ratio_cross/mean", "mean ratio of cross-agent responses"),
    "response_length": ("response/length_tokens", "mean response length, tokens"),
}


def result_table(x: Experiment, splits: Sequence[EvaluationSplit]) -> pd.DataFrame:
    """One row per agent: accuracy before and after on each split, tokens sampled and trained on, seconds."""
    num_steps = x.config.train.num_steps
    metrics = [x.ledger.store.read_value(step, "metrics", "metrics.json") for step in range(1, num_steps + 1)]
    rows = []
    for k in x.names:
        row: dict[str, Any] = {"pair": x.config.pair.name, "method": x.method.name, "seed": x.config.seed, "agent": k}
        for split in splits:
            row[f"{split}_before"] = read_result(x, 0, k, split).accuracy
            row[f"{split}_after"] = read_result(x, num_steps, k, split).accuracy
        for name in ("tokens/sampled", "tokens/trained"):
            row[name.replace("/", "_")] = int(sum(step["agents"][k][name] for step in metrics))
        names = ("time/rollout_s", "time/verify_s", "time/update_s")
        row["seconds"] = round(sum(step["agents"][k][name] for step in metrics for name in names), 2)
        gpu_names = ("gpu/rollout_s", "gpu/update_s")
        row["gpu_seconds"] = round(sum(step["agents"][k][name] for step in metrics for name in gpu_names), 2)
        rows.append(row)
    return pd.DataFrame(rows)


def read_curves(root: Path, config: ExperimentConfig) -> pd.DataFrame:
    """Every agent's metrics of every step of an experiment, evaluations included.

    Returns:
        long form: step, agent, metric, value.
    """
    rows = []
    store = StepStore(root)
    for step in range(config.train.num_steps + 1):
        for phase in store.committed(step):
            if phase == "metrics":
                value = store.read_value(step, "metrics", "metrics.json")
                rows += [(step, k, name, v) for k, found in value["agents"].items() for name, v in found.items()]
            elif phase.startswith("evaluate."):
                _, split, k = phase.split(".", 2)
                accuracy = store.read_value(step, phase, f"{phase}.json")["accuracy"]
                rows.append((step, k, f"evaluate/{split}_accuracy", accuracy))
    return pd.DataFrame(rows, columns=["step", "agent", "metric", "value"])


def curves_figure(x: Experiment) -> dict[str, Figure]:
    """The training curves as figures, by name."""
    frame = read_curves(x.ledger.store.root, x.config)
    figures = {}
    for name, (metric, label) in {**CURVES, "accuracy": ("evaluate/dev_accuracy", "accuracy, development")}.items():
        part = frame[frame.metric == metric]
        if part.empty:
            continue
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for agent, curve in part.groupby("agent"):
            axes.plot(curve.step, curve.value, label=str(agent))
        axes.set(xlabel="step", ylabel=label, title=x.id)
        axes.legend(frameon=False)
        figures[name] = figure
    return figures
