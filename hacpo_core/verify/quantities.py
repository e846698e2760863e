r"""Values with units, by pint: 5 cm^2, $5, 28\%, 60^\circ 30'. A noun that pint does not know counts and is no unit."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import pint
from sympy import Rational

from hacpo_core.verify.expressions import FUNCTIONS, expression
from hacpo_core.verify.spelling import CLOSES, OPENS, Token, definitions, named, text_of, words
from hacpo_core.verify.values import Answer, Expression, Quantity, UnreadError

_REGISTRY: Any = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
for _definition in definitions("unit"):
    _REGISTRY.define(_definition)
_NOUN = ["dimensionless"]
PERCENT, _NONE = _REGISTRY.Unit("percent"), _REGISTRY.Unit(*_NOUN)
_MEANINGS = {name: units.split() for name, units in named("meaning").items()}
"""signs, and words of several units"""
AMOUNTS = {name: int(amount) for name, amount in named("amount").items()}
_CURRENCIES = ("$", "€", "£", "¥", "₹")
_FILLERS, _POWERS, _BARE = set(words("filler")), set(words("power")), set(words("bare"))
_ONE = rf"(?:[msghlLNJWVAKCFT]|{'|'.join(words('symbol'))})"
_SYMBOL = re.compile(
    rf"{_ONE}(?: \^ \{{ (?:- )?\d \}})?"
    rf"(?: [/*] (?:{_ONE}|[a-z]{{2,4}})(?: \^ \{{ \d \}})?| {_ONE} \^ \{{ - \d \}})*(?: \d.*)?"
)
"""units whose letters a formula may use as variables"""
_SHORT_WORD = re.compile("[a-z]*[eiou][a-z]*|[a-z]a[a-z]")
"""words of three letters; products of variables seldom look like this"""
NO_NOUNS = set(words("no noun") + words("number") + words("tens"))
"""words and signs that are no nouns, or change a value: what stands behind a value and has one of them is not read"""
_SPELLINGS = (
    (re.compile("° (?:of )?(c|f)(?:elsius|ahrenheit)?(?= |$)", re.IGNORECASE), r"°\1"),
    (re.compile("' '"), "''"),
    (re.compile("(?:^| )times(?: as (?:many|much))?$"), ""),
    (re.compile("per cent(?= |$)"), "%"),
    (re.compile(r"\^ \{ (-? ?\d{1,2}) \}"), r"** ( \1 )"),
    (re.compile(r"(?<=\w) - (?=\w)|\."), " "),
    (re.compile(r"^frac \{ (.*) \} \{ (.*) \}$"), r"( \1 ) / ( \2 )"),
)


def quantity(tokens: list[Token]) -> Expression | Quantity:
    """A value, perhaps with a unit; hours and minutes are added.

    Raises:
        UnreadError: the tokens are something else.
    """
    at = 1 if tokens and tokens[0].text == "-" else 0
    if tokens[at:] and tokens[at].text in _CURRENCIES:
        amount = quantity([*tokens[:at], *tokens[at + 1 :]])
        value, units = (amount.value, amount.units) if isinstance(amount, Quantity) else (amount, (_NONE,))
        return Quantity(value, tuple(money * unit for money, unit in product(_units([tokens[at]]), units)))
    parts = _parts(tokens)
    try:
        quantities = [_single(*part) if part[1] else expression_of(part[0]) for part in parts]
        return quantities[0] if len(quantities) == 1 else sum_of_quantities(quantities)
    except UnreadError:
        if any(token.kind == "text" or token.text in ("°", "%", "$", "'") for token in parts[0][1]):
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
    quantities = [part for part in parts if isinstance(part, Quantity)]
    kinds = [{unit.dimensionality for unit in part.units} for part in quantities]
    units = tuple(u for part in quantities[:1] for u in part.units if all(u.dimensionality in kind for kind in kinds))
    if len(quantities) < len(parts) or not units or any(part.units == quantities[0].units for part in quantities[1:]):
        raise UnreadError("parts without different units of one kind")
    return Quantity(Expression(sum(next(conversions(part, units))[0] for part in quantities), is_decimal=True), units)


def conversions(quantity: Quantity, goals: tuple[Any, ...]) -> Iterator[tuple[Any, bool]]:
    """The value in other units, for all that the units may mean, and whether it is exact."""
    value = quantity.value.value
    for unit, goal in product(quantity.units, goals):
        if unit == goal:
            yield value, True
        elif unit.dimensionality == goal.dimensionality:
            converted = _REGISTRY.Quantity(float(value) if value.is_number else 1.0, unit).to(goal).magnitude
            yield Rational(repr(float(converted))) * (1 if value.is_number else value), False


def _parts(tokens: list[Token]) -> list[tuple[list[Token], list[Token]]]:
    """Values, each with the tokens of its unit."""
    has_function = any(token.kind == "command" and token.text in FUNCTIONS for token in tokens)
    parts, depth = [(list[Token](), list[Token]())], 0
    for at, token in enumerate(tokens):
        depth += (token.text in OPENS) - (token.text in CLOSES)
        unit = parts[-1][1]
        if unit and not depth and token.kind == "number" and (tokens[at - 1].word or tokens[at - 1].text in ("°", "'")):
            parts.append(([token], []))
        elif unit or (at and not depth and _begins_unit(tokens, at) and not (token.text == "°" and has_function)):
            unit.append(token)
        else:
            parts[-1][0].append(token)
    return parts


def _begins_unit(tokens: list[Token], at: int) -> bool:
    token, before = tokens[at], tokens[at - 1]
    text, is_behind_number = token.text, before.kind == "number" or before.text == "}"
    if token.kind == "sign":
        is_prime = text in ("'", '"') and (is_behind_number or before.text == "°")
        is_per = text == "/" and bool(tokens[at + 1 :]) and tokens[at + 1].kind == "text"
        return is_prime or is_per or text in ("%", "¢", "°", *_CURRENCIES)
    if before.kind == "sign" and before.text not in (*CLOSES, "!", "°", "∞", "'"):
        return False
    if token.kind != "letters" or not text.isascii():
        inside = tokens[at + 2 : at + 3] if text == "frac" else []
        is_fraction = any(part.kind == "text" and known_unit(part.text) is not None for part in inside)
        return token.kind in ("letters", "text") or is_fraction
    is_plain = all(part.kind in ("number", "sign") for part in tokens[:at]) or "/" in text_of(tokens[at:])
    is_symbol = token.is_spaced and is_plain and _SYMBOL.fullmatch(text_of(tokens[at:])) is not None
    is_word_of_three = len(text) == 3 and _SHORT_WORD.fullmatch(text) is not None
    is_word = token.is_spaced and (len(text) > 3 or text in (*_POWERS, "of", "in") or is_word_of_three)
    is_known = text in _BARE or (len(text) > 3 and known_unit(text) is not None)
    return is_symbol or is_word or (is_known and (token.is_spaced or is_behind_number))


def _single(value_tokens: list[Token], unit: list[Token]) -> Expression | Quantity:
    value, num_amounts = expression_of(value_tokens), 0
    while num_amounts < len(unit) and (amount := AMOUNTS.get(unit[num_amounts].word.removesuffix("s"))):
        value, num_amounts = replace(value, value=value.value * amount, text=""), num_amounts + 1
    units = _units(unit[num_amounts:])
    value = replace(value, nouns=_nouns(unit[num_amounts:]))
    is_letters = unit[0].kind == "letters" and len(unit[0].text) == 1
    term = expression_of([*value_tokens, *unit]) if is_letters else None
    return Quantity(value, units, term) if units else value


def _nouns(unit: Sequence[Token]) -> frozenset[str]:
    """The words of a unit that pint does not know: what is counted, or what happened to it (a 20% decrease)."""
    known = _FILLERS | _POWERS | _MEANINGS.keys()
    return frozenset(
        re.sub("(?:ies|es|s|y|e)$", "", t.word)
        for t in unit
        if t.word not in known | {""} and known_unit(t.text) is None
    )


def _units(tokens: Sequence[Token]) -> tuple[Any, ...]:
    """All that the tokens behind a value may mean as a unit; nothing if they only name what is counted.

    Raises:
        UnreadError: they are neither a unit nor nouns.
    """
    if any(token.kind == "command" and token.text not in ("frac", "Omega") for token in tokens):
        raise UnreadError("a formula")
    text = text_of(tokens)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    names = text.split()
    meanings = [_meanings(name, is_last=after in ("", "**")) for name, after in pairwise([*names, ""])]
    if any(name[0] in ("squared", "cubed", "**") and before == _NOUN for before, name in pairwise([_NOUN, *meanings])):
        raise UnreadError("a power without a unit")
    try:
        # One word alone is a temperature, not a difference of temperatures; the first of several may be "per".
        parts = meanings if len(meanings) == 1 else [_NOUN, *meanings]
        units = [_REGISTRY.parse_units(" ".join(choice)) for choice in product(*parts)]
    except Exception as error:  # pint raises what its parser meets
        raise UnreadError(f"no unit: {text}") from error
    return tuple(unit for unit in dict.fromkeys(units) if unit != _NONE)


def _meanings(word: str, *, is_last: bool) -> list[str]:
    """Pint's names of a word or sign; "dimensionless" if it is a noun."""
    lower, unit = word.lower(), known_unit(word)
    if lower in _MEANINGS or lower in _POWERS or re.fullmatch(r"-?\d+|[-/*()]|\*\*", word):
        return _MEANINGS.get(lower, [lower])
    if lower in _FILLERS and not word.isupper() and not (lower == "in" and is_last):
        return _NOUN
    signs = {lower, lower.removesuffix("s").removesuffix("th"), *(sign for sign in lower if not sign.isascii())}
    is_noun = word.isalpha() and not (len(word) == 1 and word.isascii()) and not signs & (NO_NOUNS | AMOUNTS.keys())
    if unit is None and not is_noun:
        raise UnreadError(f"{word!r} is neither a unit nor a noun")
    return _NOUN if unit is None else [str(unit)]


@lru_cache(maxsize=4096)
def known_unit(word: str) -> Any:
    """Pint's unit of a word, or None; long words have no prefix as a symbol ("pints" are no pico-...)."""
    for name in dict.fromkeys((word, word.lower())):
        try:
            prefix = _REGISTRY.parse_unit_name(name)[0][0] if name.isalpha() and name not in NO_NOUNS else None
            if prefix is not None and (len(name) <= 4 or name.startswith(prefix)):
                return _REGISTRY.Unit(name)
        except Exception:  # noqa: BLE001 - pint raises what its parser meets
            continue
    return None
