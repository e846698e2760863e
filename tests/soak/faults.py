"""The faults of the campaign. Each takes a round's site and a random generator and returns its victims, if any."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.soak.processes import by_role, marked
from tests.soak.site import Site

STOPPED_S = (5.0, 60.0, 5.0)
"""shortest, longest and most likely time"""
FULL_S = (2.0, 8.0)
TROUBLE_S = (2.0, 15.0)
AWAY_S = (10.0, 60.0)
Fault = Callable[[Site, random.Random], list[str]]


def _victims(site: Site, rng: random.Random, number: int, *roles: str) -> list[tuple[str, psutil.Process]]:
    """Processes of random roles, so that the many helpers are not hit most of the time; none that is ending anyway."""
    found = {role: own for role, own in by_role(site.mark).items() if not roles or role in roles}
    chosen = []
    for _ in range(number):
        found = {role: own for role, own in found.items() if own}
        if found:
            role = rng.choice(sorted(found))
            process = found[role].pop(rng.randrange(len(found[role])))
            if process.pid not in site.ending:
                chosen.append((role, process))
    return chosen


def kill(site: Site, rng: random.Random) -> list[str]:
    """SIGKILL to one to three processes at once; each of them counts."""
    killed = []
    for role, process in _victims(site, rng, rng.choice((1, 1, 2, 3))):
        with suppress(psutil.NoSuchProcess):
            process.suspend()  # so that the death of one does not end the other first
            killed.append((role, process))
    for _, process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return [role for role, _ in killed]


def terminate(site: Site, rng: random.Random) -> list[str]:
    """SIGTERM to a process that people and services end so."""
    for role, process in _victims(site, rng, 1, "command", "worker", "run", "server"):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
            site.ending.add(process.pid)
            return [role]
    return []


def stop(site: Site, rng: random.Random) -> list[str]:
    """SIGSTOP to any process, and SIGCONT some seconds later."""
    for role, process in _victims(site, rng, 1):
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            timer = threading.Timer(rng.triangular(*STOPPED_S), _go_on, [process])
            site.timers.append(timer)
            timer.start()
            return [role]
    return []


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


def tear(site: Site, rng: random.Random) -> list[str]:
    """End everything, as a power cut does, and truncate a file of the store or flip one of its bytes."""
    for process in list(marked(site.mark)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    files: dict[str, list[Path]] = {}  # by type, so that the few large ones are hit as often as the many small ones
    for path in sorted(site.experiments.rglob("*")):
        if path.is_file() and path.stat().st_size and path.name != "lock" and ".tmp" not in path.name:
            files.setdefault(path.suffix, []).append(path)
    if not files:
        return []
    path = rng.choice(files[rng.choice(sorted(files))])
    before = path.read_bytes()
    content = bytearray(before)
    position = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[position] ^= 1 << rng.randrange(8)
    else:
        del content[position:]
    path.write_bytes(content)
    site.torn.append((path, before, bytes(content)))
    return [path.name if path.suffix == ".json" else path.suffix.lstrip(".") or path.name]


def make_read_only(site: Site, rng: random.Random) -> list[str]:
    """Nothing can be written below `experiments`, or in the runs folder, for some seconds; open files stay so."""
    if not site.is_small_disk or not site.experiments.exists():
        return []
    what = rng.choice((site.experiments, site.runs_dir))
    folder = str(what)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        time.sleep(rng.uniform(*FULL_S))
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    return ["experiments" if what == site.experiments else "runs folder"]


def disappear(site: Site, rng: random.Random) -> list[str]:
    """SIGSTOP to all processes of the round, and SIGCONT up to a minute later, as after a machine that was paused."""
    stopped = list(marked(site.mark))
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    time.sleep(rng.uniform(*AWAY_S))
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    return ["all"]


def set_clock(site: Site, rng: random.Random) -> list[str]:
    """The clock of all processes goes ten minutes forward or back, and is right again some seconds later."""
    if not site.has_clock:
        return []
    shift = rng.choice((-600, 600))
    site.set_clock(shift)
    time.sleep(rng.uniform(*TROUBLE_S))
    site.set_clock(0)
    return [f"{shift:+d} s"]


def trouble_server(site: Site, rng: random.Random) -> list[str]:
    """All requests to servers are refused, hang or are answered with 500 for some seconds."""
    if "server" not in by_role(site.mark):
        return []
    kind = rng.choice(("refuses", "hangs", "answers 500"))
    site.trouble.write_text(kind, encoding="utf-8")
    time.sleep(rng.uniform(*TROUBLE_S))
    site.trouble.unlink()
    return [f"server {kind}"]


def fill_disk(site: Site, rng: random.Random) -> list[str]:
    """Fill the small disk that holds the runs folder for some seconds."""
    if not site.is_small_disk:
        return []
    ballast = site.runs_dir / "ballast"
    free = os.statvfs(site.runs_dir).f_bavail * os.statvfs(site.runs_dir).f_frsize
    with suppress(OSError), ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - 4096))
    time.sleep(rng.uniform(*FULL_S))
    ballast.unlink(missing_ok=True)
    return ["disk"]


FAULTS: dict[str, tuple[Fault, float]] = {
    "SIGKILL": (kill, 5.0),
    "SIGTERM": (terminate, 1.0),
    "SIGSTOP": (stop, 1.0),
    "torn file": (tear, 0.7),
    "full disk": (fill_disk, 0.5),
    "read-only disk": (make_read_only, 0.7),
    "machine away": (disappear, 0.2),
    "clock set": (set_clock, 0.2),
    "server in trouble": (trouble_server, 1.0),
}
"""each fault and how often it is chosen, relative to the others; the clock is rarely set, because flow runs that are
queued while it is ahead wait for ten minutes"""
KILLS = ("SIGKILL", "SIGKILL at a point")
"""names of the faults that count as kills; after a torn file, the deaths of the power cut do not count"""
