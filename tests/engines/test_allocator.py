"""Freed memory is kept for the next tensors, and a person's own settings of malloc stay."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

VERSION = platform.libc_ver()[1] if platform.libc_ver()[0] == "glibc" else "0"
pytestmark = pytest.mark.skipif(
    tuple(map(int, VERSION.split("."))) < (2, 35) or "LD_PRELOAD" in os.environ,
    reason="needs the malloc of glibc 2.35, which takes thresholds of any size",
)
FAULTS = """
import resource, torch
from hacpo_core.engines.cpu.allocator import keep_freed_memory

is_kept = {} and keep_freed_memory()
torch.ones(2**26)  # 256 MiB: an aligned block takes a little more than a freed one of its size has
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(3 * 2**24)
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 3 * 2**26 // resource.getpagesize()


def faults(*, keeps: bool, **variables: str) -> tuple[bool, int]:
    """Whether memory is kept, and the page faults of a tensor that follows a larger one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(keeps)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    is_kept, number = done.stdout.split()
    return is_kept == "True", int(number)


def test_tensor_takes_the_memory_of_one_before() -> None:
    if faults(keeps=False)[1] < PAGES / 2:
        pytest.skip("huge pages: few faults either way")
    is_kept, number = faults(keeps=True)
    assert is_kept
    assert number < PAGES / 100


@pytest.mark.parametrize(
    "variable", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}]
)
def test_settings_of_a_persons_own_stay(variable: dict[str, str]) -> None:
    assert not faults(keeps=True, **variable)[0]


def test_other_settings_of_malloc_change_nothing() -> None:
    assert faults(keeps=True, MALLOC_ARENA_MAX="2", GLIBC_TUNABLES="glibc.malloc.arena_max=2")[0]
