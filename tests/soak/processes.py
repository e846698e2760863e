"""The processes that a round of the campaign started, by what they are."""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import psutil

MARK = "HACPO_SOAK_MARK"
"""environment variable that all processes of a round inherit"""
_ROLES = {
    "flows.service.prefect_process": "server",
    "sync": "late sender",
    "prefect.engine": "run",
    "worker": "worker",
    "grid": "command",
    "train": "command",
    "resume": "command",
}


def marked(mark: str) -> Iterator[psutil.Process]:
    """Live processes of a round."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_live = process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
            if is_live and process.environ().get(MARK) == mark:
                yield process


def by_role(mark: str) -> dict[str, list[psutil.Process]]:
    """Live processes of a round by role; "helper" is a verifier, a fork server or the like."""
    roles: dict[str, list[psutil.Process]] = defaultdict(list)
    for process in marked(mark):
        with suppress(psutil.Error, IndexError):
            words = process.cmdline()
            is_rays = "/ray/" in words[0] or words[0].startswith("ray::")
            role = "Ray" if is_rays else next((role for word, role in _ROLES.items() if word in words), "helper")
            if role != "helper" or process.ppid() != 1:  # a helper without its parent is about to end
                roles[role].append(process)
    return roles
