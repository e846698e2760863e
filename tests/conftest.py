"""Fixtures that several test files share: a pair of very small warm agents, and small experiments with them."""

import dataclasses
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from filelock import FileLock

from flows.cli import main
from flows.planning.compose import compose
from flows.planning.plans import Plan, plan, save_plan
from flows.runs.mlflow_store import prepare_store
from flows.service.prefect_server import server_environment, stop_server
from flows.service.processes import home_of
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.arithmetic import split_expressions
from hacpo_core.methods.plan import PlanTask, SampleSpec, SamplingPlan
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.records import Problem
from tests.experiments_outcome import finish

DATABASE = "prefect.db"
MIN_FREE = 50 * 2**20
"""bytes; with less, a test that fails says that the disk is full"""
SMALL_PAIR = """
pair:
  name: small
  agents:
    qwen:
      tiny:
        {family: qwen3, tokenizer: character, hidden_size: 48, num_layers: 2}
      warm_up: &sums
        {source: arithmetic, template: "{problem}", num_steps: 400, batch_size: 32, learning_rate: 1.0e-2,
         num_demonstrations: 4000}
    llama:
      tiny:
        {family: llama, tokenizer: merged, hidden_size: 48, num_layers: 2, seed: 1}
      warm_up: {<<: *sums, seed: 1}
engine: {num_threads: 1}
train: {num_steps: 4, problems: 4}
method: {build: {problems: 2}, objective: {sequence_low: 0.1, sequence_high: 0.1}}
rollout: {num_samples: 4, max_prompt_tokens: 40, max_response_tokens: 40}
optimizer: {learning_rate: 1.0e-3}
data: {directory: FOLDER, train: [sums], sets: {sums: {file: p.jsonl, template: "{problem}"}}}
verifier: {num_workers: 1, timeout_s: 30.0}
evaluate:
  every: 2
  during: [dev]
  final: [dev, test]
  benchmarks:
    dev: {file: p.jsonl, template: "{problem}", limit: 8}
    test: {file: p.jsonl, template: "{problem}", limit: 8}
checkpoint: {every: 2}
runtime: {runner: direct}
"""


def pytest_configure() -> None:
    """Ctrl-C interrupts what tests start, also where the shell has what it starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


ENGINES = ("deepspeed", "ray", "vllm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines' tests are `system`. Files with slow tests come first, so that no process is left alone with one."""
    for item in items:
        if any(map(item.get_closest_marker, ENGINES)):
            item.add_marker("system")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A full disk ends the tests with one sentence instead of a traceback for each."""
    report, folder = (yield), tempfile.gettempdir()
    if report.failed and shutil.disk_usage(folder).free < MIN_FREE:
        report.longrepr = f"the disk of {folder} is full; free some space, or set TMPDIR to another folder"
        item.session.shouldfail = report.longrepr
    return report


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread, as the embedded pairs run: these models are too small to share, and other counts give other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def leftovers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Waits for every process that the test started, directly or not, and lists those that live on."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("HACPO_TEST_MARK", mark)

    def living() -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HACPO_TEST_MARK") == mark and process.pid != os.getpid():
                    yield process

    def wait() -> list[str]:
        return [str(process.cmdline()) for process in psutil.wait_procs(list(living()), timeout=20)[1]]

    return wait


def write_small_pair(folder: Path) -> None:
    """The pair's file and its problems: every answer is 3, so that a model too small to calculate is right at times."""
    rows = [
        {"id": str(expression), "problem": str(expression), "answer": "3"}
        for expression in split_expressions("dev")[:64]
    ]
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL_PAIR.replace("FOLDER", str(folder)), encoding="utf-8")


def specs_of(config: ExperimentConfig, problems: Sequence[Problem]) -> Sequence[SampleSpec]:
    """What the configuration's plan asks of an agent for these problems."""
    rollout = config.rollout
    plan: SamplingPlan = config.method.plan
    return plan.plan(PlanTask(1, "", problems, rollout.num_samples, rollout.limits, config.seed), {})[0]


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first of a session's test processes makes for all of them."""
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not (folder / "is-made").exists():
            folder.mkdir()  # fails where the first one failed
            make(folder)
            (folder / "is-made").touch()
    return folder


def copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system that is soon full, of a size like "64k"."""
    folder = tmp_path / "small-disk"

    def make(size: str) -> Path:
        folder.mkdir()
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
        )
        if mount.returncode:
            pytest.skip(f"this machine mounts no tmpfs (it needs root): {mount.stderr.decode().strip()}")
        return folder

    yield make
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair file, and a runs folder whose model cache holds the warm models of the small pair."""

    def make(folder: Path) -> None:
        write_small_pair(folder)
        config = compose(str(folder / "small.yaml"), "hacpo")
        for name, agent in config.pair.agents.items():
            InitialModel(name, agent, folder / "models").make()

    return made_once(tmp_path_factory, "small", make)


@pytest.fixture(scope="session")
def undisturbed() -> Callable[[Plan], dict[str, Any]]:
    """Outcome of an experiment that nothing disturbs, trained once for all tests of a process."""
    known: dict[str, dict[str, Any]] = {}

    def find(planned: Plan) -> dict[str, Any]:
        config = planned.config
        asked = repr(dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, runs_dir="")))
        if asked not in known:
            known[asked] = finish(planned)
        return known[asked]

    return find


@pytest.fixture(scope="session")
def empty_tracking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without a run: to migrate a fresh one takes seconds, each time."""
    folder = made_once(tmp_path_factory, "tracking", lambda folder: prepare_store(f"sqlite:///{folder / 'mlflow.db'}"))
    return folder / "mlflow.db"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Gives a runs folder an empty database for its Prefect server: to migrate a fresh one takes five seconds."""

    def make(folder: Path) -> None:
        words = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        subprocess.run(words, env=server_environment(folder, port=0, auth=""), check=True, capture_output=True)

    def prepare(runs_dir: Path) -> None:
        home_of(runs_dir).mkdir(parents=True)
        copy_database(made_once(tmp_path_factory, "server", make) / DATABASE, home_of(runs_dir) / DATABASE)

    return prepare


@pytest.fixture(scope="module")
def site_dir(
    small_models: Path, tmp_path_factory: pytest.TempPathFactory, migrated: Callable[[Path], None]
) -> Iterator[Path]:
    """A runs folder with warm models for all tests of a module; its server is stopped at the end."""
    runs_dir = tmp_path_factory.mktemp("site")
    (runs_dir / "models").symlink_to(small_models / "models")
    migrated(runs_dir)
    yield runs_dir
    stop_server(runs_dir)


@pytest.fixture
def probe(
    small_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Standard output of `hacpo probe small.yaml` with these words."""
    runs_dir = tmp_path / "probed"
    runs_dir.mkdir()
    (runs_dir / "models").symlink_to(small_models / "models")

    def run(*words: str, pair: Path = small_models / "small.yaml") -> str:
        monkeypatch.setattr("sys.argv", ["hacpo", "probe", str(pair), *words, "--runs-dir", str(runs_dir)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        assert "first calls, in which its sampler checks itself" in printed.err, "it would be silent for minutes"
        assert not (runs_dir / "experiments").exists()
        return printed.out

    return run


@pytest.fixture
def small_plan(small_models: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Plan]:
    """Makes plans of small experiments in a runs folder of the test's own."""

    def make(method: str, *overrides: str, runs_dir: Path = tmp_path / "runs") -> Plan:
        runs_dir.mkdir(parents=True, exist_ok=True)
        if not (runs_dir / "models").exists():
            (runs_dir / "models").symlink_to(small_models / "models")
        if "tracking.enabled=true" in overrides and not (runs_dir / "mlflow.db").exists():
            copy_database(request.getfixturevalue("empty_tracking"), runs_dir / "mlflow.db")
        words = [f"runtime.runs_dir={runs_dir}", "tracking.enabled=false", *overrides]
        config: ExperimentConfig = compose(str(small_models / "small.yaml"), method, overrides=words)
        planned = plan(config)
        save_plan(planned)
        return planned

    return make
