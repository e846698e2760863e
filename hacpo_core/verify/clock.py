"""Clock times, as text: 4:30 p.m., 16:30."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hacpo_core.verify.parsing import IN_TEXT

CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))? *(?:([ap])\.? ?m\.?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Time:
    """A time as on a clock's face, with "a", "p" or "" for the half of the day."""

    hours: int
    minutes: int
    seconds: int
    half: str

    @property
    def of_day(self) -> tuple[int, int, int] | None:
        """Hours from 0 to 23, minutes and seconds; None if the half of the day is unknown."""
        if not self.half:
            return None if 1 <= self.hours <= 12 else (self.hours, self.minutes, self.seconds)
        return self.hours % 12 + (12 if self.half == "p" else 0), self.minutes, self.seconds


def _time(answer: str) -> _Time | None:
    match = CLOCK.fullmatch(IN_TEXT.sub(r"\1", answer).strip())
    if match is None:
        return None
    hours, minutes, seconds, half = match.groups(default="")
    return _Time(int(hours), int(minutes), int(seconds or 0), half.lower())


def same_time(candidate: str, expected: str) -> bool | None:
    """Whether two answers are the same time; None if one is no time.

    If the gold answer says neither a.m. nor p.m., the candidate may say either.
    """
    time, expected_time = _time(candidate), _time(expected)
    if time is None or expected_time is None:
        return None
    if expected_time.half == "" and replace(time, half="") == expected_time:
        return True
    return time.of_day is not None and time.of_day == expected_time.of_day
