"""Canonical answers as sympy's expressions; math-verify parses them. Only worker processes import this file."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse
from sympy import Basic, MatrixBase, MatrixExpr, Pow

_WITHOUT_UNITS = (LatexExtractionConfig(),)
_AS_WRITTEN = (
    LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
        )
    ),
)
IN_TEXT = re.compile(r"\\text\{([^{}]*)\}")
SENTENCE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:,? [A-Za-z]{2,}){3}")
_UNIT_IN_TEXT = re.compile(r"\\text\{[^{}]*\}(?:\^\{?\d\}?)?$")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})")  # math-verify would write 1e999999999 out in full
_POINT_OF_INTEGER = re.compile(r"(?<=\d)\.(?=/)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline ?\{(\d+)\}")
_MIXED_NUMBER = re.compile(r"(?<![\d.])(\d+) +(\d+)/(\d+)")
_TWO_NUMBERS = re.compile(r"\d +[\d.]")
_FACTOR = re.compile(
    r"(?:[)\]]|\\pi) ?(?=[(\[]|\\binom)|[(\[]-?[\d.]+[)\]] ?(?=\d|\\frac)"
    r"|\\binom\{[^{}]*\}\{[^{}]*\} ?(?=\\frac|\\binom|\d)"
    r"|((?<![\w^\\.])\d+(?:\.\d+)?|\\(?:frac|binom)\{-?[\d.]+\}\{[\d.]+\})"
    r" ?(?=(?:[(\[]|\{\(|\\\{) ?-?(?:[\d.(\[]|\\(?:frac|sqrt|binom))|\\binom)"
)  # math-verify would read 2(13) and 3(\frac{1}{2}) as the sums 2 + 13 and 3 + 1/2
_DERIVATIVE = re.compile(r"(?<![\\A-Za-z])([A-Za-z])('+)(?! ?\()")
_APPROXIMATELY = re.compile(r" ?\\approx\b ?")
_AMOUNTS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_AMOUNT = re.compile(rf"(?<=\d)( *(?:\\text\{{ ?)?)({'|'.join(_AMOUNTS)})s?\b", re.IGNORECASE)
_TERM = re.compile(r".*[\d})][a-z]", re.DOTALL)


def is_term(answer: str) -> bool:
    """Whether an answer ends in a letter right behind a number or a bracket: a variable, not a unit."""
    return bool(_TERM.fullmatch(answer))


@lru_cache(maxsize=1024)  # many responses are compared with one gold answer
def parsed(answer: str, *, as_term: bool = False) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """LaTeX of an answer as math-verify normalises it, and its expression; each is empty if there is none.

    math-verify reads a trailing letter as a unit, so that 2x + 3c becomes 2x + 3. Here a unit is dropped only after a
    number or if it is written as text; after an expression with variables, and if `as_term`, a letter is another
    variable. math-verify also adds numbers separated by a space (12 5 becomes 17) and multiplies the letters of a
    sentence; here such answers have no expression.
    """
    latex = _as_latex(answer)
    if _TWO_NUMBERS.search(latex) or SENTENCE.search(IN_TEXT.sub("", latex)):
        return (), ()
    strings, expressions = _parse(latex, _WITHOUT_UNITS)
    may_lack_a_letter = any(map(has_variables, expressions)) or (not expressions and latex[-1:].isalpha())
    if (as_term or may_lack_a_letter) and not _UNIT_IN_TEXT.search(latex):
        return _parse(latex, _AS_WRITTEN)
    return strings, expressions


def _parse(latex: str, config: tuple[LatexExtractionConfig]) -> tuple[tuple[str, ...], tuple[object, ...]]:
    parsed = parse(f"${latex}$", extraction_config=config, parsing_timeout=None)
    strings = tuple(item for item in parsed if isinstance(item, str))
    expressions = tuple(item for item in parsed if not isinstance(item, str))
    return strings, tuple(map(_with_matrix_powers, expressions)) if "matrix}^" in latex else expressions


def _with_matrix_powers(expression: Any) -> Any:
    """The expression with whole powers of matrices computed, which math-verify takes for powers of numbers."""
    powers = expression.atoms(Pow) if isinstance(expression, Basic) else ()
    matrices = {
        power: power.doit().doit()
        for power in powers
        if isinstance(power.base, MatrixBase | MatrixExpr) and power.exp.is_Integer
    }
    return expression.xreplace(matrices).doit() if matrices else expression


def has_variables(expression: object) -> bool:
    """Whether an expression, or the right side of an equation, has variables."""
    return bool(getattr(getattr(expression, "rhs", expression), "free_symbols", ()))


def _as_latex(answer: str) -> str:
    """A canonical answer as math-verify can read it (1e8, 3./2, 3 1/2, 28 million)."""
    answer = _AMOUNT.sub(lambda match: rf"\cdot {_AMOUNTS[match.group(2).lower()]}{match.group(1)}", answer)
    scientific = _SCIENTIFIC.fullmatch(answer)
    if scientific is not None:
        return rf"{scientific.group(1)}\times 10^{{{scientific.group(2)}}}"
    mixed = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", answer)
    mixed = _DERIVATIVE.sub(lambda match: rf"{match[1]}_{{{'prime' * len(match[2])}}}", mixed)  # else it is dropped
    latex = _POINT_OF_INTEGER.sub("", _FACTOR.sub(r"\g<0>\\cdot ", mixed))
    exact = _APPROXIMATELY.sub("", latex, count=1) if _APPROXIMATELY.match(latex) else latex
    return _REPEATING.sub(_as_fraction, exact)


def _as_fraction(repeating: re.Match[str]) -> str:
    whole, decimals, period = repeating.groups()
    before = int(f"0{whole}{decimals}")
    scale = 10 ** len(decimals) * (10 ** len(period) - 1)
    return rf"\frac{{{before * (10 ** len(period) - 1) + int(period)}}}{{{scale}}}"
