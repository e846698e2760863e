"""A PostgreSQL server on loopback, from Debian's programs, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from flows.service.processes import free_port
from tests.waiting import wait_until


def programs() -> Path | None:
    """Debian's folder of PostgreSQL's programs, the newest release's; None where there is none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return folders[-1].parent if folders else None


class Postgres:
    """A database server that runs until `close`; as root, it runs as the user postgres."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None, "PostgreSQL is not installed: apt-get install postgresql"
        self._bin, self.port, self.password = found, free_port(), secrets.token_hex(12)
        self.folder = Path(tempfile.mkdtemp(prefix="hacpo-team-"))  # pytest's own folders are closed to other users
        self._owner = "postgres" if os.getuid() == 0 else None
        password = self.folder / "password"
        password.write_text(self.password, encoding="utf-8")
        if self._owner is not None:
            entry = pwd.getpwnam(self._owner)
            for path in (self.folder, password):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        words = ["-D", str(self.folder / "data"), "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={password}"]
        self._popen([str(found / "initdb"), "--no-sync", *words]).wait(120)
        self._start()

    def _start(self) -> None:
        options = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
        command = [str(self._bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        self._process = self._popen([*command, *(word for option in options for word in ("-c", option))])
        wait_until(lambda: self._run("pg_isready").returncode == 0, "PostgreSQL does not start", limit_s=300.0)

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        group = {} if self._owner is None else {"user": self._owner, "group": self._owner, "extra_groups": []}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **group)  # type: ignore[call-overload, no-any-return]

    def _run(self, program: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self._bin / program), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", *words]
        environment = {**os.environ, "PGPASSWORD": self.password}
        return subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)

    def sql(self, statements: str, database: str = "postgres") -> str:
        """What psql prints."""
        done = self._run("psql", "-v", "ON_ERROR_STOP=1", "-At", "-d", database, stdin=statements)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def prefects(self, database: str) -> dict[str, str]:
        """Environment of a Prefect server that keeps its records in this database."""
        url = f"postgresql+asyncpg://postgres:{self.password}@127.0.0.1:{self.port}/{database}"
        return {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}

    def dump(self, database: str) -> str:
        """All that a database holds, as text."""
        return self._run("pg_dump", "-d", database).stdout

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # the fast shutdown
        self._process.wait(60)

    def restart(self, *, away_s: float) -> None:
        """End all connections and start again after some seconds."""
        self._stop()
        time.sleep(away_s)
        self._start()

    def close(self) -> None:
        self._stop()
        shutil.rmtree(self.folder)
