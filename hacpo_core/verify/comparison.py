"""What a verifier worker calls: one comparison, with its failures as data. Only worker processes import this file."""

from __future__ import annotations

import resource
from pathlib import Path

from hacpo_core.verify.equality import answers_equal

_PROC = Path("/proc/self")

# A broken installation of math-verify finds nothing equal, and says nothing.
if not answers_equal(r"\frac{1}{2}", "0.5"):
    raise ImportError(r"math-verify does not find \frac{1}{2} equal to 0.5")


def compare(candidate: str, gold: str, unit: str, tolerance: float, is_multiple: bool) -> tuple[str, str]:
    """Status and reason of a verdict; after an exception of the libraries nothing is known of the answer."""
    forget_peak_memory()
    try:
        is_equal = answers_equal(candidate, gold, unit=unit, tolerance=tolerance, is_multiple=is_multiple)
    except MemoryError:
        return "unscored", "memory"
    except Exception as error:  # noqa: BLE001 - any failure of a library is data
        return "unscored", f"error: {type(error).__name__}"
    # math-verify swallows a MemoryError and says "not equal": with more than half of the limit used, do not believe it.
    if not is_equal and peak_memory_bytes() > resource.getrlimit(resource.RLIMIT_AS)[0] / 2:
        return "unscored", "memory"
    return "correct" if is_equal else "wrong", ""


def forget_peak_memory() -> None:
    """Let the peak of the resident memory start again from what is resident now, where Linux allows it."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return


def peak_memory_bytes() -> int:
    """Peak of the resident memory, 0 where the system does not tell."""
    try:
        status = (_PROC / "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
