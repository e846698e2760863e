"""What two runs of one experiment must have in common, to the bit."""

from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.results import health_values, intact_results
from hacpo_core.phases.health import Finding, Health
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore


def timeless(values: dict[str, float]) -> dict[str, float]:
    """Metrics without the clock's."""
    return {name: value for name, value in values.items() if not name.startswith(("time/", "gpu/"))}


def outcome(plan: Plan) -> dict[str, Any]:
    """Digests, metrics and evaluations of every step, without anything that a clock wrote."""
    store = StepStore(plan.root)
    found: dict[str, Any] = {}
    for step in range(plan.config.train.num_steps + 1):
        for phase in sorted(store.committed(step)):
            kind, _, rest = phase.partition(".")
            if kind == "update":
                found[f"{step} {phase}"] = store.read_value(step, phase, f"update.{rest}.json")["trace"]["after"][
                    "digest"
                ]
            elif kind == "evaluate":
                found[f"{step} {phase}"] = store.read_value(step, phase, f"{phase}.json")["estimates"]
            elif kind == "metrics":
                value = store.read_value(step, phase, "metrics.json")
                found[f"{step} run"] = timeless(value["run"])
                found |= {f"{step} {k}": timeless(metrics) for k, metrics in value["agents"].items()}
            elif kind == "rollout":
                frame = store.read_table(step, phase, f"rollouts.{rest}.parquet")
                found[f"{step} {phase}"] = [tuple(ids) for ids in frame["token_ids"]]
    return found


def finish(plan: Plan) -> dict[str, Any]:
    """Train an experiment, in this process, to its end; returns its outcome."""
    run_experiment(plan, DirectRunner())
    return outcome(plan)


def mlflow_points(database: Path | str) -> Counter[tuple[str, str, int, float]]:
    """Every stored point of a database, a file of SQLite or an address: run name, metric, step, value.

    The clock's metrics are left out.
    """
    query = (
        "select t.value, m.key, m.step, m.value from metrics m join tags t on t.run_uuid = m.run_uuid "
        "where t.key = 'mlflow.runName' and m.key not like 'time/%' and m.key not like 'gpu/%'"
    )
    engine = create_engine(f"sqlite:///{database}" if isinstance(database, Path) else database)
    with engine.connect() as connection:
        rows = connection.execute(text(query)).fetchall()
    engine.dispose()
    return Counter((str(run), str(key), int(step), float(value)) for run, key, step, value in rows)


def findings_of(store: StepStore, config: ExperimentConfig) -> tuple[Finding, ...]:
    """Findings of an experiment's complete steps and evaluations."""
    health = Health(config)
    for step in range(1, store.num_complete() + 1):
        health.add(step, store.metrics(step)["agents"])
    for result in intact_results(store.root):
        health.add(result.step, health_values(result, config))
    return health.findings
