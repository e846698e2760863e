r"""One spelling for answers that are written in many ways: an answer's tokens. Nothing is dropped but layout.

½, \tfrac12, \frac{1}{2}    Unicode and LaTeX become the same commands and signs
11,\!111, 11{,}111, 11 111  one number
\text{ cm}, {\rm cm}        words
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

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
    def word(self) -> str:
        """The word in lower case, "" if it is no word."""
        return self.text.lower() if self.kind in ("letters", "text") else ""


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
_SIGN_OF_WORD = {word: sign for sign, names in named("spoken").items() for word in names.split()}
_TOKEN = re.compile(
    r"(?P<blank>(?:\\[ ,;:!>]|~|\\(?:qq?uad|enspace|thinspace)(?![A-Za-z])|\s)*)"
    r"(?:(?P<rows>\\\\(?: ?\[[\d.]+ ?[a-z]{2}\])?)"
    r"|\\(?P<edge>begin|end) ?\{ ?(?P<environment>[a-zA-Z]+)\*? ?\}(?: ?\{[lcr| ]+\})?"
    r"|\\mathbb ?\{? ?(?P<set>[RZNQC]) ?\}?(?![A-Za-z])"
    r"|\\not ?(?P<negated>=|\\in(?![a-z]))"
    r"|\\(?P<command>[A-Za-z]+)\*?|(?P<escaped>\\[{}|%$&#_])"
    r"|(?P<number>(?P<repeating>\d*\.\d*(?:\\(?:overline|bar) ?(?:\{\d+\}|\d)|\(\d+\)|(?:\\dot ?\{?\d\}?\d*){1,2}))"
    r"|\d{1,3}(?:\{,\}\d{3})+(?!\d)(?:\.\d+)?|\d+\.(?=/)|\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?![\d.A-Za-z]))?|\.\d+)"
    r"|(?P<letters>[^\W\d_]+)|(?P<sign><=|>=|=<|!=|\+/-|\+-|\|\||:=|[^\\])|$)"
)


def _without_commas(match: re.Match[str]) -> str:
    """Digits of a number; in brackets, (100,200) has two."""
    before = match.string[: match.start()].replace("\\{", "(").replace("\\}", ")")
    is_inside = sum(map(before.count, "([")) > sum(map(before.count, ")]"))
    return match[0] if is_inside else match[0].replace(",", "")


_SIGNS = str.maketrans(
    dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}", "-")
    | dict.fromkeys("\N{PRIME}\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}", "'")
    | dict.fromkeys("\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}", '"')
    | {"•": "⋅", "∠": r"\angle "}
    | {"º": "°", "˚": "°", "。": ".", "、": ",", "″": "''", "·": "⋅", "…": r"\ldots ", "\N{FRACTION SLASH}": "/"}
    | {sign: rf"\mathbb{{{name}}}" for sign, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
    | {"∛": "√[3]", "∜": "√[4]"}
)
_UNICODE: tuple[tuple[str, Any], ...] = (
    (r"√(\[\d\])?\s*(\d+|[A-Za-z])", r"\\sqrt\1{\2}"),
    ("√", r"\\sqrt"),
    ("([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+)", r"^{\1}"),
    ("([₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ]+)", r"_{\1}"),
    (
        "[¼-¾⅐-⅞]",
        lambda match: re.sub("(.*)\N{FRACTION SLASH}(.*)", r"\\frac{\1}{\2}", unicodedata.normalize("NFKC", match[0])),
    ),
    ("((?:\\d[\u0304\u0305])+)", lambda match: rf"\overline{{{re.sub('[^0-9]', '', match[1])}}}"),
)
AMOUNT = f"(?:{'|'.join(named('amount'))})(?![a-z])"
"""pattern of words such as million"""
_NUMBERS = dict(zip([*words("number"), *words("tens")], [*range(20), *range(20, 100, 10)], strict=True))
_IN_WORDS = (
    rf"(?<![A-Za-z\\])(?:(?:{'|'.join(words('tens'))})[- ](?:{'|'.join(words('number')[1:10])})|{'|'.join(_NUMBERS)})"
    rf"(?![A-Za-z]| (?!{AMOUNT})[a-z]+ [a-z])"  # two of them
)
_NUMBER = rf"(\d+|{_IN_WORDS})"


def _in_digits(number: str) -> str:
    """A number in digits or words."""
    return number if number.isdecimal() else str(sum(_NUMBERS[word] for word in re.findall("[a-z]+", number.lower())))


def _said_twice(match: re.Match[str]) -> str:
    """3 for 3 (three), nothing that can be read for 3 (four), and a product for 3 (4)."""
    if match[1].isdecimal() and match[3].isdecimal():
        return match[0]
    return match[1] + match[2] if _in_digits(match[1]) == _in_digits(match[3]) else f"{match[1]} not {match[3]}"


_SPELLINGS: tuple[tuple[str, Any], ...] = (
    (r"^\s*([*`_\"'])\1?([^*`_\"']+)\1{1,2}\s*$", r"\2"),  # **5**
    (r"(?<!\\)\$\s*,\s*\$", ", "),  # $1$, $2$
    (r"^(\s*-?)\$(?=[^$]*$)|\\\$", r"\1\\dollar "),
    (r"\{ ?\\(?:rm|tt) ?([^{}]*)\}", r"\\mathrm{\1}"),
    (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\.?", ""),
    (r"(?<!\\)\\[\[\]()]|(?<!\\)\$", ""),
    (r"\\(?:[dtcs]|nice)(frac|binom)(?![A-Za-z])", r"\\\1"),
    (r"\{([^{}]*)\\choose(?![a-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"(?:\{|^)([^{}]*)\\over(?![a-z])([^{}]*)(?:\}|$)", r"\\frac{\1}{\2}"),
    (r",?(?:\\ |\s)*\(\s*\\approx ?([^()]*)\)", r"\\approx \1"),
    (rf"(?<=\d) ?\{{ ?\\(?:{'|'.join(_LAYOUT)}) ?(\d+) ?\}}", r"\1"),
    (r"(?i)\\text ?\{ ?rs\. ?\}|(?<![a-z])rs\. ?(?=\d)", "₹"),
    (r"(?<![A-Za-z])US(?=\\dollar)", ""),
    (r"(?<=[)\]]) ?U ?(?=[(\[])", r"\\cup "),
    (r"\( ?\\?[bp]?mod ?([^()]*)\)", r"\\mod \1"),
    (r"(?<![A-Za-z\\])sqrt(?![A-Za-z])", r"\\sqrt"),
    (r"\*\*", "^"),
    (r"(?<=\d) ?[xX] ?(?=10 ?\^)", "*"),
    (
        r"(?s)(?:\\\{ ?)?\\begin ?\{(aligned|align|gathered|split|cases|array)\*?\}(?: ?\{[lcr| ]+\})?"
        r"((?:(?!\\end).)*(?:[=<>]|\\[lg]e).*)\\end ?\{\1\*?\}",
        lambda match: re.sub(r"&(?=\s*(?:[=<>]|\\[lg]e))|(?<=[=<>])\s*&|\\\\\s*(?=&?\s*=)", "", match[2]),
    ),  # equations in rows; one that begins with = goes on
    (r"\\ell(?![A-Za-z])", "l"),
    (
        rf"(?i){_NUMBER}((?: |\\text ?\{{)*)\( ?{_NUMBER} ?\)",  # 3 (three)
        _said_twice,
    ),
    (rf"(?i){_IN_WORDS}", lambda match: _in_digits(match[0])),
    (rf"(?i)(?<![a-z\\])a(?= {AMOUNT})", "1"),
    (r"(?i)(?<![a-z\\])(?:minus|negative) (?=\d)", "-"),
    (r"\.\.\.", r"\\ldots "),
    (r"(?<=\d)(?:st|nd|rd|th)(?![A-Za-z])", ""),
    (r"(\.\d{0,20}?)(?:(\d)\2{2,40}|(\d{2,10})\3) ?\\[lc]?dots(?![a-z])", r"\1\\overline{\2\3}"),
    (
        r"(?<![\d.,])\d{1,3}(?:,?(?:\\!\s*)+\d{3})+(?!\d)|(?<![\d.])\d{1,3}(?:(?:\\,|~|\\ | )\d{3})+(?![\d.])",
        lambda match: re.sub(r"\D", "", match[0]),
    ),
    (r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)", _without_commas),
    (
        r"(^|[^\w)}\]] ?|\\(?:cup|in|cap) ?)([][])([^][]*[,;][^][]*)([][])",  # ]0, 1[
        lambda match: f"{match[1]}{match[2].replace(']', '(')}{match[3]}{match[4].replace('[', ')')}",
    ),
    (
        r"(?<=[(\[{])[^()\[\]{}]*;[^()\[\]{}]*(?=[)\]\\])",  # 0,5; 1
        lambda match: match[0] if ", " in match[0] else re.sub(r"(?<=\d),(?=\d)", ".", match[0]),
    ),
)
"""spellings and their one form, replaced in this order"""
_INNER = r"(?:\\.|[^{}\\])*+"
for _ in range(8):
    _INNER = rf"(?:\\.|[^{{}}\\]|\{{{_INNER}\}})*+"
_BRACES = re.compile(rf" ?\{{({_INNER})\}}", re.DOTALL)
_END = re.compile(rf"^\s+|(?:[\s.,;:\\]|\\(?:{'|'.join(_LAYOUT)})(?![A-Za-z]))+$")
_WHOLE = re.compile(rf"(?:\\(?:{'|'.join(_TEXT | _LAYOUT)}) ?)*\{{({_INNER})\}}", re.DOTALL)
_WORDS = rf"\\(?:{'|'.join(_TEXT)}) ?\{{{_INNER}\}}"
_ROUND = r"\((?:[^()]|\([^()]*\))*\)"
_VALUE = (
    rf"(?:\\frac\{{{_INNER}\}}\{{{_INNER}\}}|\\sqrt(?:\[[^][]*\])?\{{{_INNER}\}}"
    rf"|{_WORDS}|\\(?!frac|binom|sqrt|text|math)[A-Za-z]+)"
)
_ARGUMENTS: tuple[tuple[str, str], ...] = (
    (rf"(\\sqrt ?(?:\[[^][]*\])?|\\(?:{'|'.join(ACCENTS)})(?![A-Za-z])) *([A-Za-z0-9]|{_ROUND}|{_VALUE})", r"\1{\2}"),
    (rf"(\\(?:frac|binom)) *({_VALUE}|[A-Za-z0-9])", r"\1{\2}"),
    (rf"(\\(?:frac|binom)) ?(\{{{_INNER}\}}) *({_VALUE}|[A-Za-z0-9])", r"\1\2{\3}"),
    (rf"(?<!\\)([\^_]) *([+*]$|[-+]? *(?:\d+(?:\.\d+)?|[A-Za-z]|{_ROUND}|[∞°]|'+|{_VALUE}))", r"\1{\2}"),
    (r"\^ ?\{ ?(°|\\circ|\\degree|'+|(?:\\prime ?)+) ?\}", r"\1 "),
    (r"\^ ?\{ ?(?:\\(?:text|mathrm) ?\{ ?)?(?:st|nd|rd|th)\}? ?\}", ""),
    (rf"(?<![A-Za-z^_}}\]])\{{ ?({_WORDS}) ?\}}", r"\1"),
)
r"""arguments and scripts, which get braces, but 30^{\circ} is 30°, 5^{\text{th}} 5"""


@lru_cache(maxsize=1024)
def tokens_of(answer: str) -> tuple[Token, ...]:
    """The answer's tokens; answers that differ in spelling alone have the same."""
    if not answer.isascii():
        answer = answer.translate(_SIGNS)
        for pattern, spelling in _UNICODE:
            answer = re.sub(pattern, spelling, answer)
        answer = "".join(map(_ascii, answer)).translate(_SIGNS)
    for pattern, spelling in _SPELLINGS:
        answer = re.sub(pattern, spelling, answer)
    answer = _END.sub("", answer)
    while whole := _WHOLE.fullmatch(answer):
        answer = _END.sub("", whole[1])
    before = ""
    while before != answer:  # arguments in arguments
        before = answer
        for pattern, spelling in _ARGUMENTS:
            answer = re.sub(pattern, spelling, answer)
    return tuple(_tokens(answer))


def _ascii(sign: str) -> str:
    """A sign as in ASCII or LaTeX where they have it; "" if it is invisible."""
    if unicodedata.category(sign) == "Cf" or sign.isdecimal():
        return str(unicodedata.decimal(sign, ""))
    sign = unicodedata.normalize("NFKC", sign)
    name = unicodedata.name(sign, "") if len(sign) == 1 else ""
    letter = name.rpartition(" ")[2].lower().replace("lamda", "lambda")
    is_greek = name.startswith("GREEK") and " LETTER " in name and letter != "tonos"
    return (rf"\{letter.title() if 'CAPITAL' in name else letter} ") if is_greek else sign


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
        tokens = [] if command in _LAYOUT or match.lastgroup == "blank" else [_token(match, kind)]
        if command in _DROPPED or command in _TEXT:
            argument = _BRACES.match(spelling, position)
            content = "" if argument is None else argument[1]
            is_formula = content in (*_PLAIN_NAMES, "i", "e", "d") and command != "text"
            tokens = [] if command in _DROPPED else list(_tokens(content, "letters" if is_formula else "text"))
            position = position if argument is None else argument.end()
        for token in tokens:
            yield replace(token, is_spaced=is_spaced or token.is_spaced)
            is_spaced = False


def _token(match: re.Match[str], kind: Kind) -> Token:
    group = match.lastgroup or ""
    text = match[group]
    if group == "number":
        start, digits = re.split(r"[\\(]", text)[0], re.sub(r"\\[a-z]+|[{}(), ]", "", text)
        return Token("number", f"{start}r{digits[len(start) :]}" if match["repeating"] else digits)
    if group == "letters" and not (text in _PLAIN_NAMES and kind == "letters"):
        sign = _SIGN_OF_WORD.get(text.lower())
        return Token(kind, text) if sign is None else Token("sign", sign)
    sign, kind = _SIGN_OF.get(f"not{text}" if group == "negated" else text), "command"
    if group in ("environment", "set"):
        text = (match["edge"] or "mathbb") + text
    elif group != "letters" and (sign or group != "command"):
        kind, text = "sign", sign or (r"\\" if group == "rows" else text)
    return Token(kind, _NAME_OF.get(text, text))


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
