"""Expressions at random real points, where equal ones have equal values. Only workers import this file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import sympy
from sympy import Abs, Expr, Mul, Pow, Rational, log
from sympy.core.function import AppliedUndef

_DRAWS, _MAX_VARIABLES = 12, 6
"""points at which expressions are compared, and the most variables of these"""


def agree_on_real_numbers(candidate: Any, gold: Any) -> bool:
    """Whether two expressions in the same variables are equal at random real points: sympy's variables are complex."""
    one, other = _with_split_logarithms(*map(_with_names, (candidate, gold)))
    names = one.free_symbols
    if names != other.free_symbols or not 0 < len(names) <= _MAX_VARIABLES or sympy.oo in one.atoms() | other.atoms():
        return False
    values = [pair for pair in _values_at_points(one, other) if all(value.is_finite for value in pair)]
    if not one.has(sympy.I):
        real = [pair for pair in values if all(value.is_real for value in pair)]
        values = real if all(pair[0].is_real == pair[1].is_real for pair in values) else []
    return len(values) >= _DRAWS // 4 and all(abs(x - y) <= 1e-12 * max(abs(x), abs(y)) for x, y in values)


def are_multiples(candidate: Any, gold: Any) -> bool:
    """Whether two equations or inequalities in the same variables, two or more, are equal but for a constant factor.

    One in a single variable would be solved: 2x = 4 is not the answer x = 2.
    """
    sides = [side.reversed if isinstance(side, sympy.Gt | sympy.Ge) else side for side in (candidate, gold)]
    one, other = (_with_names(side.lhs - side.rhs) for side in sides)
    names = one.free_symbols
    if type(sides[0]) is not type(sides[1]) or names != other.free_symbols or not 2 <= len(names) <= _MAX_VARIABLES:
        return False
    values = list(_values_at_points(one, other))
    if not all(x.is_real and y.is_real and x and y for x, y in values):
        return False
    factors = [x / y for x, y in values]
    is_constant = all(abs(factor - factors[0]) <= abs(factors[0]) * 1e-12 for factor in factors)
    return is_constant and (isinstance(sides[0], sympy.Equality) or bool(factors[0] > 0))


def _with_names(value: Any) -> Any:
    """An expression whose unknown functions are names: f(x) is a variable."""
    return value.xreplace({part: sympy.Symbol(str(part)) for part in value.atoms(AppliedUndef)})


def _values_at_points(*sides: Expr) -> Iterator[tuple[Any, ...]]:
    """Values of expressions at random real points, 20 digits each.

    Of three points, one has negative coordinates, one has coordinates of any sign.
    """
    names = sorted({name for side in sides for name in side.free_symbols}, key=str)
    draw = random.Random(0)
    for number in range(_DRAWS):
        signs = ((-1,), (-1, 1), (1,))[number % 3]
        point = {name: Rational(draw.choice(signs) * draw.randint(1, 999), draw.randint(100, 300)) for name in names}
        yield tuple(_without_noise(side.subs(point).evalf(20)) for side in sides)


def _without_noise(value: Any) -> Any:
    """A number without an imaginary part that is only rounding."""
    real, imaginary = value.as_real_imag() if value.is_number else (value, 1)
    return real if value.is_number and abs(imaginary) <= 1e-15 * abs(real) else value


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
        return argument.exp * _split(log(argument.base, evaluate=False))
    factors = argument.args if isinstance(argument, Mul) else ()
    num_names = sum(len(factor.free_symbols) for factor in factors)
    if not factors or len(argument.free_symbols) < 2 or num_names > len(argument.free_symbols):
        return logarithm
    return sum(_split(log(factor, evaluate=False)) for factor in factors)
