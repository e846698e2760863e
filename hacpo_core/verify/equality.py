"""Whether two answers are equal: what text decides, and what is left to algebra. Only workers import this file.

canonical text ─▶ same text, option, yes or no, clock time, word, base  decided as text
─▶ numbers without a few                                 as sets of numbers
─▶ lists, sets, points, intervals                        member by member
─▶ chain of equations                                    side by side
─▶ unit, percent sign                                    compared, then dropped
─▶ math-verify and sympy (`algebra`)                     what is left
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

from hacpo_core.verify.algebra import (
    equal_by_algebra,
    is_constant,
    is_rounded,
    is_share,
    is_to_solve,
    numbers_of_all,
    numbers_without,
)
from hacpo_core.verify.answers import normalise
from hacpo_core.verify.bases import bases_agree
from hacpo_core.verify.choices import OPTION, TRUTH, first_words_agree
from hacpo_core.verify.clock import CLOCK, same_time
from hacpo_core.verify.domains import without_domain
from hacpo_core.verify.exclusions import exclusion_of
from hacpo_core.verify.lists import AND, NAME, Listing, chain, interval, listing
from hacpo_core.verify.marks import capitals_agree, marks_agree
from hacpo_core.verify.parsing import IN_TEXT, SENTENCE, has_variables, is_term, parsed
from hacpo_core.verify.ratios import ratios_agree
from hacpo_core.verify.spelling import canonical
from hacpo_core.verify.units import PERCENT, units_differ, without_last_unit, without_unit

_IDLE_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_SCRIPT = re.compile(r"(\^(?=\{\w\})|_)\{(\w+)\}")
_ORDER = re.compile(r"[<>]|\\(?:[lg]e|neq)(?![a-z])")
_TASK = re.compile(r"\\(?:int|sum|prod|lim)(?![a-z])|\\frac\{d[^{}]*\}\{d[^{}]*\}")
_WORD = re.compile(r"[A-Z]{3,}|[A-Z]?[a-z]{3,}[A-Za-z]*|[A-Z][a-z]+[A-Za-z]*")
_NEGATION = re.compile(
    r"\\neq|\\not(?![A-Za-z])|\\notin|n't\b"
    r"|\b(?:not|cannot|never|neither|nor|except|without|unequal|different from|non(?= ))\b"
    r"|\b(?:wrong|incorrect|invalid|false)\b",
    re.IGNORECASE,
)
_CLOSED_AT_INFINITY = re.compile(
    r"\\infty ?\]|\[ ?- ?\\infty|(?:\\le(?![a-z])|<=) ?\\infty|- ?\\infty ?(?:\\le(?![a-z])|<=)"
    r"|\\infty ?(?:\\ge(?![a-z])|>=)|(?:\\ge(?![a-z])|>=) ?- ?\\infty"
)
_MAX_COMPARED = 8
"""the most members of a list of which each pair is compared"""


def answers_equal(candidate: str, gold: str, *, unit: str = "", tolerance: float = 0.0) -> bool:
    """Whether a candidate equals the gold answer, as text or by algebra.

    Both are first brought into one spelling (`canonical`). If the gold answer is a single option letter, yes, no, true
    or false, a candidate that starts with it is correct. Words and clock times are compared as text. Members of lists
    and sets may have any order, but none may be missing, added or repeated; those of points and intervals have their
    places. An inequality in one variable equals the interval it describes, and x != 0 the real numbers without 0. An
    equation in two or more variables equals its multiples; in one, 2x = 4 is not x = 2. A number with a base equals its
    digits alone, not their value. A number in the candidate may have a unit;
    if the gold answer has one too, it must be the same. 28% equals 28 and 0.28. A letter right after the gold answer's
    number is a variable, not a unit. A candidate that cannot be parsed is wrong.

    Args:
        candidate: the answer from the response.
        gold: the reference answer; the comparison is not symmetric (a gold 5 accepts x = 5).
        unit: unit that may follow the candidate, or each entry of a list; "": unknown.
        tolerance: allowed absolute error of numbers; 0: none.

    Raises:
        Exception: any exception of math-verify or sympy while they compare two parsed answers.
    """
    if unit:
        candidate, gold = without_unit(normalise(candidate), unit), without_unit(normalise(gold), unit)
    (bare_candidate, domain), (bare_gold, expected_domain) = map(
        without_domain, (canonical(candidate), canonical(gold))
    )
    if domain and expected_domain and domain != expected_domain:
        return False
    return _equal(bare_candidate, bare_gold, tolerance)


def is_readable(gold: str) -> bool:
    """Whether spellings of a gold answer other than its own can be judged: it is text, or parsed and equal to itself.

    Raises:
        Exception: see `answers_equal`.
    """
    return _is_readable(without_domain(canonical(gold))[0])


@lru_cache(maxsize=1024)
def _is_readable(expected: str) -> bool:
    whole = listing(expected)
    if _is_text(expected):
        return True
    if whole is not None:
        return all(map(_is_readable, whole.members))
    value, _ = without_last_unit(expected)
    return _is_text(value) or equal_by_algebra(value, value, 0.0)


def _is_text(expected: str) -> bool:
    """Whether a gold answer is decided by its text alone: an option, yes or no, a few words, a clock time."""
    letters = _letters(expected)
    if letters == r"\ldots":  # of a list that goes on
        return True
    return SENTENCE.search(expected) is None and any(
        pattern.fullmatch(letters) for pattern in (OPTION, TRUTH, _WORD, CLOCK)
    )


def _equal(candidate: str, expected: str, tolerance: float) -> bool:
    if candidate == expected:
        return bool(expected)
    by_first_word = first_words_agree(candidate, expected)
    if by_first_word is not None:
        return by_first_word
    letters, expected_letters = _letters(candidate), _letters(expected)
    if letters == expected_letters:
        return bool(expected)
    if _WORD.fullmatch(expected_letters):
        return letters.casefold() == expected_letters.casefold() and len(letters) > 1
    by_numbers = _exclusions_agree(candidate, expected)
    if by_numbers is not None:
        return by_numbers
    if len(_NEGATION.findall(candidate)) != len(_NEGATION.findall(expected)):
        return False
    if not marks_agree(candidate, expected):
        return False
    by_clock = same_time(candidate, expected)
    if by_clock is not None:
        return by_clock
    by_digits = bases_agree(letters, expected_letters)  # math-verify drops the base of a number
    if by_digits is not None:
        return by_digits
    if len(_CLOSED_AT_INFINITY.findall(candidate)) > len(_CLOSED_AT_INFINITY.findall(expected)):
        return False  # sympy opens such an interval
    if _is_conjunction(candidate) or _is_conjunction(expected):
        numbers, expected_numbers = numbers_of_all(candidate), numbers_of_all(expected)
        if numbers is not None and expected_numbers is not None:
            return bool(numbers == expected_numbers)
    if candidate.startswith(("(", "[")) or expected.startswith(("(", "[")):
        candidate, expected = interval(candidate), interval(expected)
    candidate_list, expected_list = listing(candidate), listing(expected)
    if (
        candidate_list is not None
        and not candidate_list.brackets
        and r"\cup" in expected
        and all(member[0] in "([" for member in candidate_list.members)
    ):
        candidate, candidate_list = r"\cup ".join(candidate_list.members), None
    by_members = _members_agree(candidate_list, expected_list, tolerance)
    if by_members is not None:
        return by_members
    is_equal = _values_agree(candidate, expected, tolerance)
    one_list = (candidate_list or expected_list) if candidate_list is None or expected_list is None else None
    return is_equal and (one_list is None or one_list.has_order or not _has_repeated(one_list, tolerance))


def _exclusions_agree(candidate: str, expected: str) -> bool | None:
    """Whether two answers are the same numbers; None if neither excludes some, or if they cannot be computed."""
    exclusion, expected_exclusion = exclusion_of(candidate), exclusion_of(expected)
    if exclusion is None and expected_exclusion is None:
        return None
    names = {side.name for side in (exclusion, expected_exclusion) if side is not None and side.name}
    numbers_of_sides = []
    for answer, side in ((candidate, exclusion), (expected, expected_exclusion)):
        base = answer if side is None else side.base
        if _NEGATION.search(base):
            return None
        numbers = numbers_of_all(base) if side is None else numbers_without(base, side.values)
        numbers_of_sides.append(numbers)
    return None if None in numbers_of_sides else len(names) < 2 and bool(numbers_of_sides[0] == numbers_of_sides[1])


def _is_conjunction(answer: str) -> bool:
    """Whether an answer joins inequalities by "and"."""
    clauses = AND.split(answer)
    return len(clauses) > 1 and all(map(_ORDER.search, clauses))


def _values_agree(candidate: str, expected: str, tolerance: float) -> bool:
    """Whether two single values agree, with their percent signs and units, and the sides of a chain with each other."""
    sides, expected_sides = chain(candidate), chain(expected)
    if len(sides) > 1 and len(expected_sides) == 2 and sides[0] == expected_sides[0]:
        sides, expected_sides = sides[1:], expected_sides[1:]
        candidate, expected = sides[0], expected_sides[0]
    elif len(expected_sides) > 1 and all(map(is_constant, expected_sides)):
        expected_sides = expected_sides[:1]
        expected = expected_sides[0]
    if len(sides) == 1 and len(expected_sides) == 2 and NAME.fullmatch(expected_sides[0]):
        return _single_values_agree(candidate, expected_sides[1], tolerance)
    if len(expected_sides) > 1 or len(sides) == 1 or (len(sides) == 2 and NAME.fullmatch(sides[0])):
        return _single_values_agree(candidate, expected, tolerance)
    return _chain_agrees(sides, expected_sides[0], tolerance)


def _chain_agrees(sides: Sequence[str], expected: str, tolerance: float) -> bool:
    """Whether a side of a chain is the gold answer, and no other side is another value; decimals may be rounded.

    The first side may be a name, or an expression with variables that has a constant value.
    """
    is_any = False
    for side in sides:
        if _single_values_agree(side, expected, tolerance):
            is_any = True
        elif not (is_rounded(side, expected) or is_rounded(expected, side)) and not _is_name(side, sides[0], expected):
            return False
    return is_any


def _is_name(side: str, first: str, expected: str) -> bool:
    """Whether a side of a chain says what has the value that the other sides give."""
    constant, *_ = parsed(expected)[1] or (None,)
    if constant is None or has_variables(constant):
        return side is first and bool(NAME.fullmatch(side) or _TASK.match(side))
    return not is_constant(side) and not is_to_solve(side)


def _single_values_agree(candidate: str, expected: str, tolerance: float) -> bool:
    candidate, unit = without_last_unit(candidate) if not is_term(expected) else (candidate, None)
    expected, expected_unit = without_last_unit(expected)
    by_parts = ratios_agree(candidate, expected)
    if by_parts is not None:
        return by_parts
    if units_differ(unit, expected_unit):
        return False
    if candidate == expected or (
        equal_by_algebra(candidate, expected, tolerance) and capitals_agree(candidate, expected)
    ):
        return unit != PERCENT or expected_unit is not None or not is_share(expected)
    if (unit == PERCENT) == (expected_unit == PERCENT):
        return False
    share, whole = (candidate, expected) if unit == PERCENT else (expected, candidate)
    return equal_by_algebra(rf"\frac{{{share}}}{{100}}", whole, tolerance)


def _members_agree(candidate: Listing | None, expected: Listing | None, tolerance: float) -> bool | None:
    """Whether the members of two answers agree; None if they are not both lists, or of kinds that algebra compares."""
    if candidate is None or expected is None:
        return None
    if "{}" in (candidate.brackets, expected.brackets) and candidate.has_order != expected.has_order:
        return False
    values, expected_values = candidate.values, expected.values
    if expected_values and values.keys() == expected_values.keys():
        return all(_equal(values[name], value, tolerance) for name, value in expected_values.items())
    is_in_order = bool(expected_values) and not values
    if is_in_order and candidate.brackets not in ("", "()"):
        return False
    if len(candidate.members) != len(expected.members):
        return False
    if not expected.has_order and not is_in_order:
        brackets = candidate.brackets if len(candidate.members) == 2 else ""
        return "[" not in brackets and "]" not in brackets and _match(candidate, expected, tolerance)
    same = (
        candidate.brackets == expected.brackets
        or len(candidate.members) > 2
        or {candidate.brackets, expected.brackets} == {"", "()"}
    )
    places = tuple(expected_values.values()) if is_in_order else expected.members
    return same and all(
        _equal(member, expected_member, tolerance)
        for member, expected_member in zip(candidate.members, places, strict=True)
    )


def _has_repeated(answer_list: Listing, tolerance: float) -> bool:
    """Whether two members of a list or a set are equal."""
    members = answer_list.members
    if len(set(members)) < len(members):
        return True
    return len(members) > _MAX_COMPARED or any(_equal(one, other, tolerance) for one, other in combinations(members, 2))


def _match(candidate: Listing, expected: Listing, tolerance: float) -> bool:
    """Whether each member of one list has its own equal in the other."""
    members, expected_members = list(candidate.members), list(expected.members)
    for member in candidate.members:
        if member in expected_members:
            members.remove(member)
            expected_members.remove(member)
    for member in members:
        equal_member = next((other for other in expected_members if _equal(member, other, tolerance)), None)
        if equal_member is None:
            return False
        expected_members.remove(equal_member)
    return not expected_members


def _letters(answer: str) -> str:
    return _SCRIPT.sub(r"\1\2", _IDLE_BLANK.sub("", IN_TEXT.sub(r"\1", answer)))
