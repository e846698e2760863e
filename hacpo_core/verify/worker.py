"""The program of a worker process: calls one function, within a memory limit, until its parent ends.

    python -m hacpo_core.verify.worker package.module:function DESCRIPTOR MEMORY_MB PARENT_PID IS_SILENT

Messages are pickled pairs of kind and value, on the pipe with that file descriptor; the parent sends arguments:

    out  ("ready", None), or ("failed", why)     once, after the imports
    in   (argument, ...)
    out  ("taken", None)                         so that the end of an idle process costs no call
    out  ("returned", list), or ("raised", "KeyError: ...")
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

RECURSION_LIMIT = 2_000
"""Deep enough for nested fractions; the C stack of 8 MB holds it."""

_PR_SET_PDEATHSIG = 1


def main(name: str, descriptor: str, memory_mb: str, parent_pid: str, is_silent: str) -> None:
    """Serve until the pipe is closed."""
    pipe: Connection = Connection(int(descriptor))
    if int(is_silent):
        # A signal to a whole family of processes must not end a comparison; the parent's end still does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(int(parent_pid))
    limit_resources(int(memory_mb))
    try:
        function = load(name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything; the parent raises
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        return
    if int(is_silent):  # only now: the parent reads the errors of the start
        logging.disable(logging.CRITICAL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    pipe.send(("ready", None))
    while True:
        try:
            arguments = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send(("taken", None))
        message: tuple[str, Any]
        try:
            message = ("returned", [plain(value) for value in function(*pickle.loads(arguments))])
        except Exception as error:  # noqa: BLE001 - a function may raise anything; the parent counts it
            message = ("raised", f"{type(error).__name__}: {error}")
        pipe.send(message)


def load(name: str) -> Callable[..., Any]:
    """The function `package.module:function`."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    if not callable(function):
        raise TypeError(f"{attribute} is no function")
    return function


def plain(value: Any) -> Any:
    """A number of numpy or torch as Python's; anything else as it is, or as its text where it cannot be sent."""
    if value is None or isinstance(value, float | int | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to kill this process with its parent; one that hangs in sympy never sees its pipe close."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def limit_resources(memory_mb: int) -> None:
    """Bound the address space and the recursion, and leave no core file."""
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(RECURSION_LIMIT)


if __name__ == "__main__":
    main(*sys.argv[1:])
