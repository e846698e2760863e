"""Whole numbers from zero to a hundred in English words, as text: twenty-one, seven apples."""

from __future__ import annotations

import re

from hacpo_core.verify.units import without_last_unit

_TO_NINETEEN = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {word: number for number, word in enumerate(_TO_NINETEEN)}
_NUMBERS |= {word: 10 * number for number, word in enumerate(_TENS, start=2)}
_NUMBERS |= {f"{ten}-{word}": _NUMBERS[ten] + _NUMBERS[word] for ten in _TENS for word in _TO_NINETEEN[1:10]}
_NUMBERS |= {"a hundred": 100, "one hundred": 100, "a dozen": 12, "one dozen": 12}
_BETWEEN = re.compile(r"(?<=ty) (?=[a-z])")
_ANSWER = re.compile(
    r"(?P<minus>(?:minus|negative) )?"
    rf"(?P<number>(?:{'|'.join(_TENS)})(?:[- ](?:{'|'.join(_TO_NINETEEN[1:10])}))?"
    rf"|(?:a|one) (?:hundred|dozen)|{'|'.join(sorted(_TO_NINETEEN, key=len, reverse=True))})"
    r"(?P<unit> (?!of\b)[a-z]+(?:/[a-z]+)?| ?\\text\{[^{}]*\}(?:\^\d)?)?",
    re.IGNORECASE,
)


def number_in_words(words: str) -> int | None:
    """The number that a text is, or None."""
    return _NUMBERS.get(_BETWEEN.sub("-", words.lower()))


def with_digits(answer: str) -> str:
    """An answer that is a number in words, perhaps with a unit behind it, with digits; another one as it is."""
    match = _ANSWER.fullmatch(answer)
    if match is None:
        return answer
    unit = match["unit"] or ""
    digits = f"{'-' if match['minus'] else ''}{number_in_words(match['number'])}{unit}"
    has_more = unit and (unit.strip().lower() in _NUMBERS or without_last_unit(digits)[1] is None)
    return answer if has_more else digits
