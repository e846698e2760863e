"""Whether two answers are equal. The only file that imports math-verify; only worker processes import it.

math-verify's own time limits use signals and are off; the pool kills a slow worker instead.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Add, Eq, Expr, FiniteSet, Float, Interval, Mul, Pow, Union, oo, preorder_traversal
from sympy.logic.boolalg import Boolean

from hacpo_core.verify.answers import list_parts, normalise, without_unit

_WITHOUT_UNITS = (LatexExtractionConfig(),)
_AS_WRITTEN = (
    LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
        )
    ),
)
_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textrm|textbf) ?\{([^{}]*)\}")
_SENTENCE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:,? [A-Za-z]{2,}){3}")
_UNIT_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s?\{[^{}]*\}(?:\^\{?\d\}?)?$")
_UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "\N{FRACTION SLASH}": "/",
        "π": r"\pi ",
        "θ": r"\theta ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\neq ",
        "\N{UNION}": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "±": r"\pm ",
        "°": r"^\circ ",
        "²": "^2",
        "³": "^3",
        "≈": r"\approx ",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
    }
)
_ROOT = re.compile(r"√\s*(\d+|[A-Za-z])")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})")  # sympy would write 1e999999999 out in full
_POINT_OF_INTEGER = re.compile(r"(?<=\d)\.(?=/)")
_BLANK = re.compile(r"(?<!\\)\\(?:[ ,;:]|quad\b|qquad\b|enspace\b|thinspace\b)|~|\s+")
_ROW_SPACING = re.compile(r"\\\\ ?\[[\d.]+ ?(?:pt|em|ex|mm|cm)\]")
_APPROXIMATELY = re.compile(r" ?\\approx\b ?")
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol) ?\{((?:[^{}]|\{[^{}]*\})*)\}")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline ?\{(\d+)\}")
_MIXED_NUMBER = re.compile(r"(?<![\d.])(\d+) +(\d+)/(\d+)")
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?!\d)")
_TWO_NUMBERS = re.compile(r"\d +[\d.]")
_IDLE_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_FACTOR = re.compile(r"(\(-?[\d.]+\)) ?(?=\(-?[\d.]+\))")
_SCRIPT = re.compile(r"(\^(?=\{\w\})|_)\{(\w+)\}")
_PLAIN_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?"
_A_NUMBER = re.compile(_PLAIN_NUMBER)
# After a number, these words are not a unit: they change its value.
_CHANGES = (
    r"(?:hundred|thousand|[mb]illion|trillion|dozen|percent|half|halves|third|quarter|fourth|(?:fif|six|seven|eigh|nin|ten)th"
    r"|hundredth|thousandth|pi|sqrt|sin|cos|tan|log|ln|exp|inf|infinity|and|or|to|by|mod|times|plus|minus|over|squared"
    r"|cubed|factorial|choose|base|is|are|not|if|more|less|than)s?\b"
)
_UNIT_WORD = rf"(?!{_CHANGES})(?:[A-Za-z]{{2,}}|[A-Za-z]+/[A-Za-z]+)\.?(?: |$)"
_DEGREES = r"\^ ?\{?\\circ\}?|°"
_WITH_UNIT = re.compile(rf"({_PLAIN_NUMBER}) ?(?:(?:{_UNIT_WORD}){{1,4}}|{_DEGREES})", re.IGNORECASE)
_AMOUNTS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_AMOUNT = re.compile(
    rf"(?<=\d)((?: |~|\\,)*(?:\\(?:text|mathrm|mbox|textrm) ?\{{[ ~]?)?)({'|'.join(_AMOUNTS)})s?\b", re.IGNORECASE
)
_IN_BASE = re.compile(r"[\dA-F]*\d[\dA-F]*_(\d+)")
_TERM = re.compile(r".*[\d})][a-z]", re.DOTALL)
_NAME = re.compile(r"[A-Z]{3,}")
_TEXT_OPENS = r"(?:\\(?:text|textbf|mathrm|mathbf)\s?\{)?"
_OPTION = re.compile(_TEXT_OPENS + r"\(?([A-J])\)?\}?")
_LEADING_OPTION = re.compile(r"(?:[Oo]ption |[Cc]hoice )?" + _TEXT_OPENS + r"\(?([A-J])(?:\)|\}|[.:](?!\d)|$)")
_TRUTH = re.compile(r"(yes|no|true|false)", re.IGNORECASE)
_LEADING_TRUTH = re.compile(_TEXT_OPENS + r"(yes|no|true|false)\b", re.IGNORECASE)


def answers_equal(
    candidate: str, gold: str, *, unit: str = "", tolerance: float = 0.0, is_multiple: bool = False
) -> bool:
    """Whether a candidate equals the gold answer, as text or by math-verify.

    Answers are equal if they agree after `normalise`, or without spaces and \\text. If the gold answer is a single
    option letter, yes, no, true or false, a candidate that starts with it is correct. Otherwise both are parsed as
    LaTeX. A candidate that cannot be parsed is wrong; if the gold answer cannot be parsed, or is a word in capitals,
    every other candidate is wrong. Lists (1, 2) are compared as sets; an inequality in one variable equals the
    interval it describes; a number in the candidate may have a unit. A letter right after the gold answer's number is
    a variable, not a unit.

    Args:
        candidate: the answer from the response.
        gold: the reference answer; the comparison is not symmetric (a gold 5 accepts x = 5).
        unit: unit that may follow the candidate, or each entry of a list; "": unknown.
        tolerance: allowed absolute error if both are numbers; 0: none.
        is_multiple: the gold answer is a list; if it repeats an entry, the candidate must have as many entries.

    Raises:
        Exception: any exception of math-verify or sympy while they compare two parsed answers.
    """
    given, expected = normalise(candidate), normalise(gold)
    if unit:
        given = without_unit(given, unit)
    if given == expected:
        return bool(expected)
    by_first_word = _first_words_agree(given, expected)
    if by_first_word is not None:
        return by_first_word
    letters, expected_letters = _letters(given), _letters(expected)
    if letters == expected_letters:
        return bool(expected)
    if _NAME.fullmatch(expected_letters) or _has_another_base(letters, expected_letters):
        return False  # math-verify reads the letters as factors and drops the base of a number
    if is_multiple and not _has_as_many(given, expected):
        return False
    with_unit = _WITH_UNIT.fullmatch(given) if _A_NUMBER.fullmatch(expected) else None
    is_term = bool(_TERM.fullmatch(expected))
    expected_strings, expected_expressions = _parsed(expected, is_term)
    strings, expressions = _parsed(with_unit.group(1) if with_unit else given, is_term)
    if not (expressions and expected_expressions):
        return False
    if set(strings) & set(expected_strings):
        return True
    one, other = expressions[0], expected_expressions[0]
    if tolerance and _is_within(one, other, tolerance):
        return True
    if isinstance(one, Interval | Union) or isinstance(other, Interval | Union):
        numbers = _numbers_of(one)
        if numbers is not None and numbers == _numbers_of(other):
            return True
    if _computes_with_infinity(one) != _computes_with_infinity(other):
        return False  # sympy's verdict on 27 and 27**oo differs from process to process
    is_equal = verify(list(expected_expressions), list(expressions), timeout_seconds=None, raise_on_error=True)
    return not _is_rounded_away(one, other) if is_equal else _is_same_decimal(one, other)


def _has_as_many(given: str, expected: str) -> bool:
    """False if the gold list repeats an entry (lost in a set) and the candidate has a different number of entries."""
    wanted = list_parts(expected)
    return len(set(wanted)) == len(wanted) or len(list_parts(given)) == len(wanted)


def _is_within(given: object, expected: object, tolerance: float) -> bool:
    """Whether two numbers differ by at most the tolerance, plus floating-point rounding."""
    one, other = _value(given), _value(expected)
    return one is not None and other is not None and abs(float(one) - float(other)) <= tolerance * (1 + 1e-9)


def _is_rounded_away(given: object, expected: object) -> bool:
    """Whether two numbers differ by more than a millionth, but only in decimals that math-verify rounds away (the sixth
    and later); without this, all numbers near zero would be equal.
    """
    one, other = _value(given), _value(expected)
    if one is None or other is None:
        return False
    distance = abs(one - other)
    return bool(distance < 1e-5) and bool(distance > abs(other) * 1e-6)


def _is_same_decimal(given: object, expected: object) -> bool:
    """Whether two numbers, one of which is computed from decimals, agree; math-verify wants 0.1 + 0.2 to be 3/10."""
    one, other = _value(given), _value(expected)
    if one is None or other is None or not (one.has(Float) or other.has(Float)):
        return False
    return bool(abs(one - other) <= abs(other) * 1e-12)


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


def _value(expression: object) -> Any:
    value = getattr(expression, "rhs", expression)
    return value if getattr(value, "is_real", False) and not _has_variables(value) else None


def _first_words_agree(given: str, expected: str) -> bool | None:
    """Whether a candidate starts with the same option letter or truth value as the gold answer; None if either has
    neither.
    """
    for whole, leading in ((_OPTION, _LEADING_OPTION), (_TRUTH, _LEADING_TRUTH)):
        wanted = whole.fullmatch(expected)
        given_match = None if wanted is None else leading.match(given)
        if wanted is not None and given_match is not None:
            return given_match.group(1).lower() == wanted.group(1).lower()
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
    return strings, tuple(item for item in parsed if not isinstance(item, str))


def _has_variables(expression: object) -> bool:
    return bool(getattr(getattr(expression, "rhs", expression), "free_symbols", ()))


def _letters(answer: str) -> str:
    return _SCRIPT.sub(r"\1\2", _IDLE_BLANK.sub("", _IN_TEXT.sub(r"\1", answer)))


def _as_latex(answer: str) -> str:
    """The answer in LaTeX that math-verify can read, also if it is Unicode or plain text (1e8, 3./2, 3 1/2, 10 000)."""
    answer = _AMOUNT.sub(lambda found: rf"\cdot {_AMOUNTS[found.group(2).lower()]}{found.group(1)}", answer)
    scientific = _SCIENTIFIC.fullmatch(answer)
    if scientific is not None:
        return rf"{scientific.group(1)}\times 10^{{{scientific.group(2)}}}"
    bold = _BOLD.fullmatch(answer)
    spaced = _BLANK.sub(" ", _ROW_SPACING.sub(r"\\\\", bold.group(1) if bold else answer))
    grouped = _THOUSANDS.sub(lambda number: number.group().replace(" ", ""), spaced)
    mixed = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", grouped)
    rooted = _ROOT.sub(r"\\sqrt{\1}", mixed).replace("√", r"\sqrt")
    multiplied = _FACTOR.sub(r"\1\\cdot ", rooted)
    latex = _POINT_OF_INTEGER.sub("", multiplied).translate(_UNICODE).replace(r"\varnothing", r"\emptyset")
    exact = _APPROXIMATELY.sub("", latex, count=1) if _APPROXIMATELY.match(latex) else latex
    return _REPEATING.sub(_as_fraction, exact)


def _as_fraction(repeating: re.Match[str]) -> str:
    whole, decimals, period = repeating.groups()
    before = int(f"0{whole}{decimals}")
    scale = 10 ** len(decimals) * (10 ** len(period) - 1)
    return rf"\frac{{{before * (10 ** len(period) - 1) + int(period)}}}{{{scale}}}"
