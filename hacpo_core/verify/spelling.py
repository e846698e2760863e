r"""One spelling for answers that are written in many ways: text only, no algebra.

\dfrac\pi2          -> \frac{\pi}{2}            layout, braces of fractions and roots, Unicode
11,\!111,\!100      -> 11111100                 thousands separators
\textbf{7}, \boxed7 -> 7                        decoration around an answer or a part without letters
m \in [2,+\infty)   -> [2,\infty)               the variable of an interval
\sin 30^\circ       -> \sin(\frac{30\pi}{180})  degrees inside a function
"""

from __future__ import annotations

import re
import unicodedata

from hacpo_core.verify.answers import normalise
from hacpo_core.verify.exclusions import without_builder
from hacpo_core.verify.numerals import with_digits
from hacpo_core.verify.rows import in_one_row

_SIGNS = {
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "·": r"\cdot ",
    "÷": "/",
    "\N{FRACTION SLASH}": "/",
    "π": r"\pi ",
    "θ": r"\theta ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\neq ",
    "\N{UNION}": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∧": r"\wedge ",
    "∨": r"\vee ",
    "¬": r"\neg ",
    "∖": r"\setminus ",
    "→": r"\to ",
    "±": r"\pm ",
    "°": r"^\circ ",
    "≈": r"\approx ",
    "∅": r"\emptyset ",
    "\N{NO-BREAK SPACE}": " ",
}
_SIGNS |= {sign: rf"\mathbb{{{name}}}" for sign, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)} | {"∀": r"\forall "}
_SIGNS |= {"€": r"\euro ", "£": r"\pounds ", "¥": r"\yen ", "¢": r"\cents "}
_SIGNS |= dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}", "-")
_UNICODE = str.maketrans(_SIGNS)
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_PLAIN_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_ROOT = re.compile(r"([√∛∜])\s*(\d+|[A-Za-z])?")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}

_NO_LETTER = r"(?![A-Za-z])"
_DOTS = re.compile(r"(\.\d{0,20}?)(?:(\d)\2{2,40}|(\d{2,10})\3) ?(?:\.\.\.|…|\\[lc]?dots(?![a-z]))")
_DOTTED = re.compile(r"(\.\d*)\\dot ?\{?(\d)\}?(?:(\d*)\\dot ?\{?(\d)\}?)?")
_GOES_ON = re.compile(r", ?(?:\.\.\.|…|\\[lc]?dots(?![a-z]))")
_ABOUT = re.compile(
    r"^(?:= ?|(?:\\text ?\{ ?)?(?:(?:so |thus )?(?:the )?(?:final )?answer(?: is|:)|approximately|approx\.?|about"
    r"|roughly|exactly) ?\}? )| \(?(?:approximately|approx\.?|exactly)\)?$",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\s*([*`_\"'])\1?([^*`_\"']+)\1{1,2}\s*")
_ROOT_OF_NEGATIVE = re.compile(r"\\sqrt\[([3579])\]\{- ?([^{}+-]+|\\frac\{[^{}]*\}\{[^{}]*\})\}")
_LAYOUT = re.compile(
    rf"\\(?:(?:display|text|script|scriptscript)style|(?:no)?limits|left|right|[bB]igg?[lrm]?|bf|it|rm|sf|tt|large"
    rf"|Large|LARGE|huge|Huge|tiny|scriptsize|footnotesize|small|normalsize|hfill|qed|blacksquare|checkmark|notag){_NO_LETTER}"
    r"|\\(?:textcolor|color|[hv]?phantom|[hv]space\*?|label|tag\*?) ?\{[^{}]*\}"
)
_MATH = re.compile(r"(?<!\\)\\[\[\]()]")
_ROW_SPACING = re.compile(r"\\\\ ?\[[\d.]+ ?(?:pt|em|ex|mm|cm)\]")
_BLANK = re.compile(r"(?<!\\)\\(?:[ ,;:]|quad\b|qquad\b|enspace\b|thinspace\b)|~|\s+")
_WORDS = ("pi", "sqrt", "sin", "cos", "tan", "ln", "log", "exp", "alpha", "beta", "gamma", "theta", "lambda", "omega")
"""names that plain text has for LaTeX's commands"""
_SPELLINGS = (
    (re.compile(rf"\\(?:[dtcs]|nice)frac{_NO_LETTER}"), r"\\frac"),
    (re.compile(rf"\\[dt]binom{_NO_LETTER}"), r"\\binom"),
    (re.compile(rf"\\leq{_NO_LETTER}"), r"\\le"),
    (re.compile(rf"\\geq{_NO_LETTER}"), r"\\ge"),
    (re.compile(rf"\\ne{_NO_LETTER}|\\not ?="), r"\\neq"),
    (re.compile(rf"\\var(epsilon|phi|theta|rho|sigma|kappa){_NO_LETTER}"), r"\\\1"),
    (re.compile(rf"\\ell{_NO_LETTER}"), "l"),
    (re.compile(rf"\\varnothing{_NO_LETTER}"), r"\\emptyset"),
    (re.compile(rf"\\langle{_NO_LETTER}"), "("),
    (re.compile(rf"\\rangle{_NO_LETTER}"), ")"),
    (re.compile(rf"\\bmod{_NO_LETTER}"), r"\\mod"),
    (re.compile(rf"\\land{_NO_LETTER}"), r"\\wedge"),
    (re.compile(rf"\\lor{_NO_LETTER}"), r"\\vee"),
    (re.compile(r"\\vee(?![A-Za-z])(?=[^\\]*(?:[<>]|\\[lg]e(?![a-z])))"), r"\\text{ or }"),
    (re.compile(rf"\\lg{_NO_LETTER}"), r"\\log_{{10}}"),
    (re.compile(rf"\\lnot{_NO_LETTER}"), r"\\neg"),
    (re.compile(rf"\\rightarrow{_NO_LETTER}"), r"\\to"),
    (re.compile(rf"\\(?:leftrightarrow|Leftrightarrow|iff){_NO_LETTER}"), r"\\iff"),
    (re.compile(rf"\\(?:Rightarrow|implies){_NO_LETTER}"), r"\\implies"),
    (re.compile(rf"\\(?:backslash|smallsetminus){_NO_LETTER}"), r"\\setminus"),
    (re.compile(r"\\mathbb ([RZNQC])"), r"\\mathbb{\1}"),
    (re.compile(rf"\\colon{_NO_LETTER}"), ":"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d) ?\^ ?\{? ?\\(?:text|mathrm) ?\{ ?(?:st|nd|rd|th) ?\} ?\}?"), ""),
    (re.compile(r"\^ ?\{? ?\\prime(?![a-z]) ?\}?"), "'"),
    (re.compile(r"(?<=\d) ?[xX] ?(?=10 ?\^)"), r"\\times "),
    (re.compile(r"(?<=\d) ?(?:\\text ?\{ ?to ?\}|\bto\b) ?(?=\d[\d.]*(?: ?(?:\\text ?\{ ?to ?\}|to)|$))"), ":"),
    (re.compile(rf"(?<![\\A-Za-z])({'|'.join(_WORDS)}){_NO_LETTER}"), r"\\\1"),
    (re.compile(rf"(?<![\\A-Za-z])infinity{_NO_LETTER}"), r"\\infty"),
    (re.compile(rf"\\forall{_NO_LETTER}"), r"\\text{ for all } "),
    (re.compile(r"\^ ?\{ ?\\circ ?\}|\\degree\b|\\deg\b"), r"^\\circ"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"([_^]) ?\{ ?(\w) ?\}(?! ?\d)"), r"\1\2"),
    (re.compile(rf"\+ ?\\infty{_NO_LETTER}"), r"\\infty"),
)
_DOLLAR = re.compile(r"\\\$|^\s*\$(?=[^$]*$)")
_CURRENCY = r"\\(?P<{}>dollar|euro|pounds|yen|cents)(?![A-Za-z])"
_MONEY = re.compile(
    rf"(?:{_CURRENCY.format('before')} ?)?(?P<amount>(?:(?<![\w.])-)?(?<![\w.])(?:\d+(?:\.\d+)?|\.\d+)"
    rf"(?: ?(?:\\text ?\{{ ?)?(?:hundred|thousand|[mbtr]+illion|dozen)\b ?\}}?)?)(?: ?{_CURRENCY.format('behind')})?"
    r"(?: ?(?:\\text ?\{ ?)?(?P<per>(?:per |/ ?)[a-z]+) ?\}?)?(?= ?(?:[,;.)}\]]|\\\}|and\b|or\b|\\text|$))"
)
_CURRENCY_SIGN = re.compile(_CURRENCY.format("sign"))
_DECORATION = re.compile(
    r"\\(?P<name>boxed|fbox|framebox|underline|uline|underbrace|emph|mathbf|boldsymbol|bm|mathit|mathsf"
    r"|text|textbf|textit|textrm|textup|mbox|mathrm)"
    rf"{_NO_LETTER} ?(?:\{{|(?P<bare>\w))"
)
_TEXTS = ("text", "textbf", "textit", "textrm", "textup", "mbox", "mathrm")
_LETTER = re.compile(r"[A-Za-z]")
_NUM_ARGUMENTS = {r"\frac": 2, r"\binom": 2, "^": 1} | dict.fromkeys(
    (r"\sqrt", r"\overline", r"\bar", r"\vec", r"\hat", r"\text", r"\mathrm", r"\mathbf", r"\boxed"), 1
)
_TAKES_ARGUMENTS = re.compile(
    rf"\\(?:frac|binom|sqrt){_NO_LETTER}|\^(?= ?\\(?!(?:circ|prime){_NO_LETTER})[A-Za-z]| ?-)"
)
"""commands whose arguments may lack braces; of exponents, those that begin with a command or a sign"""
_COMMAND = re.compile(r"\\[A-Za-z]+")
_SIGNED = re.compile(r"- ?(?:\d+(?:\.\d+)?|[A-Za-z])?")
_LOG_BASE = re.compile(r"\\log ?_ ?(\w|\{[^{}]*\}) ?(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))?")
_SEPARATED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d|,\d)")
_SPACED_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?!\d)")
_VARIABLE_OF = re.compile(r"^[A-Za-z](?:_\w)? ?\\in ?(?=[(\[\\{])")
_DEGREES = re.compile(
    r"(?<=[\d)}a-z]) ?(?:\\text ?\{ ?degrees? ?\}|(?<![a-z])degrees?(?![A-Za-z]))(?! ?(?:\\text ?\{ ?)?[CFK])"
)
_ANGLE_INSIDE = re.compile(
    r"\\?(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?(?![a-z])|\\?(?:log|ln|lg|exp)(?![a-z])|\^ ?\{[^{}]*\^\\circ"
)
_ANGLE = re.compile(
    r"((?<![\w.])\d+(?:\.\d+)?|(?<![A-Za-z\\])[a-z]|\\[A-Za-z]+|\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)) ?\^ ?\\circ"
)
_SETS_IN_WORDS = (
    (re.compile(r"(?:\\text ?\{ ?)?(?:all )?(?:real numbers|reals) ?\}?", re.IGNORECASE), r"\mathbb{R}"),
    (re.compile(r"(?:\\text ?\{ ?)?(?:there (?:is|are) )?no (?:real )?solutions? ?\}?", re.IGNORECASE), r"\emptyset"),
)
_UNIT_FRACTION = re.compile(r"\\frac ?\{ ?\\text\{([^{}]+)\} ?\} ?\{ ?\\text\{([^{}]+)\}(\^\d)? ?\}")
_ARTICLE = re.compile(r"^(?:an?|the) (?=[a-z]{3,}$)", re.IGNORECASE)
_IDLE_END = re.compile(r"[\s.,;:\\]+$")


def canonical(answer: str) -> str:
    """The answer in one spelling; answers that differ in spelling alone become equal texts."""
    quoted = _QUOTED.fullmatch(answer)
    answer = answer if quoted is None else quoted[2]
    answer = _GOES_ON.sub(r", \\ldots ", _DOTS.sub(r"\1\\overline{\2\3}", answer))
    answer = normalise(_DOLLAR.sub(r"\\dollar ", _MATH.sub("", answer)))
    answer = _SEPARATED.sub(_without_separators, answer)
    answer = _with_latex_signs(answer)
    answer = _LAYOUT.sub("", _ROW_SPACING.sub(r"\\\\", answer))
    answer = _DOTTED.sub(lambda match: rf"{match[1]}\overline{{{match[2]}{match[3] or ''}{match[4] or ''}}}", answer)
    answer = in_one_row(answer.strip())
    for pattern, spelling in _SPELLINGS:
        answer = pattern.sub(spelling, answer)
    answer = _undecorated(_BLANK.sub(" ", answer)).strip()
    answer = _UNIT_FRACTION.sub(r"\\text{ \1/\2}\3", answer)
    answer = _SPACED_GROUPS.sub(lambda match: match.group().replace(" ", ""), answer)
    answer = _ROOT_OF_NEGATIVE.sub(r"(-\\sqrt[\1]{\2})", _with_braces(answer))
    answer = _LOG_BASE.sub(_log_with_braces, answer)
    answer = _VARIABLE_OF.sub("", _ABOUT.sub("", answer))
    if _CURRENCY_SIGN.search(answer):
        answer = _CURRENCY_SIGN.sub("", _MONEY.sub(_with_currency_behind, answer))
    answer = _DEGREES.sub(r"^\\circ", answer)
    if _ANGLE_INSIDE.search(answer):
        answer = _ANGLE.sub(r"(\\frac{\1\\pi}{180})", answer)
    answer = _ARTICLE.sub("", with_digits(without_builder(" ".join(_IDLE_END.sub("", answer).split()))))
    return next((sign for words, sign in _SETS_IN_WORDS if words.fullmatch(answer)), answer)


def _without_separators(number: re.Match[str]) -> str:
    """Digits of a number; in brackets, (100,200) has two."""
    before = number.string[: number.start()].replace("\\{", "(").replace("\\}", ")")
    is_inside = sum(map(before.count, "([")) > sum(map(before.count, ")]"))
    return number.group() if is_inside and "{" not in number.group() else re.sub(r"\D", "", number.group())


def _with_latex_signs(answer: str) -> str:
    """Unicode signs, fractions and exponents as LaTeX."""
    if answer.isascii():
        return answer
    answer = _ROOT.sub(lambda match: _ROOTS[match[1]] + (f"{{{match[2]}}}" if match[2] else ""), answer)
    answer = _RAISED.sub(lambda match: f"^{{{match.group().translate(_PLAIN_RAISED)}}}", answer)
    signs = []
    for sign in answer.translate(_UNICODE):
        kind, _, code_points = unicodedata.decomposition(sign).partition(" ")
        if kind == "<fraction>":
            top, _, bottom = "".join(chr(int(code, 16)) for code in code_points.split()).partition("\N{FRACTION SLASH}")
            sign = rf"\frac{{{top}}}{{{bottom}}}"
        elif kind in ("<wide>", "<narrow>", "<compat>"):
            sign = unicodedata.normalize("NFKC", sign)
        signs.append(sign)
    return "".join(signs)


def _undecorated(answer: str) -> str:
    """Without boxes, bold type and the like; \\text{} goes if it holds the whole answer or no letters."""
    parts, position = [], 0
    while (match := _DECORATION.search(answer, position)) is not None:
        end, content = match.end(), match["bare"]
        if content is None:
            close = closing(answer, match.end() - 1)
            if close is None:
                break
            end, content = close + 1, answer[match.end() : close]
        inner_text = _undecorated(content)
        is_whole = not answer[: match.start()].strip() and not answer[end:].strip(" .,;:\\")
        keeps = match["name"] in _TEXTS and not is_whole and _LETTER.search(content)
        parts += [answer[position : match.start()], rf"\text{{{inner_text}}}" if keeps else inner_text]
        position = end
    return "".join(parts) + answer[position:]


def closing(text: str, opening: int) -> int | None:
    """Position of the brace or parenthesis that closes the one at `opening`; None if there is none."""
    opens, closes = ("(", ")") if text[opening] == "(" else ("{", "}")
    depth = 0
    for position in range(opening, len(text)):
        if text[position] in (opens, closes) and (position == 0 or text[position - 1] != "\\"):
            depth += 1 if text[position] == opens else -1
            if depth == 0:
                return position
    return None


def _with_braces(answer: str) -> str:
    r"""All arguments of \frac, \binom, \sqrt and exponents in braces."""
    parts, position = [], 0
    while (match := _TAKES_ARGUMENTS.search(answer, position)) is not None:
        command, end = _command_with_arguments(answer, match)
        parts += [answer[position : match.start()], command]
        position = end
    return "".join(parts) + answer[position:]


def _command_with_arguments(text: str, command: re.Match[str]) -> tuple[str, int]:
    """A command with its arguments in braces, and where it ends."""
    spelling, position = command.group(), command.end()
    if spelling == r"\sqrt" and (index := re.compile(r" ?\[[^\[\]]*\]").match(text, position)):
        spelling, position = spelling + index.group().strip(), index.end()
    for _ in range(_NUM_ARGUMENTS.get(command.group(), 0)):
        argument, position = _argument(text, position)
        spelling += argument
    return spelling, position


def _argument(text: str, start: int) -> tuple[str, int]:
    """A command's next argument with braces, itself spelled with braces, and where it ends; "" if there is none."""
    first = start + (len(text) - start - len(text[start:].lstrip(" ")))
    if first >= len(text) or text[first] == "}":
        return "", start
    if text[first] in "{(":
        end = closing(text, first)
        if end is None:
            return "", start
        inner = text[first + 1 : end] if text[first] == "{" else text[first : end + 1]  # \sqrt(2)
        return "{" + _with_braces(inner) + "}", end + 1
    command = _COMMAND.match(text, first)
    if command is not None:
        spelling, end = _command_with_arguments(text, command)
    else:
        match = _SIGNED.match(text, first)
        end = first + 1 if match is None else match.end()
        spelling = text[first:end]
    return "{" + spelling + "}", end


def _with_currency_behind(money: re.Match[str]) -> str:
    """An amount of money with its currency as a unit, if it has one."""
    currency = money["before"] or money["behind"]
    if not currency:
        return money.group()
    return rf"{money['amount']}\text{{ {currency}{' ' + money['per'] if money['per'] else ''}}}"


def _log_with_braces(match: re.Match[str]) -> str:
    base = match.group(1).strip("{}")
    return rf"\log_{{{base}}}" + (f"{{{match.group(2)}}}" if match.group(2) else "")
