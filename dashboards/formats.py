"""Formats of numbers on the pages and in the report."""

import math
from datetime import UTC, datetime

from flows.records.progress import Spent

DASH = "—"
"""stands for what is unknown"""


def duration(seconds: float | None) -> str:
    """Format seconds: "1.3 s", "40 s", "12 min", "3.5 h", "4.0 days"."""
    if seconds is None or math.isnan(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.1f} s" if 0 < seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def hours(spent: Spent) -> str:
    """Format the GPU time, or, if no GPU was used, the time of the phases on the CPU: "3.5 h GPU", "40 s CPU"."""
    return f"{duration(spent.gpu_s)} GPU" if spent.gpu_s > 0 else f"{duration(spent.seconds)} CPU"


def count(value: float | None) -> str:
    """Format a count: 950, 12.3k, 4.5M."""
    if value is None:
        return DASH
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.1f}{letter}"
    return f"{value:.0f}"


def counted(number: int, noun: str) -> str:
    """Format a number of things: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number_text(value: float | None, form: str = ".3f") -> str:
    """Format a number, by default an accuracy or a reward: 0.731; a dash if it is unknown."""
    return DASH if value is None or math.isnan(value) else f"{value:{form}}"


def signed(value: float) -> str:
    """Format a difference: "+1.2", "−0.3"."""
    return f"{value:+.1f}".replace("-", "−")


def clock(seconds: float) -> str:
    """Format a time as its UTC day and second: "25 Nov 10:31:07"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M:%S")


def short(text: str, max_characters: int = 140) -> str:
    """Shorten a text to one line of at most `max_characters` characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"
