"""Whether two parsed expressions, equations or inequalities agree at random real points.

sympy takes variables for complex numbers: for it, sqrt(1/n) is not 1/sqrt(n).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from sympy import Abs, Add, Derivative, Eq, Expr, Ge, Gt, Integral, Le, Lt, Mul, Pow, Rational, log
from sympy.core.function import AppliedUndef

_UNKNOWN = (Derivative, Integral, AppliedUndef)
_DRAWS, _MAX_VARIABLES = 24, 4
"""real points at which two expressions are compared, and the most variables of such expressions"""


def agree_on_real_numbers(candidate: Any, expected: Any) -> bool:
    """Whether two expressions in the same variables are equal at random real points at which both are real."""
    if not (isinstance(candidate, Expr) and isinstance(expected, Expr)):
        return False
    names = candidate.free_symbols
    if not names or names != expected.free_symbols or len(names) > _MAX_VARIABLES:
        return False
    candidate, expected = _with_split_logarithms(candidate, expected)
    num_real = 0
    for one, other in _values_at_points(candidate, expected):
        if not (one.is_real and other.is_real):
            if bool(one.is_real) != bool(other.is_real):
                return False
            continue
        num_real += 1
        if abs(one - other) > 1e-12 * max(abs(one), abs(other)):
            return False
    return num_real >= _DRAWS // 4


def are_multiples(candidate: Any, expected: Any) -> bool:
    """Whether two equations or inequalities in the same variables, two or more, are equal but for a constant factor.

    One in a single variable would be solved: 2x = 4 is not the answer x = 2.
    """
    sides = [side.reversed if isinstance(side, Gt | Ge) else side for side in (candidate, expected)]
    relation = type(sides[0])
    if not issubclass(relation, Eq | Lt | Le) or type(sides[1]) is not relation:
        return False
    names = sides[0].free_symbols
    if names != sides[1].free_symbols or not 2 <= len(names) <= _MAX_VARIABLES or any(s.has(*_UNKNOWN) for s in sides):
        return False
    factors = []
    for one, other in _values_at_points(*(side.lhs - side.rhs for side in sides)):
        if not (one.is_real and other.is_real and one and other):
            return False
        factors.append(one / other)
        if abs(factors[-1] - factors[0]) > abs(factors[0]) * 1e-12:
            return False
    return relation is Eq or bool(factors[0] > 0)


def _values_at_points(*sides: Expr) -> Iterator[tuple[Expr, ...]]:
    """Values of expressions at random real points, 20 digits each.

    Of three points, one has negative coordinates, one has coordinates of any sign.
    """
    names = sorted({name for side in sides for name in side.free_symbols}, key=str)
    draw = random.Random(0)
    for number in range(_DRAWS):
        signs = ((-1,), (-1, 1), (1,))[number % 3]
        point = {name: Rational(draw.choice(signs) * draw.randint(1, 999), draw.randint(100, 300)) for name in names}
        yield tuple(side.subs(point).evalf(20) for side in sides)


def _with_split_logarithms(*sides: Expr) -> tuple[Expr, ...]:
    """log(a b) as log(a) + log(b) where both sides have logarithms: the sum says that a and b are positive.

    Not log(a (a + 1)), whose domain is the question, and not log(a^2), which is no 2 log(a).
    """
    if not all(side.has(log) for side in sides) or any(side.has(Abs) for side in sides):
        return sides
    return tuple(side.replace(lambda part: isinstance(part, log), _split) for side in sides)


def _split(logarithm: Any) -> Any:
    argument = logarithm.args[0]
    if isinstance(argument, Pow) and argument.exp.is_Rational and argument.exp.p % 2:
        return argument.exp * _split(log(argument.base, *logarithm.args[1:], evaluate=False))
    factors = argument.args if isinstance(argument, Mul) else ()
    num_names = sum(len(factor.free_symbols) for factor in factors)
    if len(argument.free_symbols) < 2 or num_names > len(argument.free_symbols):
        return logarithm
    return Add(*(_split(log(factor, *logarithm.args[1:], evaluate=False)) for factor in factors))
