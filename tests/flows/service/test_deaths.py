"""Worker, run, server: whoever is killed, in whatever state, it ends completed exactly once, or cancelled."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from flows.planning.plans import Plan
from flows.records.states import RESULT_FILE, experiment_status
from flows.service import launch
from flows.service.prefect_server import ensure_server, find_server, is_healthy, stop_server
from flows.service.processes import Record, end_family, home_of
from flows.service.reconciler import Reconciler, Timeouts
from flows.service.schedule import RefusedError, Schedule
from flows.service.worker import find_worker
from hacpo_core.files import read_json
from tests.experiments_outcome import outcome
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.system]
STEPS = "train.num_steps=12"
SHORT = Timeouts(pending_s=12.0, running_s=3.0)
LIMIT_S = 240.0


class Site:
    """A runs folder with its server, its schedule, and a worker that can be killed and started again."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.schedule = Schedule(ensure_server(runs_dir), runs_dir)
        self._started: list[psutil.Popen] = []

    def need_worker(self) -> None:
        """Start a worker unless one runs, and wait until it is known."""
        if find_worker(self.runs_dir) is not None:
            return
        words = [sys.executable, "-m", "flows.cli", "worker", "--runs-dir", str(self.runs_dir), "--slots", "4"]
        with (self.runs_dir / "worker.log").open("ab") as log:
            self._started.append(psutil.Popen(words, stdout=log, stderr=log))
        self.wait(lambda: find_worker(self.runs_dir) is not None, "no worker")

    def worker(self) -> psutil.Process:
        found = find_worker(self.runs_dir)
        assert found is not None
        return found

    def kill_worker(self) -> bool:
        """The worker, not the runs that it started."""
        worker = self.worker()
        worker.kill()
        psutil.wait_procs([worker], timeout=10)
        return True

    def kill_child(self) -> bool:
        """The runs' processes."""
        children = self.children()
        for process in children:
            process.kill()
        return bool(children)

    def children(self) -> list[psutil.Process]:
        """Processes of runs, which Prefect's worker started."""
        return list(self._processes("prefect.engine"))

    def families(self) -> set[psutil.Process]:
        """These, and the runs that were forked for them."""
        worker = self.worker()
        forked = (process for process in self._processes("flows.service.preloaded") if process.ppid() != worker.pid)
        return {*self.children(), *forked}

    def _processes(self, module: str) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    process.environ().get("PREFECT_HOME") == str(self.runs_dir / "prefect")
                    and module in process.cmdline()
                ):
                    yield process

    def kill_server(self) -> bool:
        record = Record(home_of(self.runs_dir), "server")
        process = record.process()
        assert process is not None
        process.kill()
        self.wait(lambda: record.process() is None, "the server lives")  # whoever started it may not have reaped it
        return True

    def has_server(self) -> bool:
        server = find_server(self.runs_dir)
        return server is not None and is_healthy(server)

    @contextmanager
    def standing_still(self, processes: Sequence[psutil.Process]) -> Iterator[None]:
        """They do nothing meanwhile."""
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # ended
                process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):  # killed
                    process.resume()

    def find_server(self) -> None:
        """Bring it back where it is dead, as any command does; it may have moved to another port."""
        self.schedule = Schedule(ensure_server(self.runs_dir), self.runs_dir)

    def wait(self, is_true: Callable[[], object], what: str, *, every_s: float = 0.3) -> None:
        said = (self.runs_dir / "worker.log").read_text
        wait_until(is_true, what, limit_s=LIMIT_S, every_s=every_s, said=lambda: said()[-2000:])

    def wait_for_step(self, planned: Plan, step: int) -> None:
        """Until the step begins; it is one of many, and short."""
        self.wait((planned.root / "steps" / f"{step:06d}").is_dir, f"never at step {step}", every_s=0.02)

    def state(self, planned: Plan) -> str:
        return self.schedule.runs()[planned.id].state

    def close(self) -> None:
        for process in self._started:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                end_family(process)
            process.wait(20)
        for process in self.children():
            process.kill()
        stop_server(self.runs_dir)


@pytest.fixture(scope="module")
def site(site_dir: Path) -> Iterator[Site]:
    found = Site(site_dir)
    yield found
    found.close()


STATES = ("done", "running", "cancelling", "pending", "scheduled")
KILLED = {
    "worker": (Site.kill_worker,),
    "child": (Site.kill_child,),
    "both": (Site.kill_worker, Site.kill_child),
    "server": (Site.kill_server,),
    "all": (Site.kill_server, Site.kill_worker, Site.kill_child),
}


@pytest.mark.soak
@pytest.mark.parametrize("who", KILLED)
def test_experiments_in_every_state_complete_exactly_once_or_stay_cancelled(
    who: str, site: Site, small_plan: Callable[..., Plan], undisturbed: Callable[..., object], tmp_path: Path
) -> None:
    """Each is held still in its state until all are in theirs; then everything that is named is killed at once."""
    words = [STEPS, "checkpoint.every=3", "optimizer.learning_rate=1.0e-4"]
    of_this = [f"pair.name={who}", "tracking.enabled=true"]
    plans = {
        when: small_plan("hacpo", *words, f"seed={seed}", *of_this, runs_dir=site.runs_dir)
        for seed, when in enumerate(STATES)
        if when != "cancelling"
    }
    cancelled = small_plan("hacpo", "train.num_steps=500", f"pair.name={who}", runs_dir=site.runs_dir)
    site.need_worker()
    with ExitStack() as still:
        for when in STATES:
            planned, held, families = plans.get(when, cancelled), set(site.children()), site.families()
            if when == "scheduled":  # the worker takes nothing from the queue, and ends nothing
                still.enter_context(site.standing_still([site.worker()]))
                site.schedule.cancel(cancelled.id)
            site.schedule.start(planned.id)
            if when == "done":  # it has not reported that it is
                site.wait((planned.root / RESULT_FILE).is_file, "never done", every_s=0.02)
            elif when in ("running", "cancelling"):
                site.wait_for_step(planned, 4)
            elif when == "pending":
                site.wait(lambda held=held: set(site.children()) - held, "never pending")  # type: ignore[misc]
            still.enter_context(site.standing_still(list(site.families() - families)))
        states = [site.state(planned) for planned in plans.values()]
        assert states[0] in ("Running", "Completed")
        assert states[1:] == ["Running", "Pending", "Scheduled"]
        assert site.state(cancelled) == "Cancelling"
        assert all(kill(site) for kill in KILLED[who]), "there was something to kill"

    if who == "server":
        site.wait(site.has_server, "the worker, which lives, does not bring it back")
    site.find_server()
    site.need_worker()
    reconciler = Reconciler(site.schedule, site.runs_dir, SHORT)

    def are_completed() -> bool:
        reconciler.check_once()
        runs = {name: run.state for name, run in site.schedule.runs().items()}
        are_ended = {runs[planned.id] for planned in plans.values()} == {"Completed"}
        return are_ended and runs[cancelled.id] == "Cancelled" and not site.children()

    site.wait(are_completed, "never completed", every_s=1.0)
    assert sum(run.parameters["experiment"] == cancelled.id for run in site.schedule.all_flow_runs()) == 1
    assert experiment_status(cancelled.root).state == "missing"
    for planned in plans.values():
        assert experiment_status(planned.root).state == "done"
        alone = small_plan("hacpo", *words, f"seed={planned.config.seed}", runs_dir=tmp_path / "alone")
        assert outcome(planned) == undisturbed(alone)
        runs = [run for run in site.schedule.all_flow_runs() if run.parameters["experiment"] == planned.id]
        newest, *others = [run.state.type.value for run in runs if run.state is not None]
        assert newest == "COMPLETED"
        # Killed; or kept waiting by a busy machine until they were taken for dead, and then locked out, or locking out
        # the next one. Bits and MLflow say that one trained.
        assert set(others) <= {"CRASHED", "COMPLETED"}
        client = MlflowClient(f"sqlite:///{site.runs_dir / 'mlflow.db'}")
        (experiment,) = client.search_experiments(filter_string="name != 'Default'")
        (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{planned.id}'")
        assert run.info.status == "FINISHED"
        points = client.get_metric_history(run.info.run_id, "progress/step")
        assert sorted(point.step for point in points) == list(range(1, 13)), "no point is doubled"
    assert reconciler.check_once() == []


def test_cancelled_run_whose_worker_is_dead_is_ended(site: Site, small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", "train.num_steps=500", "seed=99", runs_dir=site.runs_dir)
    site.need_worker()
    site.schedule.start(planned.id)
    site.wait_for_step(planned, 2)
    (run,) = site.children()
    assert launch.__file__ in run.cmdline(), "it was forked"
    with pytest.raises(RefusedError, match="a live run cannot be started again"):
        site.schedule.start(planned.id)
    site.kill_worker()
    holder = read_json(planned.root / "lock")
    assert psutil.pid_exists(holder["pid"])
    assert holder["pid"] != os.getpid()
    site.schedule.cancel(planned.id)
    reconciler = Reconciler(site.schedule, site.runs_dir, SHORT)
    site.wait(
        lambda: (reconciler.check_once(), site.state(planned) == "Cancelled" and not site.children())[1], "goes on"
    )
    site.wait(
        lambda: experiment_status(planned.root).state == "missing", "a process without a command line keeps the lock"
    )
    assert experiment_status(planned.root).reason.startswith("interrupted at step ")
