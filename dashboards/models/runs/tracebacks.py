"""Parses a traceback into frames, innermost first."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CHAIN = re.compile(
    r"\n\n(?=During handling of the above exception|The above exception was the direct cause)[^\n]*\n\n"
)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')


@dataclass(frozen=True, slots=True)
class Frame:
    """One call; `code` is its source line, "" if the traceback lacks it."""

    file: str
    line: int
    function: str
    code: str


def frames(text: str) -> list[Frame]:
    """Frames of the exception that was raised last, innermost first."""
    lines = _CHAIN.split(text)[-1].splitlines()
    parsed = []
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match:
            after = lines[number + 1] if number + 1 < len(lines) else ""
            code = after.strip() if after.startswith("    ") else ""
            parsed.append(Frame(match["file"], int(match["line"]), match["function"], code))
    return parsed[::-1]
