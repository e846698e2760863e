r"""Values with units, by pint: 5 cm^2, $5, 28\%, 60^\circ 30'. A noun that pint does not know counts and is no unit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import pint
from sympy import Rational

from hacpo_core.verify.expressions import FUNCTIONS, UnreadError, expression
from hacpo_core.verify.spelling import CLOSES, OPENS, Token, definitions, end_of, named, words
from hacpo_core.verify.values import Answer, Expression, Percent, Quantity

_REGISTRY: Any = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
for _definition in definitions("unit"):
    _REGISTRY.define(_definition)
_MEANINGS = {name: units.split() for name, units in named("meaning").items()}
"""signs, and words of several units"""
_POWERS, _POWERS_BEHIND = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}, {"squared": 2, "cubed": 3}
_PERCENT = {"%", "percent", "pct", "prozent"}
AMOUNTS = {name: int(amount) for name, amount in named("amount").items()}
_CURRENCIES = ("$", "€", "£", "¥")
_FILLERS = set(words("filler"))
_NO_NOUNS = set(words("no noun"))
"""words and signs that are no nouns, or change a value: what stands behind a value and has one of them is not read"""


def quantity(tokens: list[Token]) -> Answer:
    """A value, perhaps with a unit or a percent sign; hours and minutes are added.

    Raises:
        UnreadError: the tokens are something else.
    """
    at = 1 if tokens and tokens[0].text == "-" else 0
    if len(tokens) > at + 1 and tokens[at].text in _CURRENCIES:  # $5 million per hour as 5 million $ per hour
        end = next((i for i in range(at + 1, len(tokens)) if _is_rate(tokens, i)), len(tokens))
        tokens = [*tokens[:at], *tokens[at + 1 : end], tokens[at], *tokens[end:]]
    starts = _unit_starts(tokens)
    if not starts:
        return expression_of(tokens)
    try:
        ends = [
            next((at for at in range(start + 1, len(tokens)) if _is_value(tokens, at)), len(tokens)) for start in starts
        ]
        begins = [0, *ends[:-1]]
        if ends[-1] < len(tokens):
            raise UnreadError("a value without its unit")
        parts = [_single(tokens[begin:at], tokens[at:end]) for begin, at, end in zip(begins, starts, ends, strict=True)]
        return parts[0] if len(parts) == 1 else sum_of_quantities(parts)
    except UnreadError:
        if any(token.kind == "text" or token.text in ("°", "%", "$", "'") for token in tokens[starts[0] :]):
            raise
        return expression_of(tokens)  # 2RC + 1: letters, and no unit


def expression_of(tokens: Sequence[Token]) -> Expression:
    """The value of tokens without a unit.

    Raises:
        UnreadError: they are no expression.
    """
    for before, token in pairwise(tokens):
        if token.is_spaced and before.kind == token.kind == "letters" and min(len(before.text), len(token.text)) > 1:
            raise UnreadError("prose")
    is_decimal = any(token.kind == "number" and "." in token.text and "r" not in token.text for token in tokens)
    return Expression(expression(tokens), "".join(token.text for token in tokens), is_decimal)


def sum_of_quantities(parts: Sequence[Answer]) -> Quantity:
    """Several quantities as one, in the first one's unit.

    Raises:
        UnreadError: they are not of one kind, or not in different units.
    """
    total: Any = 0
    units, first = tuple[Any, ...](), parts[0]
    for part in parts:
        if (
            not isinstance(part, Quantity)
            or not isinstance(first, Quantity)
            or (part is not first and part.unit == first.unit)
        ):
            raise UnreadError("parts without different units")
        units = tuple(u for u in first.unit if any(u.dimensionality == other.dimensionality for other in part.unit))
        total += next((value for value, _ in conversions(part.value.value, part.unit, units)), math.nan)
    if total != total:
        raise UnreadError("parts of different kinds")
    return Quantity(Expression(total, is_decimal=True), units)


def conversions(value: Any, unit: tuple[Any, ...], goals: tuple[Any, ...]) -> Iterator[tuple[Any, bool]]:
    """A value in another unit, for all that the units may mean, and whether it is exact."""
    for meaning, goal in product(unit, goals):
        if meaning == goal:
            yield value, True
        elif meaning.dimensionality == goal.dimensionality:
            converted = _REGISTRY.Quantity(float(value) if value.is_number else 1.0, meaning).to(goal).magnitude
            yield Rational(repr(float(converted))) * (1 if value.is_number else value), False


def _is_rate(tokens: list[Token], at: int) -> bool:
    return (bool(tokens[at].word) and tokens[at].word not in AMOUNTS) or (
        tokens[at].text == "/" and at + 1 < len(tokens) and bool(tokens[at + 1].word)
    )


def _is_value(tokens: list[Token], at: int) -> bool:
    """Whether a further value begins behind a unit."""
    return tokens[at].kind == "number" and (tokens[at - 1].word != "" or tokens[at - 1].text in ("°", "'"))


def _unit_starts(tokens: list[Token]) -> list[int]:
    """Where units begin."""
    has_function = any(token.kind == "command" and token.text in FUNCTIONS for token in tokens)
    starts, depth, is_inside = list[int](), 0, False
    for at, token in enumerate(tokens):
        depth += (token.text in OPENS) - (token.text in CLOSES)
        if at and not depth:
            begins = not is_inside and _begins_unit(tokens, at) and not (token.text == "°" and has_function)
            starts += [at] if begins else []
            is_inside = begins or (is_inside and not _is_value(tokens, at))
    return starts


def _begins_unit(tokens: list[Token], at: int) -> bool:
    token, before = tokens[at], tokens[at - 1]
    text, is_behind_number = token.text, before.kind == "number"
    if token.kind == "sign":
        is_prime = text in ("'", '"') and (is_behind_number or before.text == "°")
        return is_prime or text in ("%", "¢", "°", *_CURRENCIES)
    if before.kind == "sign" and before.text not in (*CLOSES, "!", "°", "∞", "'"):
        return False
    if token.kind != "letters" or not text.isascii():
        inside = tokens[at + 2 : at + 3] if text == "frac" else []
        is_fraction = any(part.kind == "text" and known_unit(part.text) is not None for part in inside)
        return token.kind in ("letters", "text") or is_fraction
    is_short = len(text) == 1
    is_letter = is_short and token.is_spaced and is_behind_number and text in "msghlLNJWVAKCF"
    is_word = token.is_spaced and (len(text) > 2 or text in _POWERS)
    is_known = not is_short and (token.is_spaced or is_behind_number) and known_unit(text) is not None
    return is_letter or is_word or is_known


def _single(value_tokens: list[Token], unit: list[Token]) -> Answer:
    value, tokens = expression_of(value_tokens), unit
    if unit[0].text == "frac":
        over = end_of(unit, 1)
        unit = [*unit[2:over], Token("sign", "/"), Token("sign", "("), *unit[over + 2 : -1], Token("sign", ")")]
    while unit and unit[0].word.removesuffix("s") in AMOUNTS:
        value = Expression(value.value * AMOUNTS[unit[0].word.removesuffix("s")], "", value.is_decimal)
        unit = unit[1:]
    words = [token.word or token.text for token in unit]
    if words[-1:] in ([word] for word in _PERCENT) or words[-2:] == ["per", "cent"]:
        if len(words) > 1 + (words[0] == "per"):
            raise UnreadError("a share of something")
        return Percent(value)
    meanings = _unit(unit)
    if not meanings:
        return value
    letters = [Token("letters", t.text) if t.kind == "text" and len(t.text) == 1 else t for t in tokens]
    try:
        is_letters = tokens is unit and all(token.kind == "letters" for token in letters)
        term = expression_of([*value_tokens, *letters]) if is_letters else None
    except UnreadError:
        term = None
    return Quantity(value, meanings, term)


def _unit(tokens: Sequence[Token]) -> tuple[Any, ...]:
    """All that the tokens behind a value may mean as a unit; nothing if they only name what is counted.

    Raises:
        UnreadError: they are neither a unit nor nouns.
    """
    factors, at, sign, sign_inside, power = list[tuple[tuple[Any, ...], int]](), 0, 1, 1, 1
    while at < len(tokens):
        token, at = tokens[at], at + 1
        text, word = token.text, token.text.lower()
        if text in ("/", "per"):
            sign = -1
        elif text in ("(", ")"):
            sign_inside, sign = (sign if text == "(" else 1), 1
        elif word in _POWERS:
            power = _POWERS[word]
        elif factors and (text == "^" or word in _POWERS_BEHIND):
            exponent, at = _exponent(tokens, at) if text == "^" else (_POWERS_BEHIND[word], at)
            factors[-1] = factors[-1][0], factors[-1][1] * exponent
        elif text not in ("*", "-", "."):
            if text == "°":  # degrees of Celsius
                at += at < len(tokens) and tokens[at].word == "of"
                scale = "°" + tokens[at].word[:1] if at < len(tokens) else ""
                token, at = (Token("sign", scale), at + 1) if scale in _MEANINGS else (token, at)
            if text == "'" and tokens[at : at + 1] and tokens[at].text == "'":  # seconds of an angle, inches
                token, at = Token("sign", "''"), at + 1
            meanings = _meanings(token, is_last=at == len(tokens))
            factors += [(meanings, sign * sign_inside * power)] if meanings else []
            sign, power = 1, 1 if meanings else power
    if power != 1:
        raise UnreadError("no unit")
    powers = [[meaning**exponent for meaning in meanings] for meanings, exponent in factors]
    return tuple(math.prod(parts[1:], start=parts[0]) for parts in product(*powers)) if powers else ()


def _exponent(tokens: Sequence[Token], at: int) -> tuple[int, int]:
    end = end_of(tokens, at) if at < len(tokens) else at
    digits = "".join(token.text for token in tokens[at + 1 : end])
    if not digits.lstrip("-").isdecimal() or len(digits) > 2:
        raise UnreadError("no exponent of a unit")
    return int(digits), end + 1


def _meanings(token: Token, *, is_last: bool) -> tuple[Any, ...]:
    """The units of a word; none if it is a noun."""
    word, unit = token.text.lower(), known_unit(token.text)
    if word in _MEANINGS:
        return tuple(_REGISTRY.Unit(name) for name in _MEANINGS[word])
    if word in _FILLERS and not (word == "in" and is_last):
        return ()
    is_letter = len(word) == 1 and word.isascii()
    signs = {word, *(sign for sign in word if not sign.isascii())}
    if unit is None and (not token.word or is_letter or signs & (_NO_NOUNS | AMOUNTS.keys())):
        raise UnreadError(f"{token.text!r} is neither a unit nor a noun")
    return () if unit is None else (unit,)


@lru_cache(maxsize=4096)
def known_unit(word: str) -> Any:
    """Pint's unit of a word, or None; long words have no prefix as a symbol ("pints" are no pico-...)."""
    for name in dict.fromkeys((word, word.lower())):
        try:
            prefix = _REGISTRY.parse_unit_name(name)[0][0] if name.isalpha() and name not in _NO_NOUNS else None
            if prefix is not None and (len(name) <= 4 or name.startswith(prefix)):
                return _REGISTRY.Unit(name)
        except Exception:  # noqa: BLE001 - pint raises what its parser meets
            continue
    return None
