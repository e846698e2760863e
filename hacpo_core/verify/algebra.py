"""Whether two parsed answers are equal by math-verify and sympy, and what it takes to trust them.

math-verify's own time limits use signals and are off; the pool kills a slow worker instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from math_verify import verify
from sympy import (
    Add,
    Basic,
    Derivative,
    E,
    Eq,
    Expr,
    FiniteSet,
    Float,
    I,
    Intersection,
    Interval,
    Mul,
    Pow,
    Rational,
    Symbol,
    Union,
    degree,
    nan,
    oo,
    preorder_traversal,
    zoo,
)
from sympy.logic.boolalg import Boolean

from hacpo_core.verify.lists import AND
from hacpo_core.verify.parsing import has_variables, is_term, parsed
from hacpo_core.verify.points import agree_on_real_numbers, are_multiples
from hacpo_core.verify.units import without_last_unit

_DECIMAL = re.compile(r"-?\d*\.(\d+)")
ROUNDING, EXACT = 1e-6, 1e-30
"""shares by which numbers that math-verify calls equal may differ: it rounds decimals to six places, and what is near
zero to zero"""


def equal_by_algebra(candidate: str, expected: str, tolerance: float) -> bool:
    """Whether two canonical single values are equal; False if one cannot be parsed."""
    as_term = is_term(expected)
    expected_strings, expected_expressions = parsed(expected, as_term=as_term)
    strings, expressions = parsed(candidate, as_term=as_term)
    if not (expressions and expected_expressions):
        return False
    answer, gold = map(_with_named_derivatives, _constants_of_both(expressions[0], expected_expressions[0]))
    if any(isinstance(side, Expr) and side.has(zoo, nan) for side in (answer, gold)):
        return False
    if set(strings) & set(expected_strings):
        return True
    if tolerance and _is_within(answer, gold, tolerance):
        return True
    if isinstance(answer, Interval | Union) or isinstance(gold, Interval | Union):
        numbers = _numbers_of(answer)
        if numbers is not None and numbers == _numbers_of(gold):
            return True
    elif isinstance(answer, Boolean) and isinstance(gold, Boolean) and answer.free_symbols == gold.free_symbols:
        numbers, expected_numbers = _numbers_of(answer), _numbers_of(gold)
        if numbers is not None and expected_numbers is not None:
            return bool(numbers == expected_numbers)
    if _computes_with_infinity(answer) != _computes_with_infinity(gold):
        return False  # sympy's verdict on 27 and 27**oo differs from process to process
    golds, answers = [gold, *expected_expressions[1:]], [answer, *expressions[1:]]
    if verify(golds, answers, timeout_seconds=None, raise_on_error=True):
        return not _differ(answer, gold) or are_multiples(answer, gold)
    return _is_same_decimal(answer, gold) or agree_on_real_numbers(answer, gold) or are_multiples(answer, gold)


def _constants_of_both(*sides: Any) -> Any:
    """The letters i and e are numbers if neither side has other variables: math-verify takes some of them as names."""
    letters = {symbol for side in sides for symbol in getattr(side, "free_symbols", ())}
    if not letters or not {str(symbol) for symbol in letters} <= {"i", "e"}:
        return sides
    numbers = {symbol: I if str(symbol) == "i" else E for symbol in letters}
    return tuple(side.subs(numbers) if isinstance(side, Expr) else side for side in sides)


def _with_named_derivatives(side: Any) -> Any:
    """The derivatives of names, dx/dt, as names of their own: sympy takes x for a constant, and dx/dt for 0."""
    derivatives = side.atoms(Derivative) if isinstance(side, Basic) else ()
    return side.xreplace(
        {
            derivative: Symbol(str(derivative), real=True)
            for derivative in derivatives
            if isinstance(derivative.expr, Symbol)
        }
    )


def _is_within(candidate: object, expected: object, tolerance: float) -> bool:
    """Whether two numbers differ by at most the tolerance, plus floating-point rounding."""
    number, expected_number = _value(candidate), _value(expected)
    return (
        number is not None
        and expected_number is not None
        and abs(float(number) - float(expected_number)) <= tolerance * (1 + 1e-9)
    )


def _differ(candidate: object, expected: object) -> bool:
    """Whether two numbers that math-verify calls equal differ by more than `ROUNDING`, or `EXACT` without decimals."""
    number, expected_number = _value(candidate), _value(expected)
    if number is None or expected_number is None:
        return False
    share = ROUNDING if number.has(Float) or expected_number.has(Float) else Rational(EXACT)
    return bool(abs((number - expected_number).doit()) > abs(expected_number.doit()) * share)


def _is_same_decimal(candidate: object, expected: object) -> bool:
    """Whether two numbers, one of which is computed from decimals, agree; math-verify wants 0.1 + 0.2 to be 3/10."""
    number, expected_number = _value(candidate), _value(expected)
    if number is None or expected_number is None or not (number.has(Float) or expected_number.has(Float)):
        return False
    return bool(abs(number - expected_number) <= abs(expected_number) * 1e-12)


def is_constant(answer: str) -> bool:
    """Whether an answer can be read and has no variables."""
    expressions = parsed(without_last_unit(answer)[0])[1]
    return bool(expressions) and bool(getattr(expressions[0], "is_number", not has_variables(expressions[0])))


def is_to_solve(answer: str) -> bool:
    """Whether an answer is linear in its only variable and not the variable itself: 2x = 5 says that x is 5/2."""
    expression: Any = (parsed(answer)[1] or (None,))[0]
    names = list(expression.free_symbols) if isinstance(expression, Expr) else []
    is_polynomial = len(names) == 1 and expression != names[0] and expression.is_polynomial(names[0])
    return bool(is_polynomial) and degree(expression, names[0]) == 1


def is_share(answer: str) -> bool:
    """Whether an answer is a number between 0 and 1, of which 0.5% is not another spelling."""
    expressions = parsed(answer)[1]
    value = _value(expressions[0]) if expressions else None
    return value is not None and bool((value > 0) & (value <= 1))


def is_rounded(decimal: str, exact: str) -> bool:
    """Whether a decimal is a number rounded to the decimal's places."""
    places = _DECIMAL.fullmatch(decimal)
    expressions = parsed(exact)[1] if places is not None else ()
    value = _value(expressions[0]) if expressions else None
    if places is None or value is None:
        return False
    return bool(abs((value - Rational(decimal)).doit()) <= Rational(51, 100) / 10 ** len(places.group(1)))


def _computes_with_infinity(expression: object) -> bool:
    """Whether infinity is a term, factor or exponent; as the limit of a sum or integral it is none of these."""
    parts = preorder_traversal(expression) if isinstance(expression, Expr) else ()
    return any(isinstance(part, Add | Mul | Pow) and {oo, -oo} & set(part.args) for part in parts)


def _numbers_of(expression: object) -> object:
    """The numbers in an interval, or that satisfy inequalities in one variable; None for anything else."""
    if isinstance(expression, Interval | Union):
        return _exact(expression)
    parts: Any = expression.args if isinstance(expression, FiniteSet) else (expression,)
    if any(not isinstance(part, Boolean) or isinstance(part, Eq) or len(part.free_symbols) != 1 for part in parts):
        return None
    try:
        return _exact(Union(*(part.as_set() for part in parts)))
    except NotImplementedError:  # sympy cannot solve it
        return None


def numbers_without(base: str, values: Sequence[str]) -> object:
    """The numbers of `base` (see `numbers_of_all`) without some, which may have no variables; None if unknown."""
    numbers: Any = numbers_of_all(base)
    members = [_value((parsed(value)[1] or (None,))[0]) for value in values]
    return None if numbers is None or None in members else numbers - _exact(FiniteSet(*members))


def numbers_of_all(answer: str) -> object:
    """The numbers that satisfy all of several inequalities joined by "and", or that are in an interval."""
    parts = [part for inequality in AND.split(answer) for part in parsed(inequality)[1][:1] or (None,)]
    names = {name for part in parts for name in getattr(part, "free_symbols", ())}
    numbers: Any = [_numbers_of(part) for part in parts]
    return None if None in numbers or len(names) > 1 else Intersection(*numbers)


def _exact(numbers: Any) -> Any:
    """A set of numbers with fractions for decimals."""
    return numbers.xreplace({decimal: Rational(str(decimal)) for decimal in numbers.atoms(Float)})


def _value(expression: object) -> Any:
    value = getattr(expression, "rhs", expression)
    return value if getattr(value, "is_real", False) and not has_variables(value) else None
