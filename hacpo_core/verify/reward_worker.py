"""The child process of a user's reward function: takes batches, returns what the function says, is killed when slow.

    python -m hacpo_core.verify.reward_worker package.module:function FD MEMORY_MB PARENT_PID

Messages are pickled, on the pipe whose file descriptor is FD: out "ready" once, or the sentence why it cannot start; in
a pair (problems, responses); out the function's list, or a text, the error that it raised.
"""

from __future__ import annotations

import importlib
import sys
from multiprocessing.connection import Connection
from typing import Any

from hacpo_core.verify.worker import die_with_parent, limit_resources

READY = "ready"


def main(name: str, descriptor: str, memory_mb: str, parent_pid: str) -> None:
    """Serve until the pipe is closed."""
    pipe: Connection = Connection(int(descriptor))
    die_with_parent(int(parent_pid))
    limit_resources(int(memory_mb))
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            raise TypeError(f"{attribute} is no function")
    except Exception as error:  # noqa: BLE001  a user's module may raise anything; the parent raises
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(READY)
    while True:
        try:
            problems, responses = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send([_plain(reward) for reward in function(problems, responses)])
        except Exception as error:  # noqa: BLE001  a user's function may raise anything; its rows are unscored
            pipe.send(f"{type(error).__name__}: {error}")


def _plain(reward: Any) -> Any:
    """A number of numpy or torch as Python's; anything else as it is, or as its text where it cannot be sent."""
    if reward is None or isinstance(reward, float | int | str):
        return reward
    try:
        return float(reward)
    except (TypeError, ValueError):
        return repr(reward)


if __name__ == "__main__":
    main(*sys.argv[1:])
