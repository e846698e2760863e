"""Numbers as pages print them."""

from __future__ import annotations

import math

from flows.records.progress import Spent


def duration(seconds: float | None) -> str:
    """Coarse, so that it does not change at every look: "40 s", "12 min", "3.5 h", "4 days"."""
    if seconds is None or math.isnan(seconds):
        return "not known"
    if seconds < 90:
        return f"{10 * math.ceil(seconds / 10)} s" if seconds > 0 else "0 s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def hours(spent: Spent) -> str:
    """GPU-hours where a GPU worked, else the hours that phases took on the CPU, called so."""
    value, unit = (spent.gpu_s, "GPU-h") if spent.gpu_s > 0 else (spent.seconds, "CPU phase-h")
    return f"{value / 3600:.{2 if value < 36000 else 0}f} {unit}"


def count(value: float | None) -> str:
    """A number of things in at most four characters and a letter: 950, 12.3k, 4.5M."""
    if value is None:
        return "—"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.1f}{letter}"
    return f"{value:.0f}"


def score(value: float | None) -> str:
    """An accuracy or a reward: .731."""
    return "—" if value is None or math.isnan(value) else f"{value:.3f}"


def short(text: str, most: int = 140) -> str:
    """The beginning of a long text."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
