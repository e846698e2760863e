"""Kills a process at a named point of its code. Python imports this file at its start if PYTHONPATH holds its folder.

HACPO_SOAK_POINT holds "<call>:<before or after>:<number>:<file>", for example "rename:after:17:/tmp/x": the process
that first reaches its 17th rename kills itself right after it, and creates the file, so that no second one does.
"""

import fcntl
import itertools
import os
import signal
from contextlib import suppress

CALLS = {"rename": os, "fsync": os, "pwrite": os, "flock": fcntl}


def _arm(name: str, when: str, number: int, fired: str) -> None:
    module, count = CALLS[name], itertools.count(1)
    original = getattr(module, name)

    def die() -> None:
        with suppress(FileExistsError):
            os.close(os.open(fired, os.O_CREAT | os.O_EXCL))
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


_point = os.environ.get("HACPO_SOAK_POINT", "")
if _point:
    _name, _when, _number, _fired = _point.split(":", 3)
    _arm(_name, _when, int(_number), _fired)
