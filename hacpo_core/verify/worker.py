"""Main program of a worker process: calls one function under a memory limit until its parent ends.

    python -m hacpo_core.verify.worker package.module:function DESCRIPTOR MEMORY_MB PARENT_PID IS_SILENT

DESCRIPTOR is the file descriptor of a pipe. Messages out are pickled pairs of kind and value:

    out  ("ready", None), or ("failed", why)     after the imports
    in   (argument, ...)
    out  ("taken", None)                         lets the parent tell an idle process that died from a failed call
    out  ("returned", list), or ("raised", "KeyError: ...")
"""

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
"""Deep enough for nested fractions, and safe with a C stack of 8 MB."""

_PR_SET_PDEATHSIG = 1


def main(name: str, descriptor: str, memory_mb: str, parent_pid: str, is_silent: str) -> None:
    """Serve until the pipe is closed."""
    pipe: Connection = Connection(int(descriptor))
    if int(is_silent):
        # SIGTERM to the whole process group must not end a comparison; the end of the parent still does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(int(parent_pid))
    limit_resources(int(memory_mb))
    try:
        function = load(name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything; the parent raises
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        return
    if int(is_silent):  # only now, because the parent reads errors of the start
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
        raise TypeError(f"{attribute} is not a function")
    return function


def plain(value: Any) -> Any:
    """The value as a plain Python number or string; anything that is no number becomes its repr."""
    if value is None or isinstance(value, float | int | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to kill this process when its parent ends: while it hangs in sympy it cannot see the pipe close."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def limit_resources(memory_mb: int) -> None:
    """Limit address space and recursion, and disable core dumps."""
    limit, (_, most) = memory_mb * 2**20, resource.getrlimit(resource.RLIMIT_AS)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(RECURSION_LIMIT)


if __name__ == "__main__":
    main(*sys.argv[1:])
