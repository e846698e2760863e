"""Faults inside the processes of a campaign. Python imports this file at its start if PYTHONPATH holds its folder.

HACPO_SOAK_TROUBLE names a file: what happens to requests over httpx, one of "refuses", "hangs", "answers 500". Without
the file, nothing happens. `clock.c` sets the clock.

HACPO_SOAK_POINT holds "<call>:<before or after>:<number>:<file>", for example "rename:after:17:/tmp/x": the process
that first reaches its 17th rename kills itself right after it, and notes the point in the file; no second one does.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.abc
import importlib.util
import itertools
import os
import signal
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

CALLS = {"rename": os, "fsync": os, "pwrite": os, "flock": fcntl}


def _arm(name: str, when: str, number: int, fired: str) -> None:
    module, count = CALLS[name], itertools.count(1)
    original = getattr(module, name)

    def die() -> None:
        with suppress(FileExistsError):
            file = os.open(fired, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(file, f"{name}:{when}:{number}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def call(*args: object, **options: object) -> object:
        is_due = next(count) == number
        if is_due and when == "before":
            die()
        result = original(*args, **options)
        if is_due and when == "after":
            die()
        return result

    setattr(module, name, call)


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


class _AfterHttpx(importlib.abc.MetaPathFinder):
    """Changes httpx's transports as soon as it is imported."""

    name = "httpx"

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname != self.name:
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

    def _change(self, httpx: ModuleType) -> None:
        path, plain, asynchronous = self._path, httpx.HTTPTransport, httpx.AsyncHTTPTransport
        send, send_async = plain.handle_request, asynchronous.handle_async_request

        def answer(request: Any) -> Any:
            kind = _content(path)
            if kind == "refuses":
                raise httpx.ConnectError("Connection refused", request=request)
            return httpx.Response(500, text="Internal Server Error", request=request) if kind == "answers 500" else None

        def handle_request(self: object, request: Any) -> Any:
            while _content(path) == "hangs":
                time.sleep(0.2)
            return answer(request) or send(self, request)

        async def handle_async_request(self: object, request: Any) -> Any:
            while _content(path) == "hangs":
                await asyncio.sleep(0.2)
            return answer(request) or await send_async(self, request)

        plain.handle_request, asynchronous.handle_async_request = handle_request, handle_async_request


if "HACPO_SOAK_TROUBLE" in os.environ:
    sys.meta_path.insert(0, _AfterHttpx(os.environ["HACPO_SOAK_TROUBLE"]))
_point = os.environ.get("HACPO_SOAK_POINT", "")
if _point:
    _name, _when, _number, _fired = _point.split(":", 3)
    _arm(_name, _when, int(_number), _fired)
