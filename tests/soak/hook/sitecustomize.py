"""Faults inside the processes of a campaign. Python imports this file at its start if PYTHONPATH holds its folder.

HACPO_SOAK_TROUBLE names a file: what happens to requests over httpx, one of "refuses", "hangs", "answers 500". Without
the file, nothing happens. `clock.c` sets the clock.

HACPO_SOAK_POINT holds "<call>:<before or after>:<number>:<file>", for example "rename:after:17:/tmp/x": the process
that first reaches its 17th rename kills itself right after it, and notes the point in the file. As long as the file
exists, no other process does. The calls are those of the system (rename, fsync, flock), of the store (write, commit,
checkpoint) and requests to servers (request), by which flow runs are queued.
"""

import asyncio
import fcntl
import functools
import importlib.abc
import importlib.util
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

SYSTEM = {"rename": os, "fsync": os, "flock": fcntl}
OWN = {
    "write": ("hacpo_core.files", "write_atomically"),
    "commit": ("hacpo_core.store.steps", "StepStore.commit"),
    "checkpoint": ("hacpo_core.placement.checkpoints", "save_checkpoint"),
}
"""module and attribute of a call; it is changed when the module has been imported, before others import from it"""


class _Point:
    """Kills this process before or after the n-th of the calls that pass it."""

    def __init__(self, name: str, when: str, number: int, fired: str) -> None:
        self._name, self._when, self._number, self._fired = name, when, number, fired
        self._count = itertools.count(1)

    def _die(self) -> None:
        with suppress(FileExistsError):
            file = os.open(self._fired, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(file, f"{self._name}:{self._when}:{self._number}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self) -> bool:
        """A call begins; returns whether it is the n-th."""
        is_due = next(self._count) == self._number
        if is_due and self._when == "before":
            self._die()
        return is_due

    def end(self, is_due: bool) -> None:
        """A call has ended."""
        if is_due and self._when == "after":
            self._die()

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            is_due = self.begin()
            result = function(*args, **options)
            self.end(is_due)
            return result

        return call


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes a module right after it has been imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        inner = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            inner(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(owner: Any, attribute: str, point: _Point) -> None:
    *path, name = attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, name, point.wrapped(getattr(owner, name)))


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _change_httpx(httpx: ModuleType, trouble: str, point: _Point | None) -> None:
    plain, asynchronous = httpx.HTTPTransport, httpx.AsyncHTTPTransport
    send, send_async = plain.handle_request, asynchronous.handle_async_request

    def answer(request: Any) -> Any:
        kind = _content(trouble)
        if kind == "refuses":
            raise httpx.ConnectError("Connection refused", request=request)
        return httpx.Response(500, text="Internal Server Error", request=request) if kind == "answers 500" else None

    def handle_request(self: object, request: Any) -> Any:
        is_due = point is not None and point.begin()
        while _content(trouble) == "hangs":
            time.sleep(0.2)
        response = answer(request) or send(self, request)
        if point is not None:
            point.end(is_due)
        return response

    async def handle_async_request(self: object, request: Any) -> Any:
        is_due = point is not None and point.begin()
        while _content(trouble) == "hangs":
            await asyncio.sleep(0.2)
        response = answer(request) or await send_async(self, request)
        if point is not None:
            point.end(is_due)
        return response

    plain.handle_request, asynchronous.handle_async_request = handle_request, handle_async_request


_words = os.environ.get("HACPO_SOAK_POINT", "").split(":", 3)
_point = _Point(_words[0], _words[1], int(_words[2]), _words[3]) if len(_words) == 4 else None
if _point is not None and _words[0] in SYSTEM:
    _wrap(SYSTEM[_words[0]], _words[0], _point)
elif _point is not None and _words[0] in OWN:
    _module, _attribute = OWN[_words[0]]
    sys.meta_path.insert(0, _AfterImport(_module, lambda module: _wrap(module, _attribute, _point)))
if "HACPO_SOAK_TROUBLE" in os.environ:
    _requests = _point if _words[0] == "request" else None
    _httpx = functools.partial(_change_httpx, trouble=os.environ["HACPO_SOAK_TROUBLE"], point=_requests)
    sys.meta_path.insert(0, _AfterImport("httpx", _httpx))
