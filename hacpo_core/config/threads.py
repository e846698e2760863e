"""Number of CPU threads of a process with models: `engine.num_threads`."""

import os
from contextlib import suppress
from pathlib import Path

from hacpo_core.config.counts import num_processes
from hacpo_core.config.engine import AUTO
from hacpo_core.config.schema import ExperimentConfig

SLOTS = "HACPO_SLOTS"
"""environment variable with the number of experiments that a worker runs at a time, for those that it starts"""
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""processor time that a container may use, in µs per period of µs; "max": no limit"""


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity, or fewer in a container with a limit."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # another system, or no limit
        limit, period = map(float, CPU_LIMIT.read_text(encoding="utf-8").split())
        cores = min(cores, int(limit / period))
    return max(1, cores)


def num_threads(config: ExperimentConfig) -> int:
    """Threads of each process with models; `auto` shares the usable cores among slots and this machine's processes.

    In a Ray cluster of several machines, `auto` is 1.
    """
    threads = config.engine.num_threads
    if isinstance(threads, int):
        return threads
    assert threads == AUTO, "validate() requires auto or a number"
    if config.placement.kind == "ray" and config.placement.ray.address is not None:
        return 1
    slots = max(1, int(os.environ.get(SLOTS) or 1))
    return max(1, usable_cores() // (slots * num_processes(config)))
