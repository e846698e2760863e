"""One comparison, run in a worker process; failures are returned, not raised. Only workers import this file."""

import resource
from pathlib import Path

from hacpo_core.verify.answers import UNREADABLE
from hacpo_core.verify.equality import answers_equal, is_readable

_PROC = Path("/proc/self")

# A broken installation of sympy is seen before the first verdict.
if not answers_equal(r"\frac{1}{2}", "0.5"):
    raise ImportError(r"sympy does not find \frac{1}{2} equal to 0.5")


def compare(candidate: str, gold: str, unit: str, tolerance: float) -> tuple[str, str]:
    """Status and reason of a verdict; unscored if a library raises, or if the gold answer cannot be read."""
    forget_peak_memory()
    try:
        is_equal = answers_equal(candidate, gold, unit=unit, tolerance=tolerance)
        if not is_equal and not is_readable(gold):
            return "unscored", UNREADABLE
    except Exception as error:  # noqa: BLE001 - any failure of a library is data
        return "unscored", "memory" if isinstance(error, MemoryError) else f"error: {type(error).__name__}"
    # A library may turn a MemoryError into "not equal", so that result is not trusted if over half the limit was used.
    if not is_equal and peak_memory_bytes() > resource.getrlimit(resource.RLIMIT_AS)[0] / 2:
        return "unscored", "memory"
    return "correct" if is_equal else "wrong", ""


def forget_peak_memory() -> None:
    """Reset the peak of resident memory to the current value, if Linux allows it."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return


def peak_memory_bytes() -> int:
    """Peak of resident memory in bytes, or 0 if the system does not report it."""
    try:
        status = (_PROC / "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
