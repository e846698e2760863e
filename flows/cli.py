"""The `hacpo` command."""

from __future__ import annotations

import copy
import errno
import io
import json
import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hacpo_core.errors import ConfigError, DataError, HacpoError, LockedError, ModelError
from hacpo_core.store.files import FULL_DISK

if TYPE_CHECKING:  # a command imports what it needs when it runs
    from flows.runs.display import Watcher

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
server_app = typer.Typer(no_args_is_help=True, help="The managed local Prefect server.")
app.add_typer(server_app, name="server")

EXIT_INPUT, EXIT_RUN, EXIT_LOCKED, EXIT_INTERRUPTED = 2, 3, 4, 130
_OF_THE_DISK = (
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *FULL_DISK,
)

_Pair = Annotated[str, typer.Argument(help="name in experiments/pairs, or a YAML file")]
_Method = Annotated[str, typer.Argument(help="name in experiments/methods, or a YAML file")]
_Overrides = Annotated[list[str] | None, typer.Argument(help="section.field=value, as many as you like")]
_Hardware = Annotated[str, typer.Option(help="name in experiments/hardware, or a YAML file")]
_AsJson = Annotated[bool, typer.Option("--json", help="machine-readable lines on standard output")]
_RunsDir = Annotated[Path, typer.Option(help="folder of all runs")]
_Seeds = Annotated[str | None, typer.Option(help="comma-separated seeds; default: the grid's")]
_ExperimentId = Annotated[str, typer.Argument(help="id of an experiment, or its beginning")]


@app.command()
def train(
    pair: _Pair, method: _Method, overrides: _Overrides = None, hardware: _Hardware = "cpu", as_json: _AsJson = False
) -> None:
    """Train a pair with a method; a run that was broken off is continued, a complete one is shown."""
    from flows.planning.compose import compose
    from flows.planning.plans import plan, save_plan

    planned = plan(compose(pair, method, hardware=hardware, overrides=overrides or []))
    save_plan(planned)
    _run(planned, as_json=as_json)


@app.command()
def resume(experiment: _ExperimentId, runs_dir: _RunsDir = Path("runs"), as_json: _AsJson = False) -> None:
    """Continue an experiment from its last committed phase."""
    from flows.planning.plans import find_plan

    _run(find_plan(runs_dir, experiment), as_json=as_json)


def _run(planned: Any, *, as_json: bool) -> None:
    from flows.runs.display import format_table
    from flows.runs.experiment import run_experiment
    from flows.runs.results import read_final
    from hacpo_core.phases.runner import DirectRunner

    result = read_final(planned)
    is_reused = result is not None
    if result is None:
        with _watcher(planned.id, as_json=as_json) as watcher:
            if planned.config.runtime.runner == "direct":
                run_experiment(planned, DirectRunner(), watcher)
            else:
                from flows.service.server import ensure_server, use_server

                runs_dir = Path(planned.config.runtime.runs_dir)
                use_server(ensure_server(runs_dir), runs_dir)
                from flows.runs.runner import run_with_prefect

                run_with_prefect(planned, watcher)
        result = read_final(planned)
        assert result is not None, "a finished experiment has a result"
    elif not as_json:
        print(f"{planned.id} is complete and is reused.")
    if as_json:
        print(json.dumps({"event": "result", "id": result.id, "table": result.table, "reused": is_reused}))
        return
    print(format_table(result.table))
    print(f"folder  {result.root}")


def _watcher(title: str, *, as_json: bool) -> AbstractContextManager[Watcher]:
    from flows.runs.display import JsonWatcher, TerminalWatcher

    return nullcontext(JsonWatcher()) if as_json else TerminalWatcher(title)


@app.command()
def demo(seeds: _Seeds = None, overrides: _Overrides = None, runs_dir: _RunsDir = Path("runs")) -> None:
    """Two tiny language models learn arithmetic, alone and from each other; a few minutes on a laptop."""
    from experiments.run import run_grid

    run_grid("demo", runs_dir=runs_dir, seeds=_numbers(seeds), overrides=overrides or [])


@app.command()
def grid(
    name: Annotated[str, typer.Argument(help="name in experiments/grids, or a YAML file")],
    overrides: _Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the matrix and the estimate, run nothing")] = False,
    run: Annotated[str, typer.Option(help="missing, failed or all; what is done is never run again")] = "missing",
    seeds: _Seeds = None,
    hardware: Annotated[str | None, typer.Option(help="in place of the grid's own")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="experiments at a time; default: GPUs or cores")] = None,
    priority: Annotated[str, typer.Option(help="queue: high, normal or low")] = "normal",
    submit: Annotated[bool, typer.Option("--submit", help="only put them into the queue of `hacpo worker`")] = False,
    runs_dir: _RunsDir = Path("runs"),
    as_json: _AsJson = False,
) -> None:
    """Train a grid of pairs, methods and seeds, skipping what is done; then print the table and write the report."""
    if dry_run:
        _stay_offline()
    from experiments.planner import plan_grid
    from experiments.run import SELECTED, run_grid, show_grid
    from flows.service.deployments import PRIORITIES

    if run not in SELECTED:
        raise ConfigError(f"--run: got {run!r}, expected one of {', '.join(SELECTED)}")
    if priority not in PRIORITIES:
        raise ConfigError(f"--priority: got {priority!r}, expected one of {', '.join(PRIORITIES)}")
    if dry_run:
        planned = plan_grid(
            name, runs_dir=runs_dir, hardware=hardware, seeds=_numbers(seeds), overrides=overrides or []
        )
        show_grid(planned, run, as_json=as_json)
        return
    run_grid(
        name,
        runs_dir=runs_dir,
        selection=run,
        hardware=hardware,
        seeds=_numbers(seeds),
        overrides=overrides or [],
        num_workers=workers,
        priority=priority,
        waits=not submit,
        as_json=as_json,
    )


@app.command()
def worker(
    slots: Annotated[int | None, typer.Option(min=1, help="experiments at a time; default: GPUs or cores")] = None,
    runs_dir: _RunsDir = Path("runs"),
) -> None:
    """Train what is in the queue on this machine, until Ctrl-C; what was under way goes on later."""
    from flows.service.processes import home_of
    from flows.service.worker import default_slots, find_worker, run_worker

    number = slots or default_slots()
    print(f"worker of {home_of(runs_dir).parent}: {number} experiments at a time; Ctrl-C ends it and them", flush=True)
    if not run_worker(runs_dir, num_slots=number):
        running = find_worker(runs_dir)
        print(f"it runs already{f' (process {running.pid})' if running is not None else ''}; nothing to do")


@app.command()
def reconcile(runs_dir: _RunsDir = Path("runs"), as_json: _AsJson = False) -> None:
    """Find runs whose process died unseen and put them back into the queue; the server does so every 30 s by itself."""
    from flows.service.server import ensure_server, use_server

    server = ensure_server(runs_dir)
    use_server(server, runs_dir)
    from flows.service.host import Patience
    from flows.service.reconciler import reconcile_once
    from flows.service.schedule import Schedule

    done = reconcile_once(Schedule(server, runs_dir), runs_dir, Patience())
    print(json.dumps(done) if as_json else "\n".join(done) or "nothing to fix")


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="name in experiments/grids, or a YAML file")],
    overrides: _Overrides = None,
    seeds: _Seeds = None,
    hardware: Annotated[str | None, typer.Option(help="in place of the grid's own")] = None,
    runs_dir: _RunsDir = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="folder; default: <runs-dir>/reports/<grid>")] = None,
) -> None:
    """Write a grid's report, measured beside printed, as an HTML page and as Markdown; nothing is run or downloaded."""
    _stay_offline()
    from experiments.planner import plan_grid
    from experiments.report import write_report

    planned = plan_grid(name, runs_dir=runs_dir, hardware=hardware, seeds=_numbers(seeds), overrides=overrides or [])
    print(write_report(planned, out or runs_dir / "reports" / planned.name))


def _stay_offline() -> None:
    """Download no model; to be called before anything imports the hub's library."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _numbers(text: str | None) -> list[int] | None:
    """Comma-separated seeds.

    Raises:
        ConfigError: one of them is no whole number.
    """
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds: got {text!r}, expected whole numbers such as 0,1,2") from error


@app.command()
def show(
    pair: Annotated[str | None, typer.Argument(help="pair, or nothing to list what there is")] = None,
    method: Annotated[str | None, typer.Argument(help="method")] = None,
    overrides: _Overrides = None,
    hardware: _Hardware = "cpu",
    runs_dir: _RunsDir = Path("runs"),
    as_json: _AsJson = False,
) -> None:
    """Print the resolved configuration of a pair and a method; `show fields [PREFIX]`: what each field is; `show
    methods`: what each method is; nothing given: list pairs, methods and experiments.
    """
    from flows.planning.compose import DECLARATION_FOLDERS, available, compose, to_yaml
    from hacpo_core.config import as_dict

    if pair == "fields":
        from flows.planning.field_table import print_fields

        print_fields(method or "", as_json=as_json)
        return
    if pair == "methods":
        from flows.planning.method_table import print_methods

        print_methods(as_json=as_json)
        return
    if pair is None:
        from flows.records.folders import experiment_ids

        listing = {kind: available(kind) for kind in DECLARATION_FOLDERS}
        listing["experiments"] = experiment_ids(runs_dir)
        if as_json:
            print(json.dumps(listing))
        else:
            for kind, names in listing.items():
                print(f"{kind}:", *names, sep="\n  ")
        return
    if method is None:
        raise ConfigError("show: got a pair without a method; try `hacpo show tiny hacpo`")
    config = compose(pair, method, hardware=hardware, overrides=overrides or [])
    print(json.dumps(as_dict(config)) if as_json else to_yaml(config), end="\n" if as_json else "")


@app.command()
def evaluate(
    experiment: _ExperimentId,
    tasks: Annotated[list[str] | None, typer.Argument(help="with --with: tasks of that harness")] = None,
    benchmarks: Annotated[str | None, typer.Option(help="comma-separated; default: the experiment's own")] = None,
    step: Annotated[int | None, typer.Option(help="after this training step, 0: before; default: the last")] = None,
    harness: Annotated[str | None, typer.Option("--with", help="lm-eval: its tasks, in place of benchmarks")] = None,
    agent: Annotated[str | None, typer.Option(help="with --with: this agent alone")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="with --with: problems of each task")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="with --with: examples in each prompt")] = None,
    include_path: Annotated[str | None, typer.Option(help="with --with: folder with YAML files of own tasks")] = None,
    batch_size: Annotated[
        str | None, typer.Option(help="with --with: sequences at a time, or auto; default: 1")
    ] = None,
    apply_chat_template: Annotated[bool, typer.Option("--apply-chat-template", help="with --with: as trained")] = False,
    runs_dir: _RunsDir = Path("runs"),
    as_json: _AsJson = False,
) -> None:
    """Evaluate an experiment's agents on benchmarks; what was interrupted goes on where it was.

    With `--with lm-eval`, evaluate agents of a checkpoint on tasks of lm-eval-harness.
    """
    of_harness = {
        "limit": limit,
        "num_fewshot": num_fewshot,
        "include_path": include_path,
        "batch_size": batch_size,
        "apply_chat_template": apply_chat_template or None,
    }
    given = {name: value for name, value in of_harness.items() if value is not None}
    if harness is not None:
        if harness != "lm-eval":
            raise ConfigError(f"--with: got {harness!r}, expected lm-eval")
        if benchmarks is not None:
            raise ConfigError("--benchmarks: has no effect with --with lm-eval, which takes names of its tasks")
        _evaluate_with_harness(experiment, tasks or [], given, agent, step, runs_dir, as_json)
        return
    alone = [*(tasks or []), *(f"--{name.replace('_', '-')}" for name in given), *(["--agent"] if agent else [])]
    if alone:
        raise ConfigError(f"{', '.join(alone)}: no effect without --with lm-eval; benchmarks are named by --benchmarks")
    from flows.planning.plans import find_plan
    from flows.runs.display import format_table
    from flows.service.server import ensure_server, use_server

    planned = find_plan(runs_dir, experiment)
    names = benchmarks.split(",") if benchmarks else []
    is_direct = planned.config.runtime.runner == "direct"
    if not is_direct:
        use_server(ensure_server(runs_dir), runs_dir)
    from flows.runs.evaluate import evaluate_with_prefect, run_evaluation, with_benchmarks
    from hacpo_core.phases.runner import DirectRunner

    with _watcher(planned.id, as_json=as_json) as watcher:
        if is_direct:
            frame = run_evaluation(with_benchmarks(planned, names), step, DirectRunner(), watcher)
        else:
            frame = evaluate_with_prefect(planned, names, step, watcher)
    print(frame.to_json(orient="records", lines=True).strip() if as_json else format_table(frame))


def _evaluate_with_harness(
    experiment: str,
    tasks: list[str],
    options: dict[str, Any],
    agent: str | None,
    step: int | None,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Print the rows of lm-eval's figures."""
    from flows.exports.harness import HarnessOptions, run_harness
    from flows.planning.plans import find_plan
    from flows.runs.display import format_table

    rows = run_harness(find_plan(runs_dir, experiment), HarnessOptions(tasks, **options), agent=agent, step=step)
    print("\n".join(map(json.dumps, rows)) if as_json else format_table(rows))


@app.command()
def export(
    experiment: _ExperimentId,
    agent: Annotated[str, typer.Argument(help="name of the agent")],
    folder: Annotated[Path, typer.Argument(help="written here; must not exist yet, or be empty")],
    step: Annotated[int | None, typer.Option(help="of the checkpoint; default: the last")] = None,
    push: Annotated[str | None, typer.Option(help="upload it to this hub repository, owner/model, too")] = None,
    runs_dir: _RunsDir = Path("runs"),
    as_json: _AsJson = False,
) -> None:
    """Write an agent of a checkpoint as a Hugging Face folder with a model card; nothing is loaded."""
    from flows.exports.export import export_agent
    from flows.exports.export import push as push_folder
    from flows.planning.plans import find_plan

    written = export_agent(find_plan(runs_dir, experiment), agent, folder, step=step)
    address = None if push is None else push_folder(written.folder, push)
    if as_json:
        values = {"folder": str(written.folder), "id": written.experiment, "agent": agent, "step": written.step}
        print(json.dumps({**values, "weights": written.digest, "pushed": address}))
        return
    print(f"{agent} of {written.experiment} after step {written.step}: {written.folder}")
    if address is not None:
        print(f"pushed: {address}")


@app.command()
def samples(
    experiment: _ExperimentId,
    step: Annotated[int | None, typer.Option(help="training step; default: 1, or the last evaluated one")] = None,
    benchmark: Annotated[str | None, typer.Option(help="show an evaluation, in place of training")] = None,
    num: Annotated[int, typer.Option(min=1, help="problems shown")] = 2,
    runs_dir: _RunsDir = Path("runs"),
    as_json: _AsJson = False,
) -> None:
    """Show what the agents answered in a training step and what it did to each learner, or on a benchmark."""
    from flows.planning.plans import find_plan
    from flows.runs.samples import benchmark_samples, print_answers, print_samples, step_samples

    planned = find_plan(runs_dir, experiment)
    if benchmark is None:
        frame, show_rows = step_samples(planned, 1 if step is None else step), print_samples
    else:
        frame, show_rows = benchmark_samples(planned, benchmark, step), print_answers
    if as_json:
        print(frame.to_json(orient="records", lines=True), end="")
    else:
        show_rows(frame, num)


@app.command()
def doctor(
    runs_dir: _RunsDir = Path("runs"),
    as_json: _AsJson = False,
    gpu: Annotated[bool, typer.Option(help="try what a hardware file uses on a tiny model, step by step")] = False,
    hardware: Annotated[str, typer.Option(help="with --gpu: the hardware file")] = "one_gpu_vllm",
    model: Annotated[Path | None, typer.Option(help="with --gpu: a model folder to try as well")] = None,
) -> None:
    """Say what is installed and works: packages, engines, ports, disk, GPU, data."""
    if gpu:
        _try_gpu(runs_dir, hardware, model, as_json)
        return
    from flows.doctor.machine import examine

    findings = examine(runs_dir)
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.is_ok else 'NO '} {finding.subject:<14} {finding.detail}")
    if any(not finding.is_ok and finding.is_required for finding in findings):
        raise typer.Exit(EXIT_RUN)


def _try_gpu(runs_dir: Path, hardware: str, model: Path | None, as_json: bool) -> None:
    """Print the verdict of each step of each trial, and keep it as JSON."""
    from flows.doctor.engine_trial import trial_report
    from hacpo_core.store.files import write_json

    reports = []
    for folder in [None, model] if model is not None else [None]:
        report = trial_report(hardware, model=folder)
        reports.append(report)
        if not as_json:
            print(f"{report['model']} with --hardware {hardware} on {report['device']}")
            for step in report["steps"]:
                print(
                    f"{'ok ' if step['is_ok'] else 'NO '} {step['name']:<22} {step['seconds']:7.1f} s  {step['detail']}"
                )
    path = runs_dir / "doctor-gpu.json"
    write_json(path, reports)
    print(json.dumps(reports) if as_json else f"all figures: {path}")
    if not all(report["is_ok"] for report in reports):
        raise typer.Exit(EXIT_RUN)


@app.command()
def dashboard(
    runs_dir: _RunsDir = Path("runs"),
    host: Annotated[str, typer.Option(help="address to listen on; off loopback a token is required")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="default: 8400, or the next free one")] = None,
    token_file: Annotated[Path | None, typer.Option(help="holds the token; default off loopback: made once")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="another name that it answers to; a token is required")
    ] = None,
    prefect: Annotated[bool, typer.Option(help="start Prefect's server, too; it stays")] = True,
) -> None:
    """Serve the page of a runs folder, and MLflow's, until Ctrl-C."""
    from dashboards.serve import Options, serve

    serve(runs_dir, Options(host, port, token_file, allow_host or [], prefect))


@server_app.command("start")
def server_start(runs_dir: _RunsDir = Path("runs")) -> None:
    """Start the server, or find the one that runs."""
    from flows.service.server import ensure_server, log_in_hint

    print(f"{ensure_server(runs_dir).url}  ({log_in_hint(runs_dir)})")


@server_app.command("stop")
def server_stop(runs_dir: _RunsDir = Path("runs")) -> None:
    """Stop the server of this runs folder."""
    from flows.service.server import stop_server

    print("stopped" if stop_server(runs_dir) else "no server was running")


@server_app.command("status")
def server_status(runs_dir: _RunsDir = Path("runs")) -> None:
    """Say whether the server runs and answers; exit code 1 when it does not."""
    from flows.service.server import find_reconciler, find_server, is_healthy
    from flows.service.worker import find_worker

    server = find_server(runs_dir)
    if server is None:
        print("not running")
        raise typer.Exit(1)
    is_up = is_healthy(server)
    print(f"{server.url} {'healthy' if is_up else 'does not answer'}")
    for name, process in (("reconciler", find_reconciler(runs_dir)), ("worker", find_worker(runs_dir))):
        print(f"{name}: {'none' if process is None else f'process {process.pid}'}")
    if not is_up:
        raise typer.Exit(1)


class _BriefFormatter(logging.Formatter):
    """Leaves out the traceback of an error that has a remedy, which Prefect logs wherever one passes it."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and isinstance(record.exc_info[1], HacpoError):
            record = copy.copy(record)  # Prefect's page shows it
            record.exc_info = record.exc_text = None
        return super().format(record)


def main() -> None:
    """Run the command line; an error that has a remedy is printed in one sentence, without a traceback."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(_BriefFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[terminal])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a response may hold what the terminal cannot show
    try:
        app()
    except HacpoError as error:
        print(f"hacpo: {error}", file=sys.stderr)
        if isinstance(error, LockedError):
            sys.exit(EXIT_LOCKED)
        sys.exit(EXIT_INPUT if isinstance(error, (ConfigError, DataError, ModelError)) else EXIT_RUN)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        remedy = "free some space" if error.errno in FULL_DISK else "name another folder"
        print(f"hacpo: {error.filename or 'standard output'}: {error.strerror}; {remedy}", file=sys.stderr)
        sys.exit(EXIT_INPUT)
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # as which typer passes Ctrl-C on
            commits = {"train", "resume", "grid", "evaluate"} & set(sys.argv[1:2])
            goes_on = commits and not any(word.startswith("--with") for word in sys.argv)  # a harness starts again
            what = "; the same command goes on from the last committed phase" if goes_on else ""
            print(f"hacpo: interrupted{what}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
