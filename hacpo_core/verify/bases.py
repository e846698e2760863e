r"""Numbers in a base other than ten, as text: 52_8, 1A_{16}, 52 \text{ base } 8. Nothing is converted."""

from __future__ import annotations

import re

from hacpo_core.verify.numerals import number_in_words

_DIGITS = r"-?[0-9A-Z]*?\d[0-9A-Z]*?(?:\.[0-9A-Z]+?)?"
IN_BASE = re.compile(
    rf"(?:\((?P<inside>{_DIGITS})\)|(?P<digits>{_DIGITS}))"
    r"(?: ?_ ?\{? ?(?P<base>\d+|[a-z-]+) ?\}?| ?\(?(?:in ?)?base[- ]?(?P<behind>\w+)\)?)",
    re.IGNORECASE,
)
_PLAIN = re.compile(_DIGITS, re.IGNORECASE)


def bases_agree(candidate: str, expected: str) -> bool | None:
    """Whether a number has the gold answer's digits and its base or none; None if neither or one is no such number.

    Both are without \text. A base that is not given is ten for the gold answer, and any for the candidate.
    """
    digits, base = _number(candidate)
    expected_digits, expected_base = _number(expected)
    if not (base or expected_base) or not digits or not expected_digits or expected_digits != expected_digits.upper():
        return None  # 2a_{11} has a variable
    if digits.upper() != expected_digits:
        return None if base == expected_base == 10 else False
    return base in (0, expected_base or 10)


def _number(answer: str) -> tuple[str, int]:
    """Digits and base of a number; 0 if it has no base, "" if it is no number."""
    match = IN_BASE.fullmatch(answer)
    if match is None:
        return (answer, 0) if _PLAIN.fullmatch(answer) else ("", 0)
    name = match["base"] or match["behind"]
    base = int(name) if name.isdecimal() else number_in_words(name)
    digits = match["inside"] or match["digits"]
    if base is None or base < 2 or any(int(digit, 36) >= base for digit in re.sub(r"[-.]", "", digits)):
        return "", 0
    return digits, base
