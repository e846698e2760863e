r"""Tokens of one value as a sympy expression: every token is used, or there is no expression.

sum     = [+-] term ([+-] term)*
term    = mixed | factor ([*/]? factor)*
factor  = atom (^ argument | ! | ' | °)*
atom    = number | name | function argument | \frac.. | ( sum ) | | sum | | matrix
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy import Function, I, ImmutableMatrix, Integer, Mod, Rational, Symbol, pi

from hacpo_core.verify.spelling import ACCENTS, Token, end_of, split, words

_CONSTANTS = {"pi": pi, "∞": sympy.oo}
_LETTERS = {"e": sympy.E, "i": I}
_APPLIED = set("fghFGHP")
"""letters that name a function before a bracket; k(k+1) is a product"""
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(sympy, name) for name in words("function")} | {
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "max": sympy.Max,
    "min": sympy.Min,
    "ln": sympy.log,
    "log": sympy.log,
}
_GREEK = set(words("greek"))
_CLOSES = {"(": ")", "[": "]", "{": "}", "lfloor": "rfloor", "lceil": "rceil"}
_ROUND = {"lfloor": sympy.floor, "lceil": sympy.ceiling}
_MAX_DEPTH = 60


class UnreadError(ValueError):
    """An answer, or a part of it, that the grammar does not read."""


def number(text: str) -> Rational:
    """A number token's exact value; 0.1r6 is 0.1666..."""
    if "r" not in text:
        return Rational(text)
    before, _, period = text.partition("r")
    start, nines = Rational(f"{before or '0'}0" if before[-1:] in (".", "") else before), 10 ** len(period) - 1
    return start + Rational(int(period), nines * 10 ** len(before.partition(".")[2]))


def expression(tokens: Sequence[Token]) -> Any:
    """The value of tokens.

    Raises:
        UnreadError: the tokens are no expression.
    """
    reader = _Reader(tokens)
    try:
        value = reader.sum()
    except (TypeError, AttributeError, ZeroDivisionError, sympy.ShapeError) as error:  # a matrix plus a number
        raise UnreadError(str(error)) from error
    reader.expect("")
    if value.has(sympy.zoo, sympy.nan):
        raise UnreadError("not a number")
    return value


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = [part for token in tokens for part in token.letters]
        self._at, self._depth, self._is_in_bars = 0, 0, False
        self._bound: set[str] = set()
        """names of indices of sums"""

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("sign", "")

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _takes(self, *texts: str) -> str:
        """The next token's text if it is one of these, which is then used; else ""."""
        return self._next().text if self._peek().text in texts else ""

    def expect(self, text: str) -> None:
        """Use a token; "" is the end."""
        if self._next().text != text:
            raise UnreadError(f"no {text!r}")

    def sum(self) -> Any:
        """A sum of terms."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadError("nested too deeply")
        value = self._signed(self._term)
        while sign := self._takes("+", "-"):
            value = value + self._term() if sign == "+" else value - self._term()
        self._depth -= 1
        return Mod(value, self._factor()) if self._takes("mod") else value

    def _signed(self, read: Callable[[], Any]) -> Any:
        sign = self._takes("+", "-")
        value = read()
        return -value if sign == "-" else value

    def _term(self) -> Any:
        sign, value = "*", Integer(1)
        while True:
            mixed = self._mixed() if sign and self._peek().kind == "number" else None
            right = (self._signed(self._factor) if sign else self._factor()) if mixed is None else mixed
            value = value / right if sign == "/" else value * right
            sign = self._takes("*", "/")
            if not sign and (mixed is not None or not self._begins_factor(self._tokens[self._at - 1])):
                return value

    def _mixed(self) -> Any:
        r"""A number such as 3\frac12 or 3 1/2, if nothing that it would be a factor of follows."""
        start, whole, parts = self._at, self._next().text, [""]
        if self._takes("frac"):
            parts = ["".join(token.text for token in self._group()) for _ in range(2)]
        elif self._peek().is_spaced and self._peek(1).text == "/":
            parts, self._at = [self._peek().text, self._peek(2).text], self._at + 3
        is_whole = whole.isdecimal() and all(map(str.isdecimal, parts)) and int(parts[-1]) > 0
        if not is_whole or self._begins_factor(self._tokens[self._at - 1]) or self._peek().text in ("^", "!"):
            self._at = start
            return None
        return Rational(whole) + Rational(*parts)

    def _begins_factor(self, before: Token) -> bool:
        """Whether the next token is a factor though no sign stands before it."""
        token = self._peek()
        if token.kind == "number":
            return before.text in (")", "]", "}", "!") or (before.kind == "letters" and self._peek(1).text == "^")
        if token.text == "|":
            return not self._is_in_bars
        return (
            token.kind == "letters"
            or token.text in ("(", "[", "{", "∞", *_ROUND)
            or (token.kind == "text" and len(token.text) == 1)
            or (token.kind == "command" and token.text not in ("mod", "rfloor", "rceil") and token.text[:3] != "end")
        )

    def _factor(self) -> Any:
        start = self._at
        value = self._atom()
        while True:
            if self._takes("^"):
                value = self._power(value)
            elif self._takes("!"):
                value = sympy.factorial2(value) if self._takes("!") else sympy.factorial(value)
            elif self._takes("°"):
                value = value * pi / 180
            elif self._takes("'"):
                value = Symbol("".join(token.text for token in self._tokens[start : self._at]))
            else:
                return value

    def _power(self, base: Any) -> Any:
        argument = self._group()
        if [token.text for token in argument] not in (["T"], ["top"], ["intercal"]):
            return base ** self._inner(argument)
        return base.T if isinstance(base, sympy.MatrixBase) else base ** Symbol("T")

    def _inner(self, tokens: Sequence[Token]) -> Any:
        """The value of tokens inside this expression."""
        reader = _Reader(tokens)
        reader._depth, reader._bound = self._depth + 1, self._bound
        value = reader.sum()
        reader.expect("")
        return value

    def _group(self) -> list[Token]:
        """The tokens of the next argument, which `tokens_of` put in braces."""
        end = end_of(self._tokens, self._at) if self._peek().text == "{" else len(self._tokens)
        if end >= len(self._tokens):
            raise UnreadError("no argument")
        start, self._at = self._at + 1, end + 1
        return self._tokens[start:end]

    def _atom(self) -> Any:
        token = self._next()
        key = token.kind if token.kind in ("number", "letters", "text") else token.text
        read = _READERS.get("begin" if key.startswith("begin") else key)
        if read is None:
            raise UnreadError(f"{key!r} is no part of an expression")
        return read(self, token.text)

    def _bracket(self, opening: str) -> Any:
        was_in_bars, self._is_in_bars = self._is_in_bars, False
        value = self.sum()
        self._is_in_bars = was_in_bars
        self.expect(_CLOSES[opening])
        return _ROUND[opening](value) if opening in _ROUND else value

    def _bars(self, _: str) -> Any:
        self._is_in_bars = True
        value = self.sum()
        self.expect("|")
        self._is_in_bars = False
        return value.det() if isinstance(value, sympy.MatrixBase) else sympy.Abs(value)

    def _letter(self, name: str) -> Any:
        """A letter, or a function of a bracket."""
        if len(name) > 1:
            raise UnreadError(f"text {name!r}")
        is_of_one = name.isupper() and self._peek(2).text == ")" and self._peek(1).text != ")"  # I(0)
        if (name in _APPLIED and self._peek().text in ("(", "'")) or (is_of_one and self._peek().text == "("):
            while self._takes("'"):
                name += "'"
            return Function(name)(*self._arguments()) if self._peek().text == "(" else Symbol(name)
        symbol = Symbol(name + self._subscript())
        return _LETTERS.get(symbol.name, symbol) if symbol.name not in self._bound else symbol

    def _arguments(self) -> list[Any]:
        """What stands between brackets and commas."""
        closes, arguments = _CLOSES[self._next().text], [self.sum()]
        while self._takes(",", ";"):
            arguments.append(self.sum())
        self.expect(closes)
        return arguments

    def _subscript(self) -> str:
        return "_" + "".join(token.text for token in self._group()) if self._takes("_") else ""

    def _greek(self, name: str) -> Any:
        return Symbol(name + self._subscript())

    def _accent(self, name: str) -> Any:
        return Symbol(f"{name} {''.join(token.text for token in self._group())}{self._subscript()}")

    def _root(self, _: str) -> Any:
        index = self._arguments()[0] if self._peek().text == "[" else Integer(2)
        inside = self._inner(self._group())
        is_odd = index.is_Integer and index.p % 2 and inside.is_real and inside.is_negative
        return -sympy.root(-inside, index) if is_odd else sympy.root(inside, index)

    def _fraction(self, _: str) -> Any:
        r"""A quotient; dy/dx is a name of its own."""
        above, below = self._group(), self._group()
        names = ["".join(token.text for token in side) for side in (above, below)]
        for sign in ("d", "partial"):
            if all(name.startswith(sign) for name in names) and len(names[1]) > len(sign):
                return Symbol("/".join(names))
        return self._inner(above) / self._inner(below)

    def _binomial(self, _: str) -> Any:
        return sympy.binomial(self._inner(self._group()), self._inner(self._group()))

    def _function(self, name: str) -> Any:
        r"""A function of a bracket, or of the factors up to the next function: \sin 2x \cos x."""
        function = FUNCTIONS[name]
        base = self._inner(self._group()) if name == "log" and self._takes("_") else 10
        power = self._inner(self._group()) if self._takes("^") else 1
        if power == -1 and f"arc{name}" in FUNCTIONS:
            function, power = FUNCTIONS[f"arc{name}"], 1
        if self._peek().text in ("(", "["):
            arguments = self._arguments()
            arguments[0] *= pi / 180 if self._takes("°") else 1
        else:
            arguments = [self._factors()]
        return (sympy.log(arguments[0], base) if name == "log" else function(*arguments)) ** power

    def _factors(self) -> Any:
        value = self._mixed() if self._peek().kind == "number" else None
        if value is None:
            value = self._signed(self._factor)
            while self._begins_factor(self._tokens[self._at - 1]) and self._peek().text not in ("(", "[", *FUNCTIONS):
                value = value * self._factor()
            if self._peek(1).kind == "number" and self._takes("/"):  # \sin \pi/2
                value = value / self._factor()
        return value

    def _series(self, name: str) -> Any:
        self.expect("_")
        start = self._group()
        self.expect("^")
        stop = self._inner(self._group())
        if len(start) < 3 or start[0].kind != "letters" or start[1].text != "=":
            raise UnreadError("no index")
        index, self._bound = Symbol(start[0].text), self._bound | {start[0].text}
        series = sympy.Sum if name == "sum" else sympy.Product
        return series(self._term(), (index, self._inner(start[2:]), stop)).doit()

    def _matrix(self, begin: str) -> Any:
        environment = begin.removeprefix("begin")
        end = next(
            (at for at in range(self._at, len(self._tokens)) if self._tokens[at].text == f"end{environment}"), -1
        )
        if environment.removesuffix("matrix") not in ("", "p", "b", "v", "B", "small", "array") or end < 0:
            raise UnreadError(f"environment {environment!r}")
        rows = filter(
            None, split([token for token in self._tokens[self._at : end] if token.text != "hline"], {r"\\"})[0]
        )
        entries = [[self._inner(entry) for entry in split(row, {"&"})[0]] for row in rows]
        self._at = end + 1
        if not entries or len({len(row) for row in entries}) > 1:
            raise UnreadError("rows of different lengths")
        matrix = ImmutableMatrix(entries)
        return matrix.det() if environment == "vmatrix" else matrix


_READERS: dict[str, Callable[[_Reader, str], Any]] = {
    **dict.fromkeys(("letters", "text"), _Reader._letter),
    **dict.fromkeys(_CONSTANTS, lambda _, name: _CONSTANTS[name]),
    **dict.fromkeys(_CLOSES, _Reader._bracket),
    **dict.fromkeys(_GREEK, _Reader._greek),
    **dict.fromkeys(ACCENTS, _Reader._accent),
    **dict.fromkeys(FUNCTIONS, _Reader._function),
    **dict.fromkeys(("sum", "prod"), _Reader._series),
    "number": lambda _, text: number(text),
    "|": _Reader._bars,
    "begin": _Reader._matrix,
    "sqrt": _Reader._root,
    "frac": _Reader._fraction,
    "binom": _Reader._binomial,
}
"""what reads a token, by its kind or text"""
