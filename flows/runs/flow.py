"""An experiment as a flow run of Prefect: the flow that workers and `hacpo train` run."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
from prefect import Flow, flow
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.runtime import deployment
from prefect.states import Cancelled, Crashed

from flows.planning.plans import Plan, find_plan
from flows.process import configure_process, ignore_broken_output
from flows.records.watcher import Watcher
from flows.runs.experiment import run_experiment
from flows.runs.runner import PrefectRunner
from hacpo_core.errors import LockedError, ServerError, first_line
from hacpo_core.store.lock import ExperimentLock

_INTERRUPTIONS = (
    "Execution was aborted by an interrupt signal.",
    "Execution was aborted by a termination signal.",
    "Engine execution interrupted by base exception",
)
"""parts of what Prefect logs as errors of a run that was ended from outside"""


# Watcher of a command's run, which holds the experiment's lock; None: a worker's run, which has no display.
_watcher_of_command: ContextVar[Watcher | None] = ContextVar("watcher_of_command", default=None)


@flow(name="experiment", flow_run_name="{experiment}", persist_result=False)
def experiment_flow(experiment: str, runs_dir: str) -> list[dict[str, Any]] | State[Any]:
    """Train one planned experiment; each phase is a task. Training continues from the last committed phase.

    If Prefect fails, or another process holds the experiment's lock, the run ends as Crashed, and the reconciler
    resubmits it. A command's run that is interrupted ends as Cancelled; a worker's run is ended by Prefect.

    Args:
        experiment: id; its resolved configuration is in its folder.
        runs_dir: folder that contains `experiments/<id>/`.

    Returns:
        rows of the result table, or a Crashed state.
    """
    configure_process()
    own_watcher = _watcher_of_command.get()
    if own_watcher is None:
        ignore_broken_output()
    plan = find_plan(Path(runs_dir), experiment)
    runner = PrefectRunner(plan)
    try:
        result = run_experiment(plan, runner, own_watcher, has_lock=own_watcher is not None)
    except (LockedError, ServerError) as error:
        return Crashed(message=str(error), data=error)
    except (KeyboardInterrupt, TerminationSignal):
        if deployment.id is not None:
            raise
        return Cancelled(message="interrupted; `hacpo resume` continues from the last committed phase")
    return result.table


def run_with_prefect(plan: Plan, watcher: Watcher | None = None) -> None:
    """Run the experiment flow in this process.

    Raises:
        LockedError: another process trains the experiment; no flow run is made.
        ServerError: the server does not answer.
        KeyboardInterrupt: on Ctrl-C, and on SIGTERM.
    """
    runs_dir = str(Path(plan.config.runtime.runs_dir).absolute())
    with ExperimentLock(plan.root):
        token = _watcher_of_command.set(watcher or Watcher())
        try:
            run_flow(experiment_flow, experiment=plan.id, runs_dir=runs_dir)
        finally:
            _watcher_of_command.reset(token)


def run_flow(flow_to_run: Flow[..., Any], **parameters: Any) -> Any:
    """Run a flow in this process and return its result, or raise its error.

    Raises:
        ServerError: Prefect, and nothing that the flow runs, failed.
        KeyboardInterrupt: the flow was cancelled.
    """
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_interruption)
    message = f"Prefect did not run the flow {flow_to_run.name}"
    try:
        state: Any = flow_to_run(**parameters, return_state=True)
    except Exception as error:  # those of the flow itself are in its state
        raise ServerError(f"{message}: {first_line(error)}; see `hacpo server status`") from error
    if state.is_cancelled():
        raise KeyboardInterrupt
    try:
        return state.result()
    except (PrefectException, httpx.HTTPError) as error:
        raise ServerError(f"{message}: {first_line(error)}; see `hacpo server status`") from error


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Whether a record is anything but Prefect's error about Ctrl-C or SIGTERM, which the command reports itself."""
    return not (record.name.startswith("prefect.") and any(part in record.getMessage() for part in _INTERRUPTIONS))
