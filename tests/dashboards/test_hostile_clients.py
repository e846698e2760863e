"""The page as a process under mutated requests."""

import random
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from tests.dashboards.stores import write_answers, write_grid
from tests.soak.requests import request

LEAKS = re.compile(rb"Traceback|\.py\b|File \"|site-packages|/proc/|/usr/lib|root:x:0")
"""what no answer may contain, apart from the runs folder's path"""
WAITS_S = 2.0
"""an answer begins within this time, or the page waits for the rest of the request"""


class Page:
    """`hacpo dashboard` of a small folder, on a free port."""

    def __init__(self, folder: Path) -> None:
        self.runs_dir = folder / "runs"
        grid = write_grid(self.runs_dir, seeds=(0,), with_steps=True)
        self.runs = sorted({cell.experiment for cell in grid.cells})
        for name in self.runs:
            write_answers(
                self.runs_dir / "experiments" / name,
                41,
                {"p": {agent: [("\\boxed{3}", "correct"), ("<b>4</b>", "wrong")] for agent in ("qwen", "llama")}},
            )
        self._output = (folder / "output").open("w+b")
        command = [sys.executable, "-m", "flows.cli", "dashboard", "--runs-dir", str(self.runs_dir), "--no-prefect"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._output, text=True)
        assert self._process.stdout is not None
        line = next(line for line in self._process.stdout if line.startswith("dashboard"))
        self.port = int(line.split()[1].rpartition(":")[2])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connect(self, *, timeout_s: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def get(self, path: str) -> bytes:
        """Answer of a plain request, with its head."""
        return self.send(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n".encode())

    def send(self, data: bytes, *, timeout_s: float = 60.0) -> bytes:
        """Answer to these bytes, b"" if the page waits for more of them."""
        with self.connect(timeout_s=timeout_s) as connection:
            with suppress(ConnectionError):  # the page may have answered and closed before the last byte
                connection.sendall(data)
            found = b""
            with suppress(ConnectionError, TimeoutError):
                while part := connection.recv(1 << 16):
                    found += part
        return found

    def log(self) -> str:
        """What the page's process wrote to standard error."""
        self._output.seek(0)
        return self._output.read().decode("utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0
        self._output.close()


@dataclass
class Answers:
    """Answers counted by status; "" for a page that closes the connection or waits for more."""

    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def send_mutated(page: Page, number: int, *, seed: int) -> Answers:
    """Send mutated requests one after another; problems are answers of 500, paths of this machine and stacks."""
    rng, found = random.Random(seed), Answers()
    for _ in range(number):
        data = request(rng, runs=page.runs, host=page.host)
        answer = page.send(data, timeout_s=WAITS_S)
        status = answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else ""
        found.statuses[status] += 1
        leak = LEAKS.search(answer) or re.search(re.escape(str(page.runs_dir)).encode(), answer)
        if status.startswith("5") or leak is not None:
            found.problems.append(f"{status} {leak and leak[0]!r} to {data[:300]!r}: {answer[:60]!r}")
    return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path) as page:
        yield page


SIZES = [pytest.param(400, 0, marks=pytest.mark.system), pytest.param(10_000, 1, marks=pytest.mark.soak)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("number", "seed"), SIZES)
def test_mutated_requests_get_no_500_no_path_and_no_stack(served: Page, number: int, seed: int) -> None:
    found = send_mutated(served, number, seed=seed)
    print(f"{number} mutated requests, seed {seed}: {dict(found.statuses)}")
    assert not found.problems
    assert found.statuses.total() == number
    assert "Traceback" not in served.log()
    assert served.get("/").startswith(b"HTTP/1.1 200")
