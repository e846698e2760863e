"""What must be true after a round, however it was disturbed."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flows.planning.plans import Plan, find_plan
from flows.records.files import experiment_ids
from flows.records.mlflow_address import STATE_FILE, unsent_experiments
from flows.records.states import experiment_status
from flows.service.prefect_server import find_server
from flows.service.reconciler import Reconciler
from flows.service.schedule import Schedule
from hacpo_core.errors import StoreError
from hacpo_core.store.lock import is_locked
from tests.experiments_outcome import mlflow_points, outcome
from tests.soak.site import Site, restore

QUIET_S = 90.0
"""time in which the services may put their records in order after the last command"""


def result_of(plan: Plan, points: Counter[tuple[str, str, int, float]]) -> dict[str, Any]:
    """What two trainings of an experiment must share: bits, accuracies and MLflow's points."""
    own = {point: number for point, number in points.items() if point[0].partition("/")[0] == plan.id}
    return {**outcome(plan), "MLflow": Counter(own)}


def problems_of(site: Site, expected: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong in a runs folder whose last command ended with success.

    Args:
        site: of the round.
        expected: `result_of` the undisturbed experiments, by id.
    """
    found = [f"{name} is {_state(site, name)}, not done" for name in expected if _state(site, name) != "done"]
    found += [f"{name} was not asked for" for name in set(experiment_ids(site.runs_dir)) - set(expected)]
    found += _queue(site)
    if unsent_experiments(site.runs_dir):  # the next chance
        hacpo = [sys.executable, "-m", "flows.cli"]
        subprocess.run([*hacpo, "sync", "--runs-dir", str(site.runs_dir)], env=site.environment(), capture_output=True)
    found += [f"{name} is not completely in MLflow" for name in unsent_experiments(site.runs_dir)]
    points = mlflow_points(site.tracking_uri)
    has_new_runs = any(path.name == STATE_FILE for path, _, _ in site.torn)  # as training warned
    for name, value in expected.items():
        if _state(site, name) == "done":
            got = read_restored(site, lambda name=name: result_of(find_plan(site.runs_dir, name), points))  # type: ignore[misc]
            found += [f"{name}: {difference}" for difference in differences(got, value, has_new_runs=has_new_runs)]
            if is_locked(site.experiments / name):
                found.append(f"{name} is locked")
    return found


def differences(got: Mapping[str, Any], expected: Mapping[str, Any], *, has_new_runs: bool) -> list[str]:
    """What two results differ in.

    Args:
        got: `result_of` a disturbed training.
        expected: `result_of` the undisturbed one.
        has_new_runs: whether MLflow may hold points in several runs of a name, as after a torn state file.
    """
    found = [f"{key} differs" for key in sorted({*got, *expected} - {"MLflow"}) if got.get(key) != expected.get(key)]
    own, others = (Counter(set(one["MLflow"])) if has_new_runs else one["MLflow"] for one in (got, expected))
    found += [f"too often in MLflow: {point}" for point in own - others]
    return found + [f"not in MLflow: {point}" for point in others - own]


def read_restored(site: Site, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is read, after restoring each torn file that an error names, as the error asks.

    Training reads no file of a step before its checkpoint but the metrics, so such a file may still be torn at the end.
    """
    while True:
        try:
            return read()
        except StoreError as error:
            if not restore(site.torn, str(error)):
                raise


def problems_of_end(code: int, lines: Sequence[str], *, may_abort: bool) -> list[str]:
    """What is wrong with how a disturbed command ended by itself, without success.

    Args:
        code: its exit code, minus the signal if one ended it.
        lines: the last ones that it printed.
        may_abort: whether a library of the command may end its process.
    """
    last = next((line for line in reversed(lines) if line.strip()), "")
    if code < 0 and code != -signal.SIGINT and not may_abort:  # SIGINT: interrupted, and once more while it ended
        return [f"a command was ended by {signal.Signals(-code).name}: {last}"]
    found = [f"a command printed a traceback: {last}"] if any(line.startswith("Traceback") for line in lines) else []
    if not found and not any("hacpo: " in line for line in lines):
        found = [f"a command ended with {code} and without a sentence of ours: {last}"]
    return [] if may_abort else found


def _state(site: Site, name: str) -> str:
    return experiment_status(site.experiments / name).state


def _queue(site: Site) -> list[str]:
    """Flow runs that are still queued or running, once a reconciler, as the next worker's, had time to look."""
    server = find_server(site.runs_dir)
    if server is None:
        return []
    schedule, deadline = Schedule(server, site.runs_dir), time.monotonic() + QUIET_S
    reconciler = Reconciler(schedule, site.runs_dir)
    while live := [run for run in schedule.runs().values() if run.is_live]:
        reconciler.check_once()
        if time.monotonic() > deadline:
            return [f"the flow run of {run.experiment} is {run.state}" for run in live]
        time.sleep(1.0)
    return []


def read_reference(site: Site) -> dict[str, dict[str, Any]]:
    """`result_of` every experiment of an undisturbed site, by id."""
    points = mlflow_points(site.tracking_uri)
    return {name: result_of(find_plan(site.runs_dir, name), points) for name in experiment_ids(site.runs_dir)}
