"""`hacpo list`, `samples`, `evaluate`, `export`, `audit-verifier`, `sync`, `delete`, `clean`: for made runs."""

import json
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from flows.commands.options import EXIT_RUN, AsJson, ExperimentId, RunsDir


def list_runs(
    prefix: Annotated[str, typer.Argument(help="beginning of the ids; default: all")] = "",
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs, the latest work first: id, state, step, each agent's last accuracies, and what tells runs apart."""
    from flows.records.states import run_records

    records = run_records(runs_dir, prefix)
    if as_json:
        print(json.dumps(records, indent=2))
        return
    if not records:
        print(f"no experiment in {runs_dir}" + (f" begins with {prefix}" if prefix else ""))
        return
    width = max(len(record["id"]) for record in records)
    for record in records:
        steps = f"{record['step']}/{record['num_steps']}" if record["num_steps"] else "-"
        figures = "; ".join(
            f"{agent} " + ", ".join(f"{name} {value:.3f}" for name, value in by_benchmark.items())
            for agent, by_benchmark in record["accuracy"].items()
        )
        reason = shorten(record["reason"], 140, placeholder=" ...")
        text = reason if record["state"] == "failed" else figures or reason
        differs = f"  [{record['differs']}]" if record["differs"] else ""
        print(f"{record['id']:<{width}}  {record['state']:<11} {steps:>9}  {text}{differs}".rstrip())


def samples(
    experiment: ExperimentId,
    step: Annotated[int, typer.Option(help="training step")] = 1,
    num: Annotated[int, typer.Option(min=1, help="number of problems")] = 2,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show the agents' responses of a training step with their advantages and ratios.

    Per learner: A is the advantage, s the importance ratio; `stopped` means that clipping set the gradient to 0.
    """
    from flows.planning.plans import find_plan
    from flows.runs.samples import print_samples, step_samples

    print_samples(step_samples(find_plan(runs_dir, experiment), step), num)


def evaluate(
    experiment: ExperimentId,
    benchmarks: Annotated[str | None, typer.Option(help="comma-separated; default: the experiment's own")] = None,
    step: Annotated[
        int | None, typer.Option(help="training step to evaluate after; 0: before training; default: the last")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Evaluate an experiment's agents on benchmarks; an interrupted call is resumed."""
    from flows.planning.plans import find_plan

    found = find_plan(runs_dir, experiment)  # before torch is loaded
    from flows.runs.display import TerminalWatcher, format_table
    from flows.runs.evaluate import run_evaluation, with_benchmarks
    from hacpo_core.phases.runner import DirectRunner

    plan = with_benchmarks(found, benchmarks.split(",") if benchmarks else [])
    with TerminalWatcher(plan.id) as watcher:
        frame = run_evaluation(plan, step, DirectRunner(), watcher)
    print(format_table(frame))


def export(
    experiment: ExperimentId,
    agent: Annotated[str, typer.Argument(help="name of the agent")],
    folder: Annotated[Path, typer.Argument(help="folder to write; must not exist yet, or be empty")],
    step: Annotated[int | None, typer.Option(help="training step of the checkpoint; default: the last")] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Export an agent from a checkpoint as a Hugging Face folder with a model card; the model is not loaded."""
    from flows.planning.plans import check_agent, find_plan

    plan = find_plan(runs_dir, experiment)
    check_agent(plan, agent)  # before torch is loaded
    from flows.exports.export import export_agent

    model = export_agent(plan, agent, folder, step=step)
    print(f"{agent} of {plan.id} after step {model.step}: {model.folder}")


def audit_verifier(experiment: ExperimentId, runs_dir: RunsDir = Path("runs")) -> None:
    """List the gold answers that the verifier cannot read: answers that are spelled otherwise stay unscored."""
    from flows.planning.plans import find_plan
    from flows.runs.verifier import known_unreadable_golds

    golds_by_set = known_unreadable_golds(find_plan(runs_dir, experiment).root)
    lines = [f"{name}: {gold}" for name, golds in golds_by_set.items() for gold in golds]
    print("\n".join(lines or ["no gold answer is known that cannot be read"]))


def sync(
    experiments: Annotated[list[str] | None, typer.Argument(help="ids; default: all, and the grids")] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write to MLflow what it lacks of a runs folder; what was deleted on MLflow's page is restored.

    Training does this itself. It is needed if MLflow was away, or after a deletion.
    """
    from flows.records.files import experiment_ids
    from flows.records.gridfile import read_grids
    from flows.records.mlflow_address import unsent_experiments
    from flows.runs import tracking

    ids, grids = (experiments, []) if experiments else (experiment_ids(runs_dir), read_grids(runs_dir))
    for name in tracking.sync(runs_dir, ids, grids):
        print(f"{name}: sent to MLflow")
    if unsent_experiments(runs_dir):
        raise typer.Exit(EXIT_RUN)


def delete(
    experiment: Annotated[str, typer.Argument(help="complete id of an experiment")], runs_dir: RunsDir = Path("runs")
) -> None:
    """Delete a run for good: its responses, checkpoints and results; its run in MLflow stays."""
    from flows.records.files import delete_experiment

    num_bytes = delete_experiment(runs_dir, experiment)
    print(f"deleted {experiment}: {num_bytes / 1e6:,.1f} MB are free again")


def clean(runs_dir: RunsDir = Path("runs")) -> None:
    """Delete made models that no run begins with, and what interrupted deletions left."""
    from flows.planning.plans import unused_folders
    from flows.records.files import delete_folder

    folders = unused_folders(runs_dir)
    num_bytes = sum(delete_folder(runs_dir, folder) for folder in folders)
    print(f"deleted {len(folders)} folders: {num_bytes / 1e6:,.1f} MB are free again")
