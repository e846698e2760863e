r"""Units behind an answer, as text: 18 dollars, 5\sqrt{3}\text{ cm}^2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import eq

_NUMBER = r"(?:[A-Za-z](?:_\w)? ?= ?)?-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:/\d+)?"
# After a number, these words are not a unit: they change its value.
_CHANGES = (
    r"(?:hundred|thousand|[mb]illion|trillion|dozen|percent|half|halves|third|quarter|fourth"
    r"|(?:fif|six|seven|eigh|nin|ten)th|hundredth|thousandth|pi|sqrt|sin|cos|tan|log|ln|exp|inf|infinity|and|or|to|by"
    r"|mod|times|plus|minus|over|squared|cubed|factorial|choose|base|is|are|not|if|more|less|than)s?\b"
)
_WORD = rf"(?!{_CHANGES})(?:[A-Za-z]{{2,}}|[A-Za-z]+/[A-Za-z]+)\.?"
_POWER = r"(?:\^ ?\{?(?P<power>\d)\}?)?"
_BEHIND_NUMBER = re.compile(rf"(?P<value>{_NUMBER}) ?(?P<unit>{_WORD}(?: {_WORD}){{0,3}}){_POWER}", re.IGNORECASE)
_IN_TEXT = re.compile(rf"(?P<value>.*?[\d)}}a-z]) ?\\text\{{ ?(?P<unit>[^{{}}]*[A-Za-z][^{{}}]*)\}}{_POWER}", re.DOTALL)
_SPELLED = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "oz": "ounce", "ms": "millisecond", "s": "sec second", "min": "minute", "h": "hr hour",
    "d": "day", "wk": "week", "mo": "month", "yr": "year", "l": "liter litre", "ml": "milliliter millilitre",
    "usd": "dollar", "cent": "", "eur": "euro", "lb": "pound gbp", "yen": "jpy", "percent": "", "degree": "deg",
    "celsius": "", "fahrenheit": "", "rad": "radian", "mph": "", "n": "newton", "j": "joule", "w": "watt",
    "hz": "hertz",
}  # fmt: skip
_KEYS = {name: key for key, names in _SPELLED.items() for name in (key, *names.split())}
_SCRIPT = re.compile(r"\^\{?(\w)\}?")
_PERCENT = re.compile(r"(?P<value>.*?) ?(?:\\?%|\\text\{ ?percent ?\}|percent)", re.DOTALL)
_DEGREES = re.compile(r"(?P<value>.*?) ?\^ ?\\circ(?: ?(?:\\text ?\{ ?)?(?P<scale>[CF])\b ?\}?)?", re.DOTALL)
_PRIMES = re.compile(r"(?P<value>-?\d+(?:\.\d+)?) ?(?P<sign>''?|\")")
_SCALES = {"C": "celsius", "F": "fahrenheit", None: "degree"}
_POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cu": "3", "cubed": "3"}


@dataclass(frozen=True, slots=True)
class Unit:
    """Words of a unit in lower case, one spelling each, and its exponent."""

    words: tuple[str, ...]
    power: str

    @property
    def is_known(self) -> bool:
        """Whether all words are units of `_SPELLED`."""
        return all(word in _SPELLED or word == "per" for word in self.words)


PERCENT, _DEGREE = Unit(("percent",), "1"), Unit(("degree",), "1")


def without_unit(answer: str, unit: str) -> str:
    """The answer without its unit, at the end or before a comma; the unit may be bare, in \\text or in \\mathrm."""
    bare = unit.replace("$", "").strip()
    spellings = {bare, bare.replace("%", "\\%"), _SCRIPT.sub(r"^{\1}", bare), _SCRIPT.sub(r"^\1", bare)}
    if "\\circ" in bare:
        spellings |= {"°", "^\\circ", "^{\\circ}", "\\degree"}
    any_of = "|".join(re.escape(spelling) for spelling in sorted(spellings, key=len, reverse=True) if spelling)
    in_text = rf"\\(?:text|mathrm|mbox|textrm) ?\{{[ ~]?(?:{any_of})[ ~]?\}}"
    return re.sub(rf"(?:\\[ ,;]|[ ~])?(?:{in_text}|{any_of})(?= ?(?:,|$))", "", answer).strip() if any_of else answer


def without_last_unit(answer: str) -> tuple[str, Unit | None]:
    """A canonical answer without the unit, percent sign or degree sign behind it, and this unit."""
    if (match := _PERCENT.fullmatch(answer)) is not None:
        return match["value"], PERCENT
    if (match := _DEGREES.fullmatch(answer)) is not None:
        return match["value"], Unit((_SCALES[match["scale"]],), "1")
    if (match := _PRIMES.fullmatch(answer)) is not None:
        return match["value"], Unit(("ft" if match["sign"] == "'" else "in",), "1")
    match = _BEHIND_NUMBER.fullmatch(answer) or _IN_TEXT.fullmatch(answer)
    if match is None or re.match(_CHANGES, match["unit"].strip(), re.IGNORECASE):
        return answer, None
    words = re.findall(r"[a-z]+", match["unit"].lower().replace("/", " per "))
    power = match["power"] or next((_POWERS[word] for word in words if word in _POWERS), "1")
    unit_words = tuple(_key(word) for word in words if word not in _POWERS)
    is_degree_of = unit_words[:1] == ("degree",) and len(unit_words) > 1
    return match["value"], Unit(unit_words[1:] if is_degree_of else unit_words, power)


def units_differ(one: Unit | None, other: Unit | None) -> bool:
    """Whether both are given and differ in their exponent, or are well known and differ.

    Degrees may be of an angle or of any scale of temperature; dollars may be dollars per hour.
    """
    if one is None or other is None or one == other:
        return False
    if _DEGREE in (one, other) and {one.words, other.words} & {("celsius",), ("fahrenheit",)}:
        return False
    if one.power == other.power and all(map(eq, one.words, other.words)):
        return False
    return one.power != other.power or (one.is_known and other.is_known)


def _key(word: str) -> str:
    return next(
        (_KEYS[name] for name in (word, word.removesuffix("s"), word.removesuffix("es")) if name in _KEYS), word
    )
