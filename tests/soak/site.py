"""A runs folder of one round: its commands, its small disk, and what is left when it ends."""

import os
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from flows.service.processes import home_of
from tests.soak.processes import MARK, marked

HOOK = Path(__file__).parent / "hook"
ROOT = Path(__file__).parents[2]
DISK_MIB = 512


@cache
def clock_library(folder: Path) -> Path | None:
    """`hook/clock.c` as a library in the folder; None without a compiler."""
    library = folder / "clock.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, HOOK / "clock.c", "-ldl"], check=True)
    except FileNotFoundError:
        print("no clock is set: there is no C compiler", flush=True)
        return None
    return library


@dataclass(frozen=True, slots=True)
class Call:
    """A command that was started, and the file of its output."""

    process: subprocess.Popen[bytes]
    output: Path

    def last_lines(self, number: int = 40) -> list[str]:
        """Of what it printed."""
        return self.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-number:]


Torn = tuple[Path, bytes, bytes]
"""a file, and its content before and after a fault"""


def restore(files: Sequence[Torn], message: str) -> bool:
    """Restore a torn file that a message names, as the message asks; whether there was one."""
    for path, before, torn in files:
        if str(path) in message and path.is_file() and path.read_bytes() == torn:
            path.write_bytes(before)
            return True
    return False


class Site:
    """A runs folder on a small disk of its own where the machine allows that."""

    def __init__(self, runs_dir: Path, models: Path, *, python: str = sys.executable, has_clock: bool = False) -> None:
        """
        Args:
            runs_dir: folder to make.
            models: warm models.
            python: runs the commands.
            has_clock: whether the clock of the site's processes can be set.
        """
        self.runs_dir, self.mark, self._python = runs_dir, uuid.uuid4().hex, python
        self.timers: list[threading.Timer] = []
        self.ending = set[int]()
        """processes that were told to end"""
        self.torn: list[Torn] = []
        self.points: list[Path] = []
        """files in which processes note the points at which they killed themselves, one for each armed point"""
        self._num_calls = 0
        runs_dir.mkdir(parents=True)
        size = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(runs_dir)]
        self.is_small_disk = subprocess.run(["mount", *size], capture_output=True).returncode == 0
        (runs_dir / "models").symlink_to(models)
        self._clock_library = clock_library(models.parent) if has_clock else None
        self.set_clock(0)

    @property
    def experiments(self) -> Path:
        return self.runs_dir / "experiments"

    @property
    def tracking_uri(self) -> str:
        """Address of MLflow's database."""
        return f"sqlite:///{self.runs_dir / 'mlflow.db'}"

    @property
    def has_clock(self) -> bool:
        return self._clock_library is not None

    @property
    def _clock(self) -> Path:
        return self.runs_dir.with_suffix(".clock")

    def set_clock(self, shift_s: int) -> None:
        """Shift the clock of the round's processes, see `hook/clock.c`."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("q", shift_s))

    @property
    def trouble(self) -> Path:
        """File that makes servers fail, see `hook/sitecustomize.py`."""
        return self.runs_dir.with_suffix(".trouble")

    def environment(self, point: str = "") -> dict[str, str]:
        """Of the round's processes; `point` as in `hook/sitecustomize.py`, without the file."""
        path = os.pathsep.join([str(HOOK), str(ROOT), os.environ.get("PYTHONPATH", "")])
        if point:
            self.points.append(self.runs_dir.with_suffix(f".point-{len(self.points)}"))
            point = f"{point}:{self.points[-1]}"
        own: dict[str, str] = {}
        if self._clock_library is not None:
            own = {"LD_PRELOAD": str(self._clock_library), "HACPO_SOAK_CLOCK": str(self._clock)}
        return {
            **os.environ,
            **own,
            MARK: self.mark,
            "PYTHONPATH": path,
            "HACPO_SOAK_POINT": point,
            "HACPO_SOAK_TROUBLE": str(self.trouble),
            "PREFECT_LOGGING_LEVEL": "ERROR",
        }

    def start(self, arguments: Sequence[str], *, point: str = "") -> Call:
        """Start a `hacpo` command; its output goes to a file beside the runs folder."""
        self._num_calls += 1
        output = self.runs_dir.with_suffix(f".out-{self._num_calls}")
        with output.open("ab") as out:
            process = subprocess.Popen(
                [self._python, "-m", "flows.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment(point),
                start_new_session=True,
            )
        return Call(process, output)

    def stop(self) -> None:
        """End all services as a person would."""
        for timer in self.timers:
            timer.join()
        subprocess.run(
            [sys.executable, "-m", "flows.cli", "server", "stop", "--runs-dir", str(self.runs_dir)],
            env=self.environment(),
            capture_output=True,
        )

    def leftovers(self, *, limit_s: float = 60.0) -> list[str]:
        """Processes that live on, and temporary files."""
        deadline = time.monotonic() + limit_s
        while (living := list(marked(self.mark))) and time.monotonic() < deadline:
            time.sleep(0.5)
        found = []
        for process in living:
            with suppress(psutil.NoSuchProcess):
                found.append(f"process {process.cmdline()}")
        home = home_of(self.runs_dir)
        files = [*self.experiments.rglob("*.tmp*"), *home.glob("*.tmp*"), *home.glob(".*.json.*")]
        return found + [f"file {path.relative_to(self.runs_dir)}" for path in files]

    def remove(self) -> None:
        """End what is left by force, unmount the disk, drop the database."""
        for process in list(marked(self.mark)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self.is_small_disk:
            subprocess.run(["umount", "--lazy", str(self.runs_dir)], check=True)
