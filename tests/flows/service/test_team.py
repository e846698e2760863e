"""A team's site as docs/team.md describes it: its settings, SQL and commands, against a real PostgreSQL."""

from __future__ import annotations

import http.server
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from mlflow.tracking import MlflowClient

from flows.grids.planner import plan_grid
from flows.records.states import experiment_status
from flows.service.prefect_server import PrefectServer
from flows.service.processes import Record, end_family, free_port, home_of
from flows.service.schedule import Schedule
from flows.service.worker import find_worker
from tests.postgres import Postgres, programs
from tests.waiting import wait_until

PAGE = (Path(__file__).parents[3] / "docs" / "team.md").read_text(encoding="utf-8")
LIMIT_S = 300.0


def block(title: str) -> str:
    """A block of the page, by the comment in its first line."""
    found = re.search(rf"```\w+\n(?:#|--) {re.escape(title)}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, f"docs/team.md has no block {title}"
    return found.group(1)


class Team:
    """PostgreSQL, Prefect's and MLflow's servers, and a worker, all from the page."""

    def __init__(self, postgres: Postgres, folder: Path, pair: Path) -> None:
        self.postgres, self.folder, self.runs_dir, self._pair = postgres, folder, folder / "runs", pair
        self.prefect_port, self.mlflow_port = free_port(), free_port()
        names = ("PREFECT_DB_PASSWORD", "MLFLOW_DB_PASSWORD", "PREFECT_PASSWORD", "MLFLOW_PASSWORD")
        self.passwords = {name: secrets.token_hex(12) for name in names}
        self.mark = uuid.uuid4().hex
        self.command_lines: set[str] = set()
        self._processes: list[psutil.Popen] = []
        self._is_over = threading.Event()
        self._watching = threading.Thread(target=self._watch_command_lines, daemon=True)
        self._watching.start()

    def fill(self, text: str) -> str:
        """The page's text with this site's passwords, ports and folders."""
        places = {
            "https://prefect.team.example": f"http://127.0.0.1:{self.prefect_port}",
            "https://mlflow.team.example": f"http://127.0.0.1:{self.mlflow_port}",
            "ALLOWED_HOSTS=mlflow.team.example": f"ALLOWED_HOSTS=127.0.0.1:{self.mlflow_port}",
            "127.0.0.1:5432": f"127.0.0.1:{self.postgres.port}",
            "PORT=4200": f"PORT={self.prefect_port}",
            "PORT=5000": f"PORT={self.mlflow_port}",
            "/var/lib/hacpo": str(self.folder / "hub"),
            "/shared/runs": str(self.runs_dir),
            "/opt/hacpo/.venv/bin": str(Path(sys.executable).parent),
        }
        for name, value in {**places, **self.passwords}.items():
            text = text.replace(name, value)
        return text

    def settings(self, name: str, **others: str) -> dict[str, str]:
        """Environment of a process with the page's settings, and nothing of this machine's own."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "HACPO_"))}
        lines = self.fill(block(f"/etc/hacpo/{name}.env")).splitlines()
        pairs = dict(line.split("=", 1) for line in lines)
        return {**own, **pairs, "HACPO_TEST_MARK": self.mark, "PYTHONPATH": str(Path(__file__).parents[3]), **others}

    def start(self, name: str, **others: str) -> psutil.Popen:
        """The process of a unit of the page."""
        unit = self.fill(block(f"/etc/systemd/system/hacpo-{name}.service"))
        (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        assert f"EnvironmentFile=/etc/hacpo/{name}.env" in unit
        with (self.folder / f"{name}.log").open("ab") as log:
            process = psutil.Popen(command.split(), env=self.settings(name, **others), stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def grid(self, *methods: str) -> str:
        """Path of a grid of the small pair."""
        entry = f"{{pairs: [{self._pair}], methods: [{', '.join(methods)}]}}"
        path = self.folder / f"{'-'.join(methods)}.yaml"
        path.write_text(f"title: small\nentries: [{entry}]\nreport: {{table: plain}}", encoding="utf-8")
        return str(path)

    def hacpo(self, *words: str, runs_dir: Path | None = None, **others: str) -> subprocess.CompletedProcess[str]:
        """A command as a member of the team types it."""
        command = [sys.executable, "-m", "flows.cli", *words, "--runs-dir", str(runs_dir or self.runs_dir)]
        environment = self.settings("worker", **others)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    @property
    def server(self) -> PrefectServer:
        auth = f"hacpo:{self.passwords['PREFECT_PASSWORD']}"
        return PrefectServer(f"http://127.0.0.1:{self.prefect_port}", auth)

    @property
    def mlflow_url(self) -> str:
        return f"http://127.0.0.1:{self.mlflow_port}"

    def runs_of_worker(self) -> list[psutil.Process]:
        return [process for process in self.marked() if "prefect.engine" in " ".join(process.cmdline())]

    def marked(self) -> Iterator[psutil.Process]:
        """Every living process that was started for this site, however far from here."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HACPO_TEST_MARK") == self.mark:
                    yield process

    def _watch_command_lines(self) -> None:
        while not self._is_over.wait(1.0):
            for process in self.marked():
                with suppress(psutil.Error):
                    self.command_lines.add(" ".join(process.cmdline()))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")[-3000:]

    def close(self) -> None:
        self._is_over.set()
        self._watching.join()
        for process in reversed(self._processes):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                end_family(process)
            process.wait(30)
        for process in self.marked():
            process.kill()


@pytest.fixture(scope="module")
def team(small_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    pytest.importorskip("asyncpg", reason="Prefect's driver of PostgreSQL is not installed")
    pytest.importorskip("psycopg2", reason="MLflow's driver of PostgreSQL is not installed: the extra team")
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    postgres = Postgres()
    found = Team(postgres, tmp_path_factory.mktemp("team"), small_models / "small.yaml")
    try:
        found.runs_dir.mkdir()
        (found.runs_dir / "models").symlink_to(small_models / "models")
        postgres.sql(found.fill(block("databases.sql")))
        servers = {
            "prefect": (found.start("prefect"), "/api/health"),
            "mlflow": (found.start("mlflow", MLFLOW_WORKERS="1"), "/health"),
        }
        urls = {"prefect": found.server.url, "mlflow": found.mlflow_url}
        for name, (process, path) in servers.items():
            url = urls[name] + path

            def is_up(url: str = url, process: psutil.Popen = process) -> bool:
                assert process.poll() is None
                with suppress(httpx.HTTPError):
                    return httpx.get(url, timeout=5, auth=tuple(found.server.auth.split(":"))).status_code == 200
                return False

            wait_until(is_up, f"{name} does not start: {found.log(name)}", limit_s=120)
        yield found
    finally:
        found.close()
        postgres.close()


@pytest.mark.slow
@pytest.mark.system
def test_grid_of_a_team_trains_on_postgresql_and_no_password_gets_out(team: Team) -> None:
    team.start("worker")
    wait_until(lambda: find_worker(team.runs_dir) is not None, "no worker", limit_s=LIMIT_S)
    grid = team.grid("gspo", "hacpo")
    submitted = team.hacpo("grid", grid, "--submit", "--priority", "high")
    assert submitted.returncode == 0, submitted.stderr
    assert "3 experiments in the queue" in submitted.stdout
    done = team.hacpo("grid", grid)
    assert done.returncode == 0, done.stderr + team.log("worker")
    assert f"MLflow   {team.mlflow_url}" in done.stdout

    plans = plan_grid(grid, runs_dir=team.runs_dir).plans.values()
    assert [experiment_status(planned.root).state for planned in plans] == ["done"] * 3
    schedule = Schedule(team.server, team.runs_dir)
    wait_until(lambda: {run.state for run in schedule.runs().values()} == {"Completed"}, "not completed", limit_s=30)
    assert {name: run.priority for name, run in schedule.runs().items()} == {p.id: "high" for p in plans}
    assert int(team.postgres.sql("SELECT count(*) FROM task_run", "prefect")) > 3 * 20

    client = MlflowClient(team.mlflow_url)
    experiment = client.get_experiment_by_name("hacpo")
    found = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in found] == ["FINISHED"] * len(found)
    parents = {run.data.tags["hacpo.experiment"]: run for run in found if "hacpo.agent" not in run.data.tags}
    assert set(parents) == {planned.id for planned in plans}
    assert all(run.data.metrics["progress/step"] == 4 for run in parents.values())
    beside = [path for path in team.runs_dir.rglob("*") if path.suffix in (".db", ".sqlite")]
    assert beside == [], "all went to the servers"
    assert any("mlflow" in line for line in team.command_lines)
    assert any("prefect.engine" in line for line in team.command_lines)
    assert [line for line in team.command_lines for secret in team.passwords.values() if secret in line] == []
    written = [path for path in team.folder.rglob("*") if path.is_file()]
    assert team.folder / "worker.log" in written
    texts = {str(path): path.read_bytes().decode(errors="replace") for path in written}
    texts |= {name: team.postgres.dump(name) for name in ("prefect", "mlflow")}
    assert "progress/step" in texts["mlflow"]
    assert [name for name, text in texts.items() for secret in team.passwords.values() if secret in text] == []


@pytest.mark.soak
@pytest.mark.slow
def test_reconciler_comes_with_the_worker_and_finds_the_dead(team: Team) -> None:
    if find_worker(team.runs_dir) is None:
        team.start("worker")
        wait_until(lambda: find_worker(team.runs_dir) is not None, "no worker", limit_s=LIMIT_S)
    worker = find_worker(team.runs_dir)
    assert worker is not None
    words = ["train.num_steps=12", "--submit", "--seeds", "7"]
    submitted = team.hacpo("grid", team.grid("hacpo"), *words)
    assert submitted.returncode == 0, submitted.stderr
    schedule = Schedule(team.server, team.runs_dir)

    def states() -> set[str]:
        return {run.state for run in schedule.runs().values()}

    wait_until(lambda: team.runs_of_worker() and "Running" in states(), "nothing runs", limit_s=LIMIT_S)
    killed = [worker, *worker.children(recursive=True)]
    for process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(killed, timeout=20)
    assert "Running" in states(), "nobody is left to report the death"
    team.start("worker")
    wait_until(lambda: states() == {"Completed"}, f"not fixed: {team.log('worker')}", limit_s=LIMIT_S)
    ended = [run.state.type.value for run in schedule.all_flow_runs() if run.state is not None]
    assert ended.count("CRASHED") == 1
    status = team.hacpo("server", "status").stdout
    assert status.startswith(f"{team.server.url} healthy\nworker: process ")


@pytest.mark.slow
@pytest.mark.system
def test_server_refuses_strangers_foreign_pages_and_wrong_log_ins(team: Team) -> None:
    filter_url = f"{team.server.url}/api/flow_runs/filter"
    auth = tuple(team.server.auth.split(":"))
    assert httpx.get(f"{team.server.url}/api/admin/version", timeout=30).status_code == 401
    assert httpx.post(filter_url, json={}, auth=auth, timeout=30).status_code == 403, "without a CSRF token"
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    allowed = httpx.options(filter_url, headers=headers, timeout=30).headers.get("access-control-allow-origin")
    assert allowed not in ("*", "http://evil.example")
    own = httpx.options(filter_url, headers=headers | {"Origin": team.server.url}, timeout=30)
    assert own.headers["access-control-allow-origin"] == team.server.url
    foreign = httpx.get(
        f"{team.mlflow_url}/api/2.0/mlflow/experiments/get", headers={"Host": "evil.example"}, timeout=30
    )
    assert foreign.status_code == 403
    for words in (["worker"], ["grid", team.grid("hacpo")]):
        refused = team.hacpo(*words, runs_dir=team.folder / "new", PREFECT_API_AUTH_STRING="hacpo:wr0ng")
        assert refused.returncode == 3, refused.stdout
        assert refused.stderr.count("\n") == 1
        assert "rejects the log-in; expected its user:password in PREFECT_API_AUTH_STRING" in refused.stderr
        assert "wr0ng" not in refused.stderr


def command(folder: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HACPO_PREFECT_URL": url, "PREFECT_API_AUTH_STRING": "me:s3cret"}
    program = [sys.executable, "-m", "flows.cli", *words, "--runs-dir", str(folder)]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["worker"], ["grid", "demo", "--submit"]], ids=["worker", "grid"])
def test_silent_server_is_one_clear_error(words: list[str], tmp_path: Path) -> None:
    done = command(tmp_path, f"http://127.0.0.1:{free_port()}", *words)
    assert done.returncode == 3
    assert re.fullmatch(
        r"hacpo: HACPO_PREFECT_URL: http://127.0.0.1:\d+ does not answer \(.*Connection refused\); .*\n", done.stderr
    )


class _Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_server_that_refuses_the_log_in_is_one_clear_error(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = command(tmp_path, f"http://127.0.0.1:{server.server_port}", "worker")
        server.shutdown()
    assert done.returncode == 3
    assert re.fullmatch(r"hacpo: .* rejects the log-in; expected .* in PREFECT_API_AUTH_STRING; .*\n", done.stderr)
    assert "s3cret" not in done.stderr


@pytest.mark.slow
def test_address_with_a_password_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command(tmp_path, "http://me:s3cret@127.0.0.1:4200", "worker")
    assert done.returncode == 2
    assert "HACPO_PREFECT_URL: holds a password" in done.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:5000")
    also = command(tmp_path, "http://127.0.0.1:4200", "worker")
    assert also.returncode == 2
    assert "MLFLOW_TRACKING_URI: contains a password" in also.stderr
    assert "s3cret" not in done.stderr + also.stderr


def test_machines_that_share_a_folder_do_not_take_each_others_processes_for_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(tmp_path)
    home.mkdir(parents=True)
    record = Record(home, "server")
    record.write(os.getpid(), {})
    assert record.process() is not None
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert record.process() is None
