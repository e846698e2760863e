"""The page as a process, and clients that no browser is: mutated requests, slow connections, many requests at once."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

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
    head = page.get("/")
    cookie = re.search(rb"set-cookie: ([^;]+)", head)
    assert cookie is not None
    session = f"GET / HTTP/1.1\r\nHost: {page.host}\r\nCookie: {cookie[1].decode()}\r\nConnection: close\r\n\r\n"
    csrf = re.search(rb'"X-CSRF-Token": "([0-9a-f]+)"', page.send(session.encode()))
    assert csrf is not None
    for _ in range(number):
        data = request(rng, runs=page.runs, host=page.host, csrf=csrf[1].decode(), cookie=cookie[1].decode())
        answer = page.send(data, timeout_s=WAITS_S)
        status = answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else ""
        found.statuses[status] += 1
        leak = LEAKS.search(answer) or re.search(re.escape(str(page.runs_dir)).encode(), answer)
        if status.startswith("5") or leak is not None:
            found.problems.append(f"{status} {leak and leak[0]!r} to {data[:300]!r}: {answer[:60]!r}")
    return found


@contextmanager
def slow_connections(page: Page, number: int) -> Iterator[list[socket.socket]]:
    """Connections that send one byte of a request now and then, and never end it."""
    connections = [page.connect() for _ in range(number)]
    is_over = threading.Event()

    def trickle() -> None:
        text = f"GET / HTTP/1.1\r\nHost: {page.host}\r\nX: {'x' * 10_000}".encode()
        for place in range(len(text)):
            for connection in connections:
                with suppress(OSError):  # the page may close it
                    connection.sendall(text[place : place + 1])
            if is_over.wait(0.2):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield connections
    finally:
        is_over.set()
        thread.join()
        for connection in connections:
            connection.close()


def ask_at_rate(
    page: Page, number: int, *, per_second: float, num_connections: int = 200
) -> tuple[Answers, list[float]]:
    """Plain requests that are sent when they are due, whether or not earlier ones have been answered.

    Returns:
        the answers, and the seconds from when each request was due to the end of its answer.
    """
    paths = ["/overview", "/static/app.css", "/runs/table", f"/run/{page.runs[0]}/status", "/grid/small_grid"]
    found, times = Answers(), list[float]()

    async def converse(first: int, begun: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port, limit=1 << 20)
        places = range(first, number, num_connections)

        async def ask() -> None:
            for place in places:
                await asyncio.sleep(max(0.0, begun + place / per_second - time.monotonic()))
                writer.write(f"GET {paths[place % len(paths)]} HTTP/1.1\r\nHost: {page.host}\r\n\r\n".encode())

        asking = asyncio.create_task(ask())
        for place in places:
            found.statuses[await _read_answer(reader)] += 1
            times.append(time.monotonic() - begun - place / per_second)
        await asking
        writer.close()

    async def converse_all() -> None:
        begun = time.monotonic() + 1.0
        await asyncio.gather(*(converse(first, begun) for first in range(num_connections)))

    asyncio.run(converse_all())
    return found, times


async def _read_answer(reader: asyncio.StreamReader) -> str:
    """Status of the next answer, whose body is read to its end; "" if the page has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""
    return head[9:12].decode()
