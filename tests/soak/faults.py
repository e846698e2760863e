"""The faults of the campaign. Each takes a round's site and a random generator and returns its victim, "" if none."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.soak.processes import by_role, marked
from tests.soak.site import Site

STOPPED_S = (5.0, 20.0)
FULL_S = (2.0, 8.0)
TROUBLE_S = (2.0, 15.0)
AWAY_S = (10.0, 60.0)
Fault = Callable[[Site, random.Random], str]


def _victim(site: Site, rng: random.Random, *roles: str) -> tuple[str, psutil.Process] | None:
    """A process of a random role, so that the many helpers are not killed most of the time."""
    found = {role: processes for role, processes in by_role(site.mark).items() if not roles or role in roles}
    if not found:
        return None
    role = rng.choice(sorted(found))
    return role, rng.choice(found[role])


def _signalled(site: Site, rng: random.Random, number: int, *roles: str) -> str:
    chosen = _victim(site, rng, *roles)
    if chosen is None:
        return ""
    role, process = chosen
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    return role


def kill(site: Site, rng: random.Random) -> str:
    """SIGKILL to any process."""
    return _signalled(site, rng, signal.SIGKILL)


def terminate(site: Site, rng: random.Random) -> str:
    """SIGTERM to a process that people and services end so."""
    return _signalled(site, rng, signal.SIGTERM, "command", "worker", "run", "server")


def stop(site: Site, rng: random.Random) -> str:
    """SIGSTOP to any process, and SIGCONT some seconds later."""
    chosen = _victim(site, rng)
    if chosen is None:
        return ""
    role, process = chosen

    def go_on() -> None:
        with suppress(psutil.NoSuchProcess):
            process.resume()

    with suppress(psutil.NoSuchProcess):
        process.suspend()
        timer = threading.Timer(rng.uniform(*STOPPED_S), go_on)
        site.timers.append(timer)
        timer.start()
    return role


def tear(site: Site, rng: random.Random) -> str:
    """End everything, as a power cut does, and truncate a file of the store or flip one of its bytes."""
    for process in list(marked(site.mark)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    files = [path for path in site.experiments.rglob("*") if path.is_file() and path.stat().st_size and _is_torn(path)]
    if not files:
        return ""
    path = rng.choice(sorted(files))
    content = bytearray(path.read_bytes())
    position = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[position] ^= 1 << rng.randrange(8)
    else:
        del content[position:]
    path.write_bytes(content)
    return path.name if path.suffix == ".json" else path.suffix.lstrip(".") or path.name


def make_read_only(site: Site, rng: random.Random) -> str:
    """Nothing can be written below `experiments` for some seconds; files that are open stay so."""
    folder = str(site.experiments)
    if not site.is_small_disk or not site.experiments.exists():
        return ""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        time.sleep(rng.uniform(*FULL_S))
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    return "disk"


def disappear(site: Site, rng: random.Random) -> str:
    """SIGSTOP to all processes of the round, and SIGCONT up to a minute later, as after a machine that was paused."""
    stopped = list(marked(site.mark))
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    time.sleep(rng.uniform(*AWAY_S))
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    return "all"


def set_clock(site: Site, rng: random.Random) -> str:
    """The clock of all processes goes ten minutes forward or back, until the next such fault."""
    shift = rng.choice((-600, 600))
    site.clock.write_text(str(shift), encoding="utf-8")
    return f"{shift:+d} s"


def trouble_server(site: Site, rng: random.Random) -> str:
    """All requests to servers are refused, hang or are answered with 500 for some seconds."""
    if "server" not in by_role(site.mark):
        return ""
    kind = rng.choice(("refuses", "hangs", "answers 500"))
    site.trouble.write_text(kind, encoding="utf-8")
    time.sleep(rng.uniform(*TROUBLE_S))
    site.trouble.unlink()
    return f"server {kind}"


def restart_postgres(site: Site, rng: random.Random) -> str:
    """PostgreSQL ends all connections and is back some seconds later."""
    if site.postgres is None:
        return ""
    site.postgres.restart(away_s=rng.uniform(*FULL_S))
    return "PostgreSQL"


def _is_torn(path: Path) -> bool:
    return path.name not in ("config.yaml", "contents.json")  # what is asked for, not what was done


def fill_disk(site: Site, rng: random.Random) -> str:
    """Fill the small disk that holds the runs folder for some seconds."""
    if not site.is_small_disk:
        return ""
    ballast = site.runs_dir / "ballast"
    free = os.statvfs(site.runs_dir).f_bavail * os.statvfs(site.runs_dir).f_frsize
    with suppress(OSError), ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - 4096))
    time.sleep(rng.uniform(*FULL_S))
    ballast.unlink(missing_ok=True)
    return "disk"


FAULTS: dict[str, tuple[Fault, float]] = {
    "SIGKILL": (kill, 6.0),
    "SIGTERM": (terminate, 1.0),
    "SIGSTOP": (stop, 1.0),
    "torn file": (tear, 1.0),
    "full disk": (fill_disk, 0.5),
    "read-only disk": (make_read_only, 0.7),
    "machine away": (disappear, 0.3),
    "clock set": (set_clock, 0.7),
    "server in trouble": (trouble_server, 1.0),
    "restart": (restart_postgres, 2.0),
}
"""each fault and how often it is chosen, relative to the others"""
