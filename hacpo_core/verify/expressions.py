r"""Tokens of one value as a sympy expression: every token is used, or there is no expression.

sum     = [+-] term ([+-] term)*
term    = mixed | factor ([*/]? factor)*
factor  = atom (^ argument | ! | ' | °)*
atom    = number | name | function argument | \frac.. | ( sum ) | | sum | | matrix
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
from sympy import Function, I, ImmutableMatrix, Integer, Mod, Rational, Symbol, pi
from sympy.core.function import AppliedUndef

from hacpo_core.verify.spelling import ACCENTS, Token, end_of, text_of, words
from hacpo_core.verify.values import UnreadError

_CONSTANTS = {"e": sympy.E, "i": I, "pi": pi, "∞": sympy.oo}
_APPLIED = set("fghFGHP")
"""letters that name a function before a bracket; k(k+1) is a product"""
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(sympy, name) for name in words("function")}
FUNCTIONS |= {"max": sympy.Max, "min": sympy.Min, "ln": sympy.log}
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_MATRICES = {f"begin{kind}matrix" for kind in ("", "p", "b", "v", "B", "small")} | {"beginarray"}


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
    except (TypeError, AttributeError, ZeroDivisionError, RecursionError, sympy.ShapeError) as error:
        raise UnreadError(str(error)) from error
    reader.expect("")
    if value.has(sympy.zoo, sympy.nan):
        raise UnreadError("not a number")
    return value


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = [
            Token("letters", letter) if token.kind == "letters" and len(token.text) > 1 else token
            for token in tokens
            for letter in (token.text if token.kind == "letters" else ("",))
        ]
        self._at, self._is_in_bars = 0, False
        self._indices = set[str]()
        """names of indices of sums"""

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("sign", "")

    def _next(self) -> Token:
        self._at += 1
        return self._peek(-1)

    def _takes(self, *texts: str) -> str:
        """The next token's text if it is one of these, which is then used; else ""."""
        return self._next().text if self._peek().text in texts else ""

    def expect(self, text: str) -> None:
        """Use a token; "" is the end."""
        if self._next().text != text:
            raise UnreadError(f"no {text!r}")

    def sum(self) -> Any:
        """A sum of terms."""
        value = self._signed(self._term)
        while sign := self._takes("+", "-"):
            value = value + self._term() if sign == "+" else value - self._term()
        return Mod(value, self._factor()) if self._takes("mod") else value

    def _inside(self, closing: str) -> Any:
        """A sum and the bracket behind it."""
        was_in_bars, self._is_in_bars = self._is_in_bars, closing == "|"
        value = self.sum()
        self.expect(closing)
        self._is_in_bars = was_in_bars
        return value

    def _argument(self) -> Any:
        """The value of an argument, which `tokens_of` put in braces."""
        self.expect("{")
        return self._inside("}")

    def _name(self) -> str:
        """An argument as a text."""
        if self._peek().text != "{":
            raise UnreadError("no argument")
        start, self._at = self._at + 1, end_of(self._tokens, self._at) + 1
        return text_of(self._tokens[start : self._at - 1]).replace(" ", "")

    def _signed(self, read: Callable[[], Any]) -> Any:
        sign = self._takes("+", "-")
        value = read()
        return -value if sign == "-" else value

    def _term(self) -> Any:
        sign, value = "*", Integer(1)
        while True:
            mixed = self._mixed() if sign else None
            right = (self._signed(self._factor) if sign else self._factor()) if mixed is None else mixed
            value = value / right if sign == "/" else value * right
            sign = self._takes("*", "/")
            if not sign and (mixed is not None or not self._begins_factor()):
                return value

    def _mixed(self) -> Any:
        r"""A number such as 3\frac12 or 3 1/2, if nothing that it would be a factor of follows."""
        start, whole, parts = self._at, self._next().text, [""]
        if whole.isdecimal() and self._takes("frac"):
            parts = [self._name(), self._name()]
        elif self._peek().is_spaced and self._peek(1).text == "/":
            parts, self._at = [self._peek().text, self._peek(2).text], self._at + 3
        is_whole = whole.isdecimal() and all(map(str.isdecimal, parts)) and int(parts[-1]) > 0
        if is_whole and not self._begins_factor() and self._peek().text not in ("^", "!"):
            return Rational(whole) + Rational(*parts)
        self._at = start
        return None

    def _begins_factor(self) -> bool:
        """Whether the next token is a factor though no sign stands before it."""
        token, before = self._peek(), self._peek(-1)
        if token.kind == "number":
            return before.text in (")", "]", "}", "!") or (before.kind == "letters" and self._peek(1).text == "^")
        if token.kind == "sign":
            return token.text in ("(", "[", "{", "∞") or (token.text == "|" and not self._is_in_bars)
        is_end = token.text in ("mod", "rfloor", "rceil") or token.text.startswith("end")
        return token.kind == "letters" or (len(token.text) == 1 if token.kind == "text" else not is_end)

    def _factor(self) -> Any:
        start = self._at
        value = self._atom()
        while sign := self._takes("^", "!", "°", "'"):
            if sign == "^":
                value = self._power(value)
            elif sign == "!":
                value = sympy.factorial2(value) if self._takes("!") else sympy.factorial(value)
            else:
                value = (
                    value * pi / 180 if sign == "°" else Symbol("".join(t.text for t in self._tokens[start : self._at]))
                )
        return value

    def _power(self, base: Any) -> Any:
        if self._peek(1).text not in ("T", "top", "intercal") or self._peek(2).text != "}":
            return base ** self._argument()
        self._name()
        return base.T if isinstance(base, sympy.MatrixBase) else base ** Symbol("T")

    def _atom(self) -> Any:
        token = self._next()
        key = token.kind if token.kind in ("number", "letters", "text") else token.text
        if key not in _READERS:
            raise UnreadError(f"{key!r} is no part of an expression")
        return _READERS[key](self, token.text)

    def _bars(self, _: str) -> Any:
        value = self._inside("|")
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
        symbol = self._symbol(name)
        return symbol if name in self._indices else _CONSTANTS.get(symbol.name, symbol)

    def _symbol(self, name: str) -> Any:
        """A name with its accent and its subscript."""
        accent = f" {self._name()}" if name in ACCENTS else ""
        return Symbol(name + accent + (f"_{self._name()}" if self._takes("_") else ""))

    def _arguments(self) -> list[Any]:
        """What stands between brackets and commas."""
        closes, arguments = _CLOSES[self._next().text], [self.sum()]
        while self._takes(",", ";"):
            arguments.append(self.sum())
        self.expect(closes)
        return arguments

    def _root(self, _: str) -> Any:
        index = self._arguments()[0] if self._peek().text == "[" else Integer(2)
        inside = self._argument()
        is_odd = index.is_Integer and index.p % 2 and inside.is_real and inside.is_negative
        return -sympy.root(-inside, index) if is_odd else sympy.root(inside, index)

    def _fraction(self, _: str) -> Any:
        r"""A quotient; dy/dx is a name of its own."""
        start, names = self._at, [self._name(), self._name()]
        for sign in ("d", "partial"):
            if all(name.startswith(sign) for name in names) and len(names[1]) > len(sign):
                return Symbol("/".join(names))
        self._at = start
        return self._argument() / self._argument()

    def _function(self, name: str) -> Any:
        r"""A function of a bracket, or of the factors up to the next function: \sin 2x \cos x."""
        function = FUNCTIONS[name]
        base = self._argument() if name == "log" and self._takes("_") else 10
        power = self._argument() if self._takes("^") else 1
        if power == -1 and f"a{name}" in FUNCTIONS:
            function, power = FUNCTIONS[f"a{name}"], 1
        if self._peek().text in ("(", "["):
            arguments = self._arguments()
            arguments[0] *= pi / 180 if self._takes("°") else 1
        else:
            arguments = [self._factors()]
        return (sympy.log(arguments[0], base) if name == "log" else function(*arguments)) ** power

    def _factors(self) -> Any:
        value = self._mixed()
        if value is None:
            value = self._signed(self._factor)
            while self._begins_factor() and self._peek().text not in ("(", "[", *FUNCTIONS):
                value = value * self._factor()
            if self._peek(1).kind == "number" and self._takes("/"):  # \sin \pi/2
                value = value / self._factor()
        return value

    def _series(self, name: str) -> Any:
        self.expect("_")
        self.expect("{")
        index = self._next().text
        self.expect("=")
        start = self._inside("}")
        self.expect("^")
        stop = self._argument()
        self._indices.add(index)
        return (sympy.Sum if name == "sum" else sympy.Product)(self._term(), (Symbol(index), start, stop)).doit()

    def _matrix(self, begin: str) -> Any:
        rows = [[self.sum()]]
        while sign := self._takes("&", r"\\"):
            if sign == "&":
                rows[-1].append(self.sum())
            elif self._peek().text[:3] != "end":
                rows.append([self.sum()])
        self.expect(f"end{begin[5:]}")
        if len({len(row) for row in rows}) > 1:
            raise UnreadError("rows of different lengths")
        matrix = ImmutableMatrix(rows)
        return matrix.det() if begin == "beginvmatrix" else matrix


_READERS: dict[str, Callable[[_Reader, str], Any]] = {
    **dict.fromkeys(("letters", "text"), _Reader._letter),
    **dict.fromkeys(("pi", "∞"), lambda _, name: _CONSTANTS[name]),
    **dict.fromkeys(_CLOSES, lambda reader, opening: reader._inside(_CLOSES[opening])),
    "lfloor": lambda reader, _: sympy.floor(reader._inside("rfloor")),
    "lceil": lambda reader, _: sympy.ceiling(reader._inside("rceil")),
    **dict.fromkeys((*words("greek"), *ACCENTS), _Reader._symbol),
    **dict.fromkeys(FUNCTIONS, _Reader._function),
    **dict.fromkeys(("sum", "prod"), _Reader._series),
    **dict.fromkeys(_MATRICES, _Reader._matrix),
    "number": lambda _, text: number(text),
    "|": _Reader._bars,
    "sqrt": _Reader._root,
    "frac": _Reader._fraction,
    "binom": lambda reader, _: sympy.binomial(reader._argument(), reader._argument()),
}
"""what reads a token, by its kind or text"""


# Expressions with variables at random real points, where equal ones have equal values.

_DRAWS, _MAX_VARIABLES = 12, 6
"""points at which expressions are compared, and the most variables of these"""


def agree_on_real_numbers(candidate: Any, gold: Any) -> bool:
    """Whether two expressions in the same variables are equal at random real points: sympy's variables are complex."""
    values = [pair for pair in _values_at_points(candidate, gold) if all(value.is_finite for value in pair)]
    if not candidate.has(I):
        is_same_domain = all(pair[0].is_real == pair[1].is_real for pair in values)
        values = [pair for pair in values if is_same_domain and all(value.is_real for value in pair)]
    return len(values) >= _DRAWS // 4 and all(abs(x - y) <= 1e-12 * max(abs(x), abs(y)) for x, y in values)


def are_multiples(candidate: Any, gold: Any) -> bool:
    """Whether two equations or inequalities in the same variables, two or more, are equal but for a constant factor.

    One in a single variable would be solved: 2x = 4 is not the answer x = 2.
    """
    sides = [side.reversed if isinstance(side, sympy.Gt | sympy.Ge) else side for side in (candidate, gold)]
    values = list(_values_at_points(*(side.lhs - side.rhs for side in sides), min_variables=2))
    if type(sides[0]) is not type(sides[1]) or not all(x.is_real and y.is_real and x and y for x, y in values):
        return False
    factors = [x / y for x, y in values]
    is_constant = bool(factors) and all(abs(factor - factors[0]) <= abs(factors[0]) * 1e-12 for factor in factors)
    return is_constant and (isinstance(sides[0], sympy.Equality) or bool(factors[0] > 0))


def _values_at_points(*sides: Any, min_variables: int = 1) -> Iterator[tuple[Any, ...]]:
    r"""Values at random real points, 20 digits each, without imaginary parts that are rounding; f(x) is a variable.

    Of three points, one has negative coordinates, one has coordinates of any sign; of logarithms, one negative one at
    most, so that \ln(ab) is \ln a+\ln b, but \ln a^2 not 2\ln a.
    """
    sides = tuple(side.xreplace({part: Symbol(str(part)) for part in side.atoms(AppliedUndef)}) for side in sides)
    names, draw = sides[0].free_symbols, random.Random(0)
    is_bounded = not any(side.has(sympy.oo) for side in sides)
    has_names = names == sides[1].free_symbols and min_variables <= len(names) <= _MAX_VARIABLES and is_bounded
    has_logarithms = all(side.has(sympy.log) for side in sides)
    for at in range(_DRAWS if has_names else 0):
        signs = ((-1,), (-1, 1), (1,))[at % 3]
        point = {
            name: Rational(draw.choice(signs) * draw.randint(1, 999), draw.randint(100, 300))
            for name in sorted(names, key=str)
        }
        if has_logarithms:
            point = {
                name: abs(value) * (1 - 2 * (number == at / 2)) for number, (name, value) in enumerate(point.items())
            }
        values = [side.subs(point).evalf(20) for side in sides]
        parts = [value.as_real_imag() if value.is_number else (value, 1) for value in values]
        yield tuple(x if abs(y) <= 1e-15 * abs(x) else v for v, (x, y) in zip(values, parts, strict=True))
