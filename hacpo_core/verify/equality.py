"""Whether two answers are equal. The only file that imports math-verify; only worker processes import it.

    canonical text ─▶ same text, option, yes or no, clock time, word        decided as text
                   ─▶ lists, sets, points, intervals                        member by member
                   ─▶ unit, percent sign                                    compared, then dropped
                   ─▶ math-verify and sympy                                 what is left

math-verify's own time limits use signals and are off; the pool kills a slow worker instead.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import (
    Add,
    Basic,
    E,
    Eq,
    Expr,
    FiniteSet,
    Float,
    I,
    Intersection,
    Interval,
    MatrixBase,
    MatrixExpr,
    Mul,
    Pow,
    Rational,
    Union,
    nan,
    oo,
    preorder_traversal,
    zoo,
)
from sympy.logic.boolalg import Boolean

from hacpo_core.verify.answers import normalise
from hacpo_core.verify.domains import without_domain
from hacpo_core.verify.lists import Listing, chain, listing
from hacpo_core.verify.spelling import canonical
from hacpo_core.verify.units import PERCENT, different_units, without_last_unit, without_unit

_WITHOUT_UNITS = (LatexExtractionConfig(),)
_AS_WRITTEN = (
    LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
        )
    ),
)
_IN_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NUMBER_IN_TEXT = re.compile(r"\\text\{(?:[^{}]*[^{}\w^.])?\d[^{}]*\}")
_SENTENCE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:,? [A-Za-z]{2,}){3}")
_UNIT_IN_TEXT = re.compile(r"\\text\{[^{}]*\}(?:\^\{?\d\}?)?$")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})")  # sympy would write 1e999999999 out in full
_POINT_OF_INTEGER = re.compile(r"(?<=\d)\.(?=/)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline ?\{(\d+)\}")
_MIXED_NUMBER = re.compile(r"(?<![\d.])(\d+) +(\d+)/(\d+)")
_TWO_NUMBERS = re.compile(r"\d +[\d.]")
_IDLE_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_FACTOR = re.compile(r"(\(-?[\d.]+\)) ?(?=\(-?[\d.]+\))")
_SCRIPT = re.compile(r"(\^(?=\{\w\})|_)\{(\w+)\}")
_APPROXIMATELY = re.compile(r" ?\\approx\b ?")
_AND = re.compile(r" ?(?:\\text ?\{ ?and ?\}|\band\b|\\(?:wedge|land)(?![A-Za-z])) ?")
_CONJUNCTION = re.compile(rf"(?:[<>]|\\[lg]e(?![a-z]))[^,;]*?{_AND.pattern}[^,;]*(?:[<>]|\\[lg]e(?![a-z]))")
_DECIMAL = re.compile(r"-?\d*\.(\d+)")
_NAME = re.compile(r"(?!(?:\\pi|e)(?![A-Za-z]))\\?[A-Za-z]+'?(?:_\w)?(?: ?\([^()]*\))?")
_AMOUNTS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_AMOUNT = re.compile(rf"(?<=\d)( *(?:\\text\{{ ?)?)({'|'.join(_AMOUNTS)})s?\b", re.IGNORECASE)
_IN_BASE = re.compile(r"[\dA-F]*\d[\dA-F]*_(\d+)")
_TERM = re.compile(r".*[\d})][a-z]", re.DOTALL)
_WORD = re.compile(r"[A-Z]{3,}|[A-Z]?[a-z]{3,}[A-Za-z]*|[A-Z][a-z]+[A-Za-z]*")
_OPTION = re.compile(r"\(?([A-J])\)?")
_LEADING_OPTION = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:\\text\{)?\(?([A-J])(?:\)|\}|[.:](?!\d)|$)")
_TRUTH = re.compile(r"(yes|no|true|false)", re.IGNORECASE)
_LEADING_TRUTH = re.compile(r"(?:\\text\{)?(yes|no|true|false)\b", re.IGNORECASE)
_FURTHER_CHOICE = re.compile(
    r"(?<![A-Za-z])\([A-J]\)|(?:\b(?:and|or)\b|[,;&/]) ?(?:[A-J]\.(?!\d)|[A-J]$)"
    r"|(?:\bor\b|\band\b|/) ?(?i:yes|no|true|false)\b"
)
_NEGATION = re.compile(
    r"\\neq|\\not(?![A-Za-z])|\\notin|n't\b"
    r"|\b(?:not|cannot|never|neither|nor|except|without|unequal|wrong|incorrect|invalid|false|different from|non(?= ))\b",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))? *(?:([ap])\.? ?m\.?)?", re.IGNORECASE)
_CLOSED_AT_INFINITY = re.compile(
    r"\\infty ?\]|\[ ?- ?\\infty|(?:\\le(?![a-z])|<=) ?\\infty|- ?\\infty ?(?:\\le(?![a-z])|<=)"
    r"|\\infty ?(?:\\ge(?![a-z])|>=)|(?:\\ge(?![a-z])|>=) ?- ?\\infty"
)
ROUNDING, EXACT = 1e-6, 1e-30
"""shares by which numbers that math-verify calls equal may differ: it rounds decimals to six places, and what is near
zero to zero"""
_MAX_COMPARED = 4
"""the most members of a set of which each pair is compared"""
_DRAWS, _MAX_VARIABLES = 24, 4
"""real points at which two expressions are compared, and the most variables of such expressions"""


def answers_equal(candidate: str, gold: str, *, unit: str = "", tolerance: float = 0.0) -> bool:
    """Whether a candidate equals the gold answer, as text or by algebra.

    Both are first brought into one spelling (`canonical`). If the gold answer is a single option letter, yes, no, true
    or false, a candidate that starts with it is correct. Words and clock times are compared as text. Members of lists
    and sets may have any order, but none may be missing, added or repeated; those of points and intervals have their
    places. An inequality in one variable equals the interval it describes. A number in the candidate may have a unit;
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
    (given, domain), (expected, expected_domain) = map(without_domain, (canonical(candidate), canonical(gold)))
    if domain and expected_domain and domain != expected_domain:
        return False
    return _equal(given, expected, tolerance)


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
    return _is_text(value) or _equal_by_algebra(value, value, 0.0)


def _is_text(expected: str) -> bool:
    """Whether a gold answer is decided by its text alone: an option, yes or no, a few words, a clock time."""
    letters = _letters(expected)
    if letters == r"\ldots":  # of a list that goes on
        return True
    return _SENTENCE.search(expected) is None and any(
        pattern.fullmatch(letters) for pattern in (_OPTION, _TRUTH, _WORD, _CLOCK)
    )


def _equal(given: str, expected: str, tolerance: float) -> bool:
    if given == expected:
        return bool(expected)
    by_first_word = _first_words_agree(given, expected)
    if by_first_word is not None:
        return by_first_word
    letters, expected_letters = _letters(given), _letters(expected)
    if letters == expected_letters:
        return bool(expected)
    if _WORD.fullmatch(expected_letters):
        return letters.casefold() == expected_letters.casefold() and len(letters) > 1
    if len(_NEGATION.findall(given)) != len(_NEGATION.findall(expected)):
        return False
    if len(_NUMBER_IN_TEXT.findall(given)) > len(_NUMBER_IN_TEXT.findall(expected)):
        return False  # math-verify drops text: 12 \text{ (or 13)}
    time, expected_time = _time(given), _time(expected)
    if time is not None and expected_time is not None:
        return _same_time(time, expected_time)
    if _has_another_base(letters, expected_letters):
        return False  # math-verify drops the base of a number
    if len(_CLOSED_AT_INFINITY.findall(given)) > len(_CLOSED_AT_INFINITY.findall(expected)):
        return False  # sympy opens such an interval
    if _CONJUNCTION.search(given) or _CONJUNCTION.search(expected):
        numbers, expected_numbers = _numbers_of_all(given), _numbers_of_all(expected)
        if numbers is not None and expected_numbers is not None:
            return bool(numbers == expected_numbers)
    whole, expected_whole = listing(given), listing(expected)
    if (
        whole is not None
        and not whole.brackets
        and r"\cup" in expected
        and all(each[0] in "([" for each in whole.members)
    ):
        given, whole = r"\cup ".join(whole.members), None
    by_members = _members_agree(whole, expected_whole, tolerance)
    if by_members is not None:
        return by_members
    is_equal = _values_agree(given, expected, tolerance)
    several = (whole or expected_whole) if whole is None or expected_whole is None else None
    return is_equal and (several is None or several.has_order or not _has_repeated(several, tolerance))


def _values_agree(given: str, expected: str, tolerance: float) -> bool:
    """Whether two single values agree, with their percent signs and units, and the sides of a chain with each other."""
    sides, expected_sides = chain(given), chain(expected)
    if len(sides) > 1 and len(expected_sides) == 2 and sides[0] == expected_sides[0]:
        sides, expected_sides = sides[1:], expected_sides[1:]
        given, expected = sides[0], expected_sides[0]
    elif len(expected_sides) > 1 and all(map(_is_constant, expected_sides)):
        expected_sides = expected_sides[:1]
        expected = expected_sides[0]
    if len(sides) == 1 and len(expected_sides) == 2 and _NAME.fullmatch(expected_sides[0]):
        return _single_values_agree(given, expected_sides[1], tolerance)
    if len(expected_sides) > 1 or len(sides) == 1 or (len(sides) == 2 and _NAME.fullmatch(sides[0])):
        return _single_values_agree(given, expected, tolerance)
    return _chain_agrees(sides, expected_sides[0], tolerance)


def _chain_agrees(sides: Sequence[str], expected: str, tolerance: float) -> bool:
    """Whether a side of a chain is the gold answer, and no other side is another value; decimals may be rounded.

    The first side may be a name, or an expression with variables that has a constant value.
    """
    is_any = False
    for side in sides:
        if _single_values_agree(side, expected, tolerance):
            is_any = True
        elif not (_is_rounded(side, expected) or _is_rounded(expected, side)) and not _is_name(
            side, sides[0], expected
        ):
            return False
    return is_any


def _is_name(side: str, first: str, expected: str) -> bool:
    """Whether a side of a chain says what has the value that the other sides give."""
    constant, *_ = _parsed(expected, is_term=False)[1] or (None,)
    if constant is None or _has_variables(constant):
        return side is first and bool(_NAME.fullmatch(side))
    return not _is_constant(side)


def _single_values_agree(given: str, expected: str, tolerance: float) -> bool:
    given, unit = without_last_unit(given) if not _TERM.fullmatch(expected) else (given, None)
    expected, expected_unit = without_last_unit(expected)
    if different_units(unit, expected_unit):
        return False
    if given == expected or _equal_by_algebra(given, expected, tolerance):
        return unit != PERCENT or expected_unit is not None or not _is_share(expected)
    if (unit == PERCENT) == (expected_unit == PERCENT):
        return False
    share, whole = (given, expected) if unit == PERCENT else (expected, given)
    return _equal_by_algebra(rf"\frac{{{share}}}{{100}}", whole, tolerance)


def _members_agree(given: Listing | None, expected: Listing | None, tolerance: float) -> bool | None:
    """Whether the members of two answers agree; None if they are not both lists, or of kinds that algebra compares."""
    if given is None or expected is None:
        return None
    if "{}" in (given.brackets, expected.brackets) and given.has_order != expected.has_order:
        return False
    values, expected_values = given.values, expected.values
    if expected_values and values.keys() == expected_values.keys():
        return all(_equal(values[name], value, tolerance) for name, value in expected_values.items())
    is_in_order = bool(expected_values) and not values
    if is_in_order and given.brackets not in ("", "()"):
        return False
    if len(given.members) != len(expected.members):
        return False
    if not expected.has_order and not is_in_order:
        brackets = given.brackets if len(given.members) == 2 else ""
        return "[" not in brackets and "]" not in brackets and _match(given, expected, tolerance)
    same = (
        given.brackets == expected.brackets
        or len(given.members) > 2
        or {given.brackets, expected.brackets} == {"", "()"}
    )
    places = tuple(expected_values.values()) if is_in_order else expected.members
    return same and all(_equal(one, other, tolerance) for one, other in zip(given.members, places, strict=True))


def _has_repeated(several: Listing, tolerance: float) -> bool:
    """Whether two members of a list or a set are equal."""
    members = several.members
    if len(set(members)) < len(members):
        return True
    pairs = combinations(members, 2) if several.brackets == "{}" and len(members) <= _MAX_COMPARED else ()
    return any(_equal(one, other, tolerance) for one, other in pairs)


def _match(several: Listing, gold: Listing, tolerance: float) -> bool:
    """Whether each member of one list has its own equal in the other."""
    given, expected = list(several.members), list(gold.members)
    for member in several.members:
        if member in expected:
            given.remove(member)
            expected.remove(member)
    for member in given:
        found = next((other for other in expected if _equal(member, other, tolerance)), None)
        if found is None:
            return False
        expected.remove(found)
    return not expected


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
    found = _CLOCK.fullmatch(_IN_TEXT.sub(r"\1", answer).strip())
    if found is None:
        return None
    hours, minutes, seconds, half = found.groups(default="")
    return _Time(int(hours), int(minutes), int(seconds or 0), half.lower())


def _same_time(given: _Time, expected: _Time) -> bool:
    """Whether two times are the same; a half of the day that the gold answer does not name is not asked for."""
    if expected.half == "" and replace(given, half="") == expected:
        return True
    return given.of_day is not None and given.of_day == expected.of_day


def _equal_by_algebra(given: str, expected: str, tolerance: float) -> bool:
    is_term = bool(_TERM.fullmatch(expected))
    expected_strings, expected_expressions = _parsed(expected, is_term)
    strings, expressions = _parsed(given, is_term)
    if not (expressions and expected_expressions):
        return False
    one, other = _constants_of_both(expressions[0], expected_expressions[0])
    if any(isinstance(side, Expr) and side.has(zoo, nan) for side in (one, other)):
        return False
    if set(strings) & set(expected_strings):
        return True
    if tolerance and _is_within(one, other, tolerance):
        return True
    if isinstance(one, Interval | Union) or isinstance(other, Interval | Union):
        numbers = _numbers_of(one)
        if numbers is not None and numbers == _numbers_of(other):
            return True
    if _computes_with_infinity(one) != _computes_with_infinity(other):
        return False  # sympy's verdict on 27 and 27**oo differs from process to process
    golds, answers = [other, *expected_expressions[1:]], [one, *expressions[1:]]
    if verify(golds, answers, timeout_seconds=None, raise_on_error=True):
        return not _differ(one, other)
    return _is_same_decimal(one, other) or _agree_on_real_numbers(one, other)


def _constants_of_both(*sides: Any) -> Any:
    """The letters i and e are numbers if neither side has other variables: math-verify takes some of them as names."""
    letters = {symbol for side in sides for symbol in getattr(side, "free_symbols", ())}
    if not letters or not {str(symbol) for symbol in letters} <= {"i", "e"}:
        return sides
    numbers = {symbol: I if str(symbol) == "i" else E for symbol in letters}
    return tuple(side.subs(numbers) if isinstance(side, Expr) else side for side in sides)


def _agree_on_real_numbers(given: Any, expected: Any) -> bool:
    """Whether two expressions in the same variables are equal at random real points at which both are real.

    sympy takes variables for complex numbers: for it, sqrt(1/n) is not 1/sqrt(n).
    """
    if not (isinstance(given, Expr) and isinstance(expected, Expr)):
        return False
    names = given.free_symbols
    if not names or names != expected.free_symbols or len(names) > _MAX_VARIABLES:
        return False
    draw = random.Random(0)
    num_real = 0
    for number in range(_DRAWS):
        sign = -1 if number % 3 == 0 else 1
        point = {name: Rational(sign * draw.randint(1, 999), draw.randint(100, 300)) for name in sorted(names, key=str)}
        one, other = (side.subs(point).evalf(20) for side in (given, expected))
        if not (one.is_real and other.is_real):
            if bool(one.is_real) != bool(other.is_real):
                return False
            continue
        num_real += 1
        if abs(one - other) > 1e-12 * max(abs(one), abs(other)):
            return False
    return num_real >= _DRAWS // 4


def _is_within(given: object, expected: object, tolerance: float) -> bool:
    """Whether two numbers differ by at most the tolerance, plus floating-point rounding."""
    one, other = _value(given), _value(expected)
    return one is not None and other is not None and abs(float(one) - float(other)) <= tolerance * (1 + 1e-9)


def _differ(given: object, expected: object) -> bool:
    """Whether two numbers that math-verify calls equal differ by more than `ROUNDING`, or `EXACT` without decimals."""
    one, other = _value(given), _value(expected)
    if one is None or other is None:
        return False
    share = ROUNDING if one.has(Float) or other.has(Float) else Rational(EXACT)
    return bool(abs((one - other).doit()) > abs(other.doit()) * share)


def _is_same_decimal(given: object, expected: object) -> bool:
    """Whether two numbers, one of which is computed from decimals, agree; math-verify wants 0.1 + 0.2 to be 3/10."""
    one, other = _value(given), _value(expected)
    if one is None or other is None or not (one.has(Float) or other.has(Float)):
        return False
    return bool(abs(one - other) <= abs(other) * 1e-12)


def _is_constant(answer: str) -> bool:
    """Whether an answer can be read and has no variables."""
    expressions = _parsed(without_last_unit(answer)[0], is_term=False)[1]
    return bool(expressions) and bool(getattr(expressions[0], "is_number", not _has_variables(expressions[0])))


def _is_share(answer: str) -> bool:
    """Whether an answer is a number between 0 and 1, of which 0.5% is not another spelling."""
    expressions = _parsed(answer, is_term=False)[1]
    value = _value(expressions[0]) if expressions else None
    return value is not None and bool((value > 0) & (value <= 1))


def _is_rounded(decimal: str, exact: str) -> bool:
    """Whether a decimal is a number rounded to the decimal's places."""
    places = _DECIMAL.fullmatch(decimal)
    expressions = _parsed(exact, is_term=False)[1] if places is not None else ()
    value = _value(expressions[0]) if expressions else None
    if places is None or value is None:
        return False
    return bool(abs((value - Rational(decimal)).doit()) <= Rational(51, 100) / 10 ** len(places.group(1)))


def _computes_with_infinity(expression: object) -> bool:
    """Whether infinity is a term, factor or exponent; as the limit of a sum or integral it is none of these."""
    parts = preorder_traversal(expression) if isinstance(expression, Expr) else ()
    return any(isinstance(part, Add | Mul | Pow) and {oo, -oo} & set(part.args) for part in parts)


def _has_another_base(given: str, expected: str) -> bool:
    """Whether a candidate has a base, and the gold answer another one or none, which means ten."""
    base = _IN_BASE.fullmatch(given)
    return base is not None and bool(_IN_BASE.fullmatch(expected) or (expected.isdecimal() and base.group(1) != "10"))


def _numbers_of(expression: object) -> object:
    """The numbers in an interval, or that satisfy inequalities in one variable; None for anything else."""
    if isinstance(expression, Interval | Union):
        return expression
    parts: Any = expression.args if isinstance(expression, FiniteSet) else (expression,)
    if any(not isinstance(part, Boolean) or isinstance(part, Eq) or len(part.free_symbols) != 1 for part in parts):
        return None
    try:
        return Union(*(part.as_set() for part in parts))
    except NotImplementedError:  # sympy cannot solve it
        return None


def _numbers_of_all(answer: str) -> object:
    """The numbers that satisfy all of several inequalities joined by "and", or that are in an interval."""
    parts = [part for inequality in _AND.split(answer) for part in _parsed(inequality, is_term=False)[1][:1] or (None,)]
    names = {name for part in parts for name in getattr(part, "free_symbols", ())}
    numbers: Any = [_numbers_of(part) for part in parts]
    return None if None in numbers or len(names) > 1 else Intersection(*numbers)


def _value(expression: object) -> Any:
    value = getattr(expression, "rhs", expression)
    return value if getattr(value, "is_real", False) and not _has_variables(value) else None


def _first_words_agree(given: str, expected: str) -> bool | None:
    """Whether a candidate starts with the gold answer's option letter or truth value and names no other.

    None if either has neither.
    """
    for whole, leading in ((_OPTION, _LEADING_OPTION), (_TRUTH, _LEADING_TRUTH)):
        wanted = whole.fullmatch(expected)
        given_match = None if wanted is None else leading.match(given)
        if wanted is not None and given_match is not None:
            is_same = given_match.group(1).lower() == wanted.group(1).lower()
            return is_same and not _FURTHER_CHOICE.search(given, given_match.end())
    return None


@lru_cache(maxsize=1024)  # many responses are compared with one gold answer
def _parsed(answer: str, is_term: bool) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """LaTeX of an answer as math-verify normalises it, and its expression; each is empty if there is none.

    math-verify reads a trailing letter as a unit, so that 2x + 3c becomes 2x + 3. Here a unit is dropped only after a
    number or if it is written as text; after an expression with variables, and if `is_term`, a letter is another
    variable. math-verify also adds numbers separated by a space (12 5 becomes 17) and multiplies the letters of a
    sentence; here such answers have no expression.
    """
    latex = _as_latex(answer)
    if _TWO_NUMBERS.search(latex) or _SENTENCE.search(_IN_TEXT.sub("", latex)):
        return (), ()
    strings, expressions = _parse(latex, _WITHOUT_UNITS)
    may_lack_a_letter = any(map(_has_variables, expressions)) or (not expressions and latex[-1:].isalpha())
    if (is_term or may_lack_a_letter) and not _UNIT_IN_TEXT.search(latex):
        return _parse(latex, _AS_WRITTEN)
    return strings, expressions


def _parse(latex: str, config: tuple[LatexExtractionConfig]) -> tuple[tuple[str, ...], tuple[object, ...]]:
    parsed = parse(f"${latex}$", extraction_config=config, parsing_timeout=None)
    strings = tuple(item for item in parsed if isinstance(item, str))
    expressions = tuple(item for item in parsed if not isinstance(item, str))
    return strings, tuple(map(_with_matrix_powers, expressions)) if "matrix}^" in latex else expressions


def _with_matrix_powers(expression: Any) -> Any:
    """The expression with powers of matrices computed; math-verify leaves them as powers of numbers, and fails."""
    powers = expression.atoms(Pow) if isinstance(expression, Basic) else ()
    matrices = {power: power.doit().doit() for power in powers if isinstance(power.base, MatrixBase | MatrixExpr)}
    return expression.xreplace(matrices).doit() if matrices else expression


def _has_variables(expression: object) -> bool:
    return bool(getattr(getattr(expression, "rhs", expression), "free_symbols", ()))


def _letters(answer: str) -> str:
    return _SCRIPT.sub(r"\1\2", _IDLE_BLANK.sub("", _IN_TEXT.sub(r"\1", answer)))


def _as_latex(answer: str) -> str:
    """A canonical answer as math-verify can read it (1e8, 3./2, 3 1/2, 28 million)."""
    answer = _AMOUNT.sub(lambda found: rf"\cdot {_AMOUNTS[found.group(2).lower()]}{found.group(1)}", answer)
    scientific = _SCIENTIFIC.fullmatch(answer)
    if scientific is not None:
        return rf"{scientific.group(1)}\times 10^{{{scientific.group(2)}}}"
    mixed = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", answer)
    latex = _POINT_OF_INTEGER.sub("", _FACTOR.sub(r"\1\\cdot ", mixed))
    exact = _APPROXIMATELY.sub("", latex, count=1) if _APPROXIMATELY.match(latex) else latex
    return _REPEATING.sub(_as_fraction, exact)


def _as_fraction(repeating: re.Match[str]) -> str:
    whole, decimals, period = repeating.groups()
    before = int(f"0{whole}{decimals}")
    scale = 10 ** len(decimals) * (10 ** len(period) - 1)
    return rf"\frac{{{before * (10 ** len(period) - 1) + int(period)}}}{{{scale}}}"
