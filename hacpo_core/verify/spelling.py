r"""One spelling for answers that are written in many ways: an answer's tokens. Nothing is dropped but layout.

½, \tfrac12, \frac{1}{2}    Unicode and LaTeX become the same commands and signs
11,\!111, 11{,}111, 11 111  one number
\text{ cm}, {\rm cm}        words
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

OPENS, CLOSES = {"(", "[", "{", r"\{", "lfloor", "lceil"}, {")", "]", "}", r"\}", "rfloor", "rceil"}
Kind = Literal["number", "letters", "text", "command", "sign"]


@dataclass(frozen=True, slots=True)
class Token:
    """A number, a run of letters, a word in \\text{}, a LaTeX command without backslash, or a sign."""

    kind: Kind
    text: str
    is_spaced: bool = False
    """whether a blank stands before it"""

    @property
    def letters(self) -> tuple[Token, ...]:
        """A run of letters as its letters, which are factors; any other token alone."""
        is_run = self.kind == "letters" and len(self.text) > 1
        return tuple(Token("letters", letter) for letter in self.text) if is_run else (self,)

    @property
    def word(self) -> str:
        """The word in lower case, "" if it is no word."""
        return self.text.lower() if self.kind in ("letters", "text") else ""


_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ"
_PLAIN = "0123456789+-()ni"
_SCRIPTS = re.compile(f"[{_RAISED}]+|[{_LOWERED}]+")
_PLAIN_SCRIPTS = str.maketrans(_RAISED + _LOWERED, _PLAIN * 2)
_ROOT = re.compile(r"([√∛∜])\s*(\d+|[A-Za-z])?")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_UNICODE = str.maketrans(
    dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}", "-")
    | dict.fromkeys("\N{PRIME}\N{RIGHT SINGLE QUOTATION MARK}", "'")
    | {"º": "°", "˚": "°", "。": ".", "、": ",", "″": "''", "·": "⋅", "…": r"\ldots ", "\N{FRACTION SLASH}": "/"}
    | {sign: rf"\mathbb{{{name}}}" for sign, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
)
_DIGRAPHS = {
    r"\%": "%",
    r"\|": "|",
    "<=": "≤",
    ">=": "≥",
    "=<": "≤",
    "!=": "≠",
    "+/-": "±",
    "+-": "±",
    "**": "^",
    "||": "|",
    ":=": "=",
}
_LINES = [line.partition(": ")[::2] for line in Path(__file__).with_name("words.txt").read_text("utf-8").splitlines()]


def definitions(kind: str) -> list[str]:
    """What words.txt says of a kind, line by line."""
    return [text for name, text in _LINES if name == kind]


def words(kind: str) -> list[str]:
    """The words of a kind."""
    return " ".join(definitions(kind)).split()


def named(kind: str) -> dict[str, str]:
    """What words.txt says of each thing of a kind."""
    return {key.split()[1]: text for key, text in _LINES if key.split()[:1] == [kind]}


_SIGN_OF = {name: sign for sign, names in named("sign").items() for name in names.split()}
_NAME_OF = {other: name for name, names in named("name").items() for other in names.split()}
_LAYOUT, _DROPPED, _TEXT = set(words("layout")), set(words("dropped")), set(words("text"))
ACCENTS, _PLAIN_NAMES = set(words("accent")), set(words("plain"))
_SIGN_OF_WORD = {"infinity": "∞"} | dict.fromkeys(("degree", "degrees"), "°")
_NUM_ARGUMENTS = {"frac": 2, "binom": 2} | dict.fromkeys(("sqrt", "^", "_", *ACCENTS), 1)
_TOKEN = re.compile(
    r"(?P<blank>(?:\\[ ,;:!>]|~|\\(?:qq?uad|enspace|thinspace)(?![A-Za-z])|\s)*)"
    r"(?:(?P<rows>\\\\(?: ?\[[\d.]+ ?[a-z]{2}\])?)"
    r"|(?P<environment>\\(?:begin|end) ?\{ ?[a-zA-Z]+\*? ?\}(?: ?\{[lcr| ]+\})?)"
    r"|\\mathbb ?\{? ?(?P<set>[RZNQC]) ?\}?(?![A-Za-z])"
    r"|\\not ?(?P<negated>=|\\in(?![a-z]))"
    r"|\\(?P<command>[A-Za-z]+)\*?|(?P<escaped>\\[{}|%$&#_])"
    r"|(?P<number>(?P<repeating>\d*\.\d*(?:\\(?:overline|bar) ?(?:\{\d+\}|\d)|\(\d+\)|(?:\\dot ?\{?\d\}?\d*){1,2}))"
    r"|\d{1,3}(?:\{,\}\d{3})+(?!\d)|\d+\.(?=/)|\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?![\d.A-Za-z]))?|\.\d+)"
    r"|(?P<letters>[^\W\d_]+)|(?P<digraph><=|>=|=<|!=|\+/-|\+-|\*\*|\|\||:=)|(?P<sign>[^\\])|$)"
)
_SWITCH = re.compile(r"\{ ?\\(?:rm|tt) ?([^{}]*)\}")
_MATH = re.compile(r"(?<!\\)\\[\[\]()]|(?<!\\)\$")
_BETWEEN_FORMULAS = re.compile(r"(?<!\\)\$\s*,\s*\$")
_QUOTED = re.compile(r"\s*([*`_\"'])\1?([^*`_\"']+)\1{1,2}\s*")
_BARE_DOLLAR = re.compile(r"^\s*(-?)\$(?=[^$]*$)")
_GROUPS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:,?(?:\\!\s*)+\d{3})+(?!\d)|(?<![\d.])\d{1,3}(?:(?:\\,|~|\\ | )\d{3})+(?![\d.])"
)
_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_TIMES = re.compile(r"(?<=\d) ?[xX] ?(?=10 ?\^)")
_DOTS = re.compile(r"(\.\d{0,20}?)(?:(\d)\2{2,40}|(\d{2,10})\3) ?(?:\.\.\.|\\[lc]?dots(?![a-z]))")
_SIDES = re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\.?")
_OUTWARD = re.compile(r"(^|[^\w)}\]] ?|\\(?:cup|in|cap) ?)\]([^\[\]]*[,;][^\[\]]*)([\[\]])|\[([^\[\]]*[,;][^\[\]]*)\[")
_WITH_SEMICOLON = re.compile(r"(?<=[(\[{])[^()\[\]{}]*;[^()\[\]{}]*(?=[)\]\\])")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")


def tokens_of(answer: str) -> tuple[Token, ...]:
    """The answer's tokens; answers that differ in spelling alone have the same."""
    spelling = _with_ascii(answer)
    quoted = _QUOTED.fullmatch(spelling)
    spelling = _BARE_DOLLAR.sub(r"\1\\dollar ", spelling if quoted is None else quoted[2]).replace(r"\$", r"\dollar ")
    spelling = _SWITCH.sub(r"\\mathrm{\1}", spelling)
    spelling = _TIMES.sub("*", _MATH.sub("", _SIDES.sub("", _BETWEEN_FORMULAS.sub(", ", spelling))))
    spelling = _DOTS.sub(r"\1\\overline{\2\3}", spelling.replace("...", r"\ldots ").replace(r"\ell", "l"))
    spelling = _GROUPS.sub(lambda match: re.sub(r"\\[!, ]|\D", "", match.group()), spelling)
    spelling = _COMMAS.sub(lambda match: _without_commas(match, spelling), spelling)
    spelling = _OUTWARD.sub(_inward, spelling)
    spelling = _WITH_SEMICOLON.sub(_with_decimal_points, spelling)
    return tuple(_braced(_trimmed(list(_tokens(_unwrapped(spelling.strip()))))))


def _inward(interval: re.Match[str]) -> str:
    """(0, 1) for ]0, 1[."""
    before, inner, closing_sign, half_open = interval.groups()
    return f"[{half_open})" if inner is None else f"{before}({inner}{')' if closing_sign == '[' else ']'}"


def _with_decimal_points(bracket: re.Match[str]) -> str:
    """0.5; 1 for 0,5; 1; in 1, 2; 3, 4 the commas separate."""
    return bracket.group() if ", " in bracket.group() else _DECIMAL_COMMA.sub(".", bracket.group())


def _with_ascii(answer: str) -> str:
    """The answer without invisible signs, and with the signs of ASCII and LaTeX where they exist."""
    if answer.isascii():
        return answer
    answer = _ROOT.sub(lambda match: _ROOTS[match[1]] + (f"{{{match[2]}}}" if match[2] else ""), answer)
    answer = _SCRIPTS.sub(
        lambda match: f"{'^' if match[0][0] in _RAISED else '_'}{{{match[0].translate(_PLAIN_SCRIPTS)}}}", answer
    )
    return "".join(map(_ascii, answer.translate(_UNICODE))).translate(_UNICODE)


def _ascii(sign: str) -> str:
    kind, _, code_points = unicodedata.decomposition(sign).partition(" ")
    if kind == "<fraction>":
        top, _, bottom = "".join(chr(int(code, 16)) for code in code_points.split()).partition("\N{FRACTION SLASH}")
        return rf"\frac{{{top}}}{{{bottom}}}"
    if unicodedata.category(sign) == "Cf" or sign.isdecimal():
        return str(unicodedata.decimal(sign, ""))
    sign = unicodedata.normalize("NFKC", sign)
    name = unicodedata.name(sign, "") if len(sign) == 1 else ""
    letter = name.rpartition(" ")[2].lower().replace("lamda", "lambda")
    is_greek = name.startswith("GREEK") and " LETTER " in name and letter != "tonos"
    return (rf"\{letter.title() if 'CAPITAL' in name else letter} ") if is_greek else sign


def _without_commas(number: re.Match[str], spelling: str) -> str:
    """Digits of a number; in brackets, (100,200) has two."""
    before = spelling[: number.start()].replace("\\{", "(").replace("\\}", ")")
    is_inside = sum(map(before.count, "([")) > sum(map(before.count, ")]"))
    return number.group() if is_inside else number.group().replace(",", "")


def closing(text: str, opening: int) -> int | None:
    """Position of the brace that closes the one at `opening`; None if there is none."""
    depth = 0
    for position in range(opening, len(text)):
        if text[position] in "{}" and (position == 0 or text[position - 1] != "\\"):
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return position
    return None


def _unwrapped(spelling: str) -> str:
    r"""The content of a \text{} that holds the whole answer: it may be a formula."""
    match = re.match(r"\\([A-Za-z]+) ?(?=\{)", spelling)
    end = None if match is None or match[1] not in _TEXT else closing(spelling, match.end())
    if match is None or end is None or spelling[end + 1 :].strip(" .,;:\\"):
        return spelling
    return _unwrapped(spelling[match.end() + 1 : end].strip())


def _tokens(spelling: str, kind: Kind = "letters") -> Iterator[Token]:
    """Tokens; letters in \\text{} are words."""
    position, is_spaced = 0, False
    while position < len(spelling):
        match = _TOKEN.match(spelling, position)
        if match is None:  # a backslash before nothing
            yield Token("sign", "\\")
            return
        position, command = match.end(), match["command"]
        is_spaced = is_spaced or bool(match["blank"])
        tokens = [token for token in (_token(match, kind),) if token is not None]
        if command in _DROPPED or command in _TEXT:
            opening = position + len(spelling[position:]) - len(spelling[position:].lstrip(" "))
            end = closing(spelling, opening) if spelling.startswith("{", opening) else None
            content = "" if end is None else spelling[opening + 1 : end]
            is_formula = content in (*_PLAIN_NAMES, "i", "e", "d") and command != "text"
            tokens = [] if command in _DROPPED else list(_tokens(content, "letters" if is_formula else "text"))
            position = position if end is None else end + 1
        for token in tokens:
            yield replace(token, is_spaced=is_spaced or token.is_spaced)
            is_spaced = False


def _token(match: re.Match[str], kind: Kind) -> Token | None:
    """The token of a match; None if it only changes how an answer looks."""
    text = match.group().removeprefix(match["blank"])
    name = match["command"] or match["letters"] or ""
    if match["command"] is None and (match["letters"] is None or (name in _PLAIN_NAMES and kind == "letters")):
        return _sign(match, text) if match["letters"] is None else Token("command", _NAME_OF.get(name, name))
    sign = _SIGN_OF.get(name) if match["command"] else _SIGN_OF_WORD.get(name.lower())
    if sign is not None or match["letters"]:
        return Token(kind, name) if sign is None else Token("sign", sign)
    return None if name in _LAYOUT else Token("command", _NAME_OF.get(name, name))


def _sign(match: re.Match[str], text: str) -> Token | None:
    if match["number"]:
        digits = re.sub(r"\\[a-z]+|[{}(), ]", "", text)
        start = re.split(r"[\\(]", text)[0]
        return Token("number", f"{start}r{digits[len(start) :]}" if match["repeating"] else digits)
    if match["environment"] or match["set"]:
        return Token("command", re.sub(r"^\\|\}? ?\{[lcr| ]+\}$|[ {}*]", "", text))
    negated = {"=": "≠", "\\in": "∉", None: ""}[match["negated"]]
    sign = negated or (r"\\" if match["rows"] else _DIGRAPHS.get(text, text))
    return Token("sign", _SIGN_OF.get(sign, sign)) if sign else None


def _trimmed(tokens: list[Token]) -> list[Token]:
    """Tokens without full stops and empty rows at the end, and without braces around all of them."""
    while tokens and tokens[-1].text in (".", ",", ";", ":", "\\", r"\\"):
        tokens.pop()
    if len(tokens) > 1 and tokens[0].text == "{" and tokens[-1].text == "}" and end_of(tokens, 0) == len(tokens) - 1:
        return _trimmed(tokens[1:-1])
    return tokens


def end_of(tokens: Sequence[Token], opening: int) -> int:
    """Index of the token that closes the bracket at `opening`; the number of tokens if there is none."""
    opens, closes = ({"{"}, {"}"}) if tokens[opening].text == "{" else (OPENS, CLOSES)
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].text in opens) - (tokens[index].text in closes)
        if depth == 0:
            return index
    return len(tokens)


def text_of(tokens: Sequence[Token]) -> str:
    """The tokens' texts; answers with the same text are equal."""
    return " ".join(token.text for token in tokens)


def split(tokens: Sequence[Token], separators: set[str]) -> tuple[list[list[Token]], list[str]]:
    """What stands between separators outside brackets, and the separators."""
    parts, between, depth = [list[Token]()], list[str](), 0
    for token in tokens:
        depth += (token.text in OPENS or token.text[:5] == "begin") - (token.text in CLOSES or token.text[:3] == "end")
        text = token.word if token.word in separators else token.text
        if depth == 0 and text in separators:
            parts.append([])
            between.append(text)
        else:
            parts[-1].append(token)
    return parts, between


def _braced(tokens: list[Token]) -> list[Token]:
    r"""Tokens with braces around all arguments of commands and scripts; 30^{\circ} as 30°, 5^{\text{th}} as 5."""
    tokens, braced, at = list(tokens), [], 0
    while at < len(tokens):
        end = end_of(tokens, at) if tokens[at].text == "{" else at
        is_unit = at < end < len(tokens) and all(token.kind == "text" for token in tokens[at + 1 : end])
        item, at = (tokens[at + 1 : end], end + 1) if is_unit else _item(tokens, at)
        braced += item
    return braced


def _item(tokens: list[Token], at: int) -> tuple[list[Token], int]:
    """A token with its arguments, and where the next one is; a number is cut behind the digit that is an argument."""
    token = tokens[at]
    item, at = [token], at + 1
    if token.text == "sqrt" and at < len(tokens) and tokens[at].text == "[":
        while at < len(tokens) and item[-1].text != "]":
            item, at = [*item, tokens[at]], at + 1
    for _ in range(_NUM_ARGUMENTS.get(token.text, 0)):
        argument, at = _argument(tokens, at, is_script=token.text in ("^", "_"))
        texts = {part.text for part in argument}
        if token.text == "^" and texts and (texts <= {"°"} or texts <= {"'"}):
            return argument, at
        if token.text == "^" and texts and texts <= {"st", "nd", "rd", "th"}:
            return [], at
        item += [Token("sign", "{"), *argument, Token("sign", "}")]
    return item, at


def _argument(tokens: list[Token], at: int, *, is_script: bool) -> tuple[list[Token], int]:
    token = tokens[at] if at < len(tokens) else Token("sign", "}")
    if token.text in ("{", "("):
        end = end_of(tokens, at)
        inner = [*_braced(tokens[at + 1 : end]), *[Token("sign", "\\")] * (end == len(tokens))]  # it does not close
        return inner if token.text == "{" else [token, *inner, Token("sign", ")")], end + 1
    if token.text in ("-", "+"):
        argument, after = _argument(tokens, at + 1, is_script=True)
        return [token, *argument], after
    if len(token.text) > 1 and (token.kind == "letters" or (token.kind == "number" and not is_script)):
        tokens[at] = Token(token.kind, token.text[1:])
        return [Token(token.kind, token.text[0])], at
    return _item(tokens, at) if at < len(tokens) else ([], at)
