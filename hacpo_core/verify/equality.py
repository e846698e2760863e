"""Whether two answers are equal: one function a type, one table of conversions. Only workers import this file.

answers ─▶ same tokens    equal
        ─▶ reading        typed values; a candidate that is not read whole is wrong, a gold answer unscored
        ─▶ CONVERSIONS    to one type
        ─▶ EQUALITY       the type's function, down to expressions, which sympy and math-verify compare
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any, TypeAlias

import sympy
from math_verify import verify
from sympy import Abs, Expr, Pow, Rational
from sympy.core.function import AppliedUndef

from hacpo_core.verify import values as kinds
from hacpo_core.verify.expressions import agree_on_real_numbers, are_multiples
from hacpo_core.verify.quantities import PERCENT, conversions
from hacpo_core.verify.reading import numbers_of, read
from hacpo_core.verify.spelling import text_of, tokens_of
from hacpo_core.verify.values import Answer, Chain, Conditional, Expression, Listing, Numbers, Quantity

ROUNDING, PLACES, EXACT = Rational(1, 10**6), Rational(1, 2 * 10**6), Rational(1, 10**30)
"""the share and the difference by which a decimal may differ from a number, and the share of exact ones"""
_ONE = Expression(sympy.Integer(1))
Comparison: TypeAlias = Callable[[Any, Any, float], bool]


def answers_equal(candidate: str, gold: str, *, unit: str = "", tolerance: float = 0.0) -> bool:
    """Whether a candidate equals the gold answer. It is read whole, or it is wrong.

    Args:
        candidate: the answer from the response.
        gold: the reference answer; the comparison is not symmetric (a gold 5 accepts x = 5).
        unit: unit of the gold answer, which a candidate may have or not; only a percent sign changes the comparison.
        tolerance: allowed absolute error of numbers; 0: none.

    Raises:
        Exception: any exception of sympy, math-verify or pint.
    """
    gold = f"{gold.strip('$')} \\%" if unit.strip("\\$") == "%" else gold
    text = text_of(tokens_of(candidate))
    if text == text_of(tokens_of(gold)):
        return bool(text)
    expected = read(gold)
    given = read(candidate, any_case=getattr(expected, "is_option", False))
    return given is not None and expected is not None and equal(given, expected, tolerance)


def is_readable(gold: str) -> bool:
    """Whether spellings of a gold answer other than its own can be judged.

    Raises:
        Exception: see `answers_equal`.
    """
    return read(gold) is not None


def equal(candidate: Answer, gold: Answer, tolerance: float = 0.0) -> bool:
    """Whether a typed candidate equals a typed gold answer."""
    if type(candidate) is type(gold):
        return EQUALITY[type(gold)](candidate, gold, tolerance)
    for kind, gold_kind, compare in CONVERSIONS:
        if isinstance(candidate, kind) and isinstance(gold, gold_kind):
            return compare(candidate, gold, tolerance)
    return False


# One function a type.


def expressions_equal(candidate: Expression, gold: Expression, tolerance: float = 0.0) -> bool:
    """Numbers agree to 30 digits, decimals to the sixth; expressions with variables at random real points.

    What such points cannot decide (many variables, unknown functions), math-verify does. Its time limits use signals
    and are off: the pool ends a slow worker. If both say what they count, it must be the same: 5 gains, 5 losses.
    """
    if candidate.nouns and gold.nouns and candidate.nouns.isdisjoint(gold.nouns):
        return False
    one, other = _with_one_constant(candidate.value, gold.value)
    is_decimal = candidate.is_decimal or gold.is_decimal
    if isinstance(one, sympy.MatrixBase) or isinstance(other, sympy.MatrixBase):
        has_same_shape = getattr(one, "shape", None) == getattr(other, "shape", None)
        return has_same_shape and all(
            expressions_equal(Expression(x, "", is_decimal), Expression(y)) for x, y in zip(one, other, strict=True)
        )
    if one == other or not any(side.free_symbols or side.has(AppliedUndef) for side in (one, other)):
        return one == other or _numbers_equal(one, other, tolerance, is_decimal=is_decimal)
    has_same_names = one.free_symbols == other.free_symbols  # math-verify takes letters of another case as equal
    return agree_on_real_numbers(one, other) or (
        has_same_names and verify(other, one, timeout_seconds=None, raise_on_error=True)
    )


def _numbers_equal(one: Any, other: Any, tolerance: float, *, is_decimal: bool) -> bool:
    is_rational = one.is_Rational and other.is_Rational
    values = (one, other) if is_rational else (one.evalf(45), other.evalf(45))
    difference, size = abs(values[0] - values[1]), abs(values[1])
    if not (difference.is_finite and difference.is_comparable):
        return False
    allowed = min(size * ROUNDING, PLACES) if is_decimal else 0 if is_rational else size * EXACT
    is_zero = size == 0 and not is_rational and bool(one.equals(other))
    return is_zero or bool(difference <= max(allowed, Rational(tolerance * (1 + 1e-9))))


def quantities_equal(candidate: Quantity, gold: Quantity, tolerance: float) -> bool:
    """The values agree in one unit; or the units are letters, and so variables."""
    for value, is_exact in conversions(candidate, gold.units):
        converted = replace(candidate.value, value=value, is_decimal=candidate.value.is_decimal or not is_exact)
        if expressions_equal(converted, gold.value, tolerance):
            return True
    return candidate.term is not None and gold.term is not None and expressions_equal(candidate.term, gold.term)


def chains_equal(candidate: Chain, gold: Chain, tolerance: float) -> bool:
    """The same name has an equal value, or the equations are multiples of each other."""
    name, value = gold.sides[0].name, _value_of(gold)
    if value is not None and name == candidate.sides[0].name:
        return chain_is(Chain((kinds.Side(name, None), *candidate.sides[1:])) if name else candidate, value, tolerance)
    equations = [[getattr(side.value, "value", None) for side in chain.sides[:2]] for chain in (candidate, gold)]
    are_expressions = all(isinstance(side, Expr) for equation in equations for side in equation)
    return are_expressions and are_multiples(*(sympy.Eq(*equation, evaluate=False) for equation in equations))


def relations_equal(candidate: kinds.Relation, gold: kinds.Relation, tolerance: float) -> bool:
    """The inequalities are multiples of each other."""
    are_as_many = len(candidate.parts) == len(gold.parts)
    return candidate == gold or (are_as_many and all(map(are_multiples, candidate.parts, gold.parts)))


def sets_equal(candidate: Numbers | Listing, gold: Numbers | Listing, tolerance: float) -> bool:
    """The same numbers, of the same variable if both name one."""
    numbers, gold_numbers = numbers_of(candidate), numbers_of(gold)
    if numbers is None or gold_numbers is None:
        return False
    is_same_name = not (numbers.name and gold_numbers.name) or numbers.name == gold_numbers.name
    return is_same_name and bool(numbers.numbers == gold_numbers.numbers)


def listings_equal(candidate: Answer, gold: Answer, tolerance: float) -> bool:
    r"""All members, in any order for a list or a set, by name if all have one, else in order; intervals as one set.

    \{1\} is 1.
    """
    candidate, gold = (side if isinstance(side, Listing) else Listing("", (side,)) for side in (candidate, gold))
    only = gold.members[0] if len(gold.members) == 1 else None
    if candidate.joined == "or" and isinstance(only, Expression | Quantity):  # 3/4 or 0.75
        return all(equal(member, only, tolerance) or _is_rounded(member, only) for member in candidate.members)
    is_set = any(isinstance(member, Numbers) for side in (candidate, gold) for member in side.members)
    if is_set and numbers_of(candidate) and numbers_of(gold):
        return sets_equal(candidate, gold, tolerance)
    if "{}" in (candidate.brackets, gold.brackets) and candidate.has_order != gold.has_order:
        return False
    values, gold_values = _by_name(candidate), _by_name(gold)
    if gold_values and values.keys() == gold_values.keys():
        return all(equal(values[name], value, tolerance) for name, value in gold_values.items())
    return len(candidate.members) == len(gold.members) and _members_equal(candidate, gold, tolerance)


def _members_equal(candidate: Listing, gold: Listing, tolerance: float) -> bool:
    is_in_order = bool(_by_name(gold)) and not _by_name(candidate)
    if not gold.has_order and not is_in_order:
        is_interval = len(candidate.members) == 2 and not {"[", "]"}.isdisjoint(candidate.brackets)
        return not is_interval and _match(candidate, gold, tolerance)
    places = tuple(_by_name(gold).values()) if is_in_order else gold.members
    brackets = {candidate.brackets, gold.brackets}
    has_brackets = candidate.brackets in ("", "()") if is_in_order else len(brackets) == 1 or brackets == {"", "()"}
    pairs = zip(candidate.members, places, strict=True)
    is_long = len(places) > 2 and not is_in_order
    return (has_brackets or is_long) and all(equal(member, place, tolerance) for member, place in pairs)


def ratios_equal(candidate: Any, gold: Any, tolerance: float) -> bool:
    """The parts are proportional, 3:4 is 3/4; or the same if both may be times; a zero is equal to a zero alone."""
    if getattr(candidate, "time", "") and getattr(gold, "time", ""):
        return bool(candidate.time == gold.time)
    ratios = [side.parts if isinstance(side, kinds.Ratio) else (side, _ONE) for side in (candidate, gold)]
    values, gold_values = ([part.value for part in parts] for parts in ratios)
    if len(values) != len(gold_values) or 0 in (*values, *gold_values):
        return values == gold_values
    is_decimal = any(part.is_decimal for parts in ratios for part in parts)
    pairs = combinations(zip(values, gold_values, strict=True), 2)
    return all(expressions_equal(Expression(a * d, "", is_decimal), Expression(c * b)) for (a, b), (c, d) in pairs)


def literals_equal(candidate: kinds.Literal, gold: kinds.Literal, tolerance: float) -> bool:
    """The same text; 4:30 p.m. is 4:30, too, but not the other way round."""
    return gold.text in (candidate.text, *candidate.also)


def conditionals_equal(candidate: Answer, gold: Answer, tolerance: float) -> bool:
    """The same value, and the same condition; the domain of a variable may be left out or added."""
    one, other = (side if isinstance(side, Conditional) else Conditional(side, "", True) for side in (candidate, gold))
    is_domain = one.is_domain and other.is_domain and "" in (one.condition, other.condition)
    return (one.condition == other.condition or is_domain) and equal(one.value, other.value, tolerance)


EQUALITY: dict[type, Comparison] = {
    Expression: expressions_equal,
    Quantity: quantities_equal,
    Chain: chains_equal,
    kinds.Relation: relations_equal,
    Numbers: sets_equal,
    Listing: listings_equal,
    kinds.Ratio: ratios_equal,
    kinds.Literal: literals_equal,
    Conditional: conditionals_equal,
}

# Conversions: a candidate and a gold answer of two types.


def chain_is(chain: Chain, gold: Any, tolerance: float = 0.0) -> bool:
    """Whether a side of a chain is the gold answer and no other side is another value; decimals may be rounded."""
    are_equal = [side.value is not None and equal(side.value, gold, tolerance) for side in chain.sides]
    return any(are_equal) and all(
        is_equal or _is_rounded(side.value, gold) or _is_rounded(gold, side.value) or _names(side, number, gold)
        for number, (side, is_equal) in enumerate(zip(chain.sides, are_equal, strict=True))
    )


def _without_units(candidate: Any, gold: Any, tolerance: float) -> bool:
    """A unit may be left out or added; or it is letters, and so variables. 28% is 28 and 0.28.

    But 0.5% is not 0.5 unless the gold answer has the percent sign.
    """
    quantity, number = (candidate, gold) if isinstance(candidate, Quantity) else (gold, candidate)
    if quantity.units == (PERCENT,):
        share = replace(quantity.value, value=quantity.value.value / 100)
        if expressions_equal(share, number, tolerance / 100):
            return True
        if quantity is candidate and number.value.is_real and 0 < number.value <= 1:
            return False
    if number.nouns and not quantity.value.nouns and quantity.units != (PERCENT,):
        return False  # 10 pesos and $10
    readings = [quantity.term] if quantity is gold and quantity.term else [quantity.value, quantity.term]
    return any(reading is not None and expressions_equal(reading, number, tolerance) for reading in readings)


CONVERSIONS: tuple[tuple[Any, Any, Comparison], ...] = (
    (Conditional, object, conditionals_equal),
    (object, Conditional, conditionals_equal),
    (Chain, object, chain_is),
    (object, Chain, lambda given, gold, near: (value := _value_of(gold)) is not None and equal(given, value, near)),
    (Listing, object, listings_equal),
    (object, Listing, listings_equal),
    (Quantity | Expression, Quantity | Expression, _without_units),
    (kinds.Ratio | Expression, kinds.Ratio | Expression, ratios_equal),
    (kinds.Literal, kinds.Ratio, lambda time, gold, _: gold.time in (time.text, *time.also)),
    (kinds.Ratio, kinds.Literal, lambda time, gold, _: time.time == gold.text),
    (Expression, kinds.Literal, lambda digits, gold, _: digits.text.upper() in gold.also or _is_product(digits, gold)),
    (kinds.Literal, Expression, lambda word, gold, _: gold.text in word.also[1:] or _is_product(gold, word)),
)
"""types of a candidate and of a gold answer, and how the two are compared"""

# Parts of the above.


def _value_of(equation: Chain) -> Answer | None:
    """The value that an equation gives a name; the first of several equal constants."""
    first, second = equation.sides[:2]
    is_constant = all(_is_constant(side.value) for side in equation.sides)
    return second.value if first.name else first.value if is_constant else None


def _is_constant(answer: Any) -> bool:
    value = answer.value if isinstance(answer, Quantity) else answer
    return isinstance(value, Expression) and bool(getattr(value.value, "is_number", False))


def _is_product(expression: Expression, word: kinds.Literal) -> bool:
    """Whether letters that could be a word are a product: m g h is mgh."""
    is_short = len(word.text) < 5 and word.text.isalpha() and expression.value.free_symbols
    return bool(is_short) and expression.value == sympy.prod(map(sympy.Symbol, word.text))


def _names(side: kinds.Side, number: int, gold: Answer) -> bool:
    """Whether a side of a chain says what has the value that the others give: a name, a + b, |x|; not 2x or x + 1."""
    if not _is_constant(gold) or not isinstance(side.value, Expression):
        return bool(side.name) and (number == 0 or _is_constant(gold))
    value = side.value.value
    base = value.args[0] if isinstance(value, Abs | sympy.sin | sympy.cos | sympy.tan) else value
    base = base.base if isinstance(base, Pow) and base.exp.is_Integer and base.exp > 1 else base
    return bool(side.name) or len(value.free_symbols) > 1 or bool(base.is_Symbol)


def _is_rounded(decimal: Any, exact: Any) -> bool:
    """Whether a decimal is a number rounded to the decimal's places."""
    decimal, exact = (side.value if isinstance(side, Quantity) else side for side in (decimal, exact))
    if not (isinstance(decimal, Expression) and decimal.is_decimal and isinstance(exact, Expression)):
        return False
    places = len(decimal.text.partition(".")[2])
    is_number = decimal.value.is_Rational and exact.value.is_real and not exact.value.free_symbols
    return bool(is_number and abs(exact.value - decimal.value).evalf(30) <= Rational(51, 100) / 10**places)


def _by_name(listing: Listing) -> dict[str, Answer]:
    """Values of coordinates, by name; empty unless all members are `name = value` and all names differ."""
    chains = [member for member in listing.members if isinstance(member, Chain) and len(member.sides) == 2]
    values = {chain.sides[0].name: chain.sides[1].value for chain in chains if chain.sides[0].name}
    named = {name: value for name, value in values.items() if value is not None}
    return named if len(named) == len(listing.members) > 1 else {}


def _match(candidate: Listing, gold: Listing, tolerance: float) -> bool:
    """Whether each member of one list has its own equal in the other."""
    left = list(gold.members)
    for member in sorted(candidate.members, key=lambda member: member not in left):
        place = next((other for other in left if member == other or equal(member, other, tolerance)), None)
        if place is None:
            return False
        left.remove(place)
    return not left


def _with_one_constant(*values: Any) -> tuple[Any, ...]:
    """A constant of integration, a summand or the factor of an exponential, is C or c."""
    letters = {sympy.Symbol("c"), sympy.Symbol("C")}
    is_constant = values[0].free_symbols ^ values[1].free_symbols == letters and all(
        any(
            part in letters or (part.has(sympy.exp) and letters & set(part.args)) for part in sympy.Add.make_args(value)
        )
        for value in values
    )
    return tuple(value.xreplace({sympy.Symbol("C"): sympy.Symbol("c")}) for value in values) if is_constant else values
