"""Freed memory is kept for the next tensors, and a person's own settings of malloc stay."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc, whose malloc is told what to do"
)
FAULTS = """
import resource, torch
from hacpo_core.engines.allocator import keep_freed_memory

is_kept = {} and keep_freed_memory()
torch.ones(2**26)  # 256 MiB: an aligned block takes a little more than a freed one of its size has
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(3 * 2**24)
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 3 * 2**26 // 2**12


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
    is_kept, number = faults(keeps=True)
    assert is_kept
    assert number < PAGES / 100
    assert faults(keeps=False)[1] >= PAGES / 2, "huge pages or another allocator: the test sees nothing here"


@pytest.mark.parametrize(
    "variable", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}]
)
def test_settings_of_a_persons_own_stay(variable: dict[str, str]) -> None:
    is_kept, number = faults(keeps=True, **variable)
    assert not is_kept
    assert number >= PAGES / 2
