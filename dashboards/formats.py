"""Number formats of the pages."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from flows.records.progress import Spent


def duration(seconds: float | None) -> str:
    """Format seconds, coarsely so that the text changes rarely: "40 s", "12 min", "3.5 h", "4.0 days"."""
    if seconds is None or math.isnan(seconds):
        return "unknown"
    if seconds < 90:
        return f"{10 * math.ceil(seconds / 10)} s" if seconds > 0 else "0 s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def hours(spent: Spent) -> str:
    """Format the GPU time, or, if no GPU was used, the time of the phases on the CPU: "3.5 h GPU", "40 s CPU"."""
    return f"{elapsed(spent.gpu_s)} GPU" if spent.gpu_s > 0 else f"{elapsed(spent.seconds)} CPU"


def elapsed(seconds: float) -> str:
    """Format a time that has passed: "3.2 s", "40 s", "12 min", "1,250.5 h"."""
    if seconds < 90:
        return f"{seconds:.{1 if 0 < seconds < 10 else 0}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:,.1f} h"


def count(value: float | None) -> str:
    """Format a count: 950, 12.3k, 4.5M."""
    if value is None:
        return "—"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.1f}{letter}"
    return f"{value:.0f}"


def counted(number: int, noun: str) -> str:
    """Format a number of things: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def score(value: float | None) -> str:
    """Format an accuracy or a reward: 0.731."""
    return "—" if value is None or math.isnan(value) else f"{value:.3f}"


def signed(value: float) -> str:
    """Format a difference: "+1.2", "−0.3"."""
    return f"{value:+.1f}".replace("-", "−")


def digits(value: float) -> str:
    """Format an accuracy as its first two digits: 0.731 is "73", 1 is "100"."""
    return f"{100 * value:.0f}"


def clock(seconds: float) -> str:
    """Format a time as its UTC day and minute: "25 Nov 10:31"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M")


def clock_s(seconds: float) -> str:
    """Format a time as its UTC day and second: "25 Nov 10:31:07"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M:%S")


def short(text: str, max_characters: int = 140) -> str:
    """Shorten a text to one line of at most `max_characters` characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"
