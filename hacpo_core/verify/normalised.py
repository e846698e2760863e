"""The reward of the authors' public code: the last \\boxed{} of a response, in a normal form, compared as text.

Pure text, time linear in its length, no algebra. The rules are MATH's, as they were published, with their quirks.
"""

from __future__ import annotations

import re

_BOXED = "\\boxed"
_SPELLINGS = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac")),
    *((word, "") for word in ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")),
)
_BRACE = re.compile(r"[{}]")
_UNIT = "\\text{ "
_BARE_ROOT = re.compile(r"\\sqrt([^{])")
_BARE_FRACTION = re.compile(r"\\frac([^{\\])([^\\])")
_WHOLE_NUMBERS = re.compile(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")


def boxed_answer(text: str) -> str | None:
    """Content of the \\boxed{} that opens last, or None where there is none or it does not close.

    Every brace counts, an escaped one too. Where one is written with a blank and without braces (`\\boxed 2`), what
    follows the last such one counts, up to a dollar. An `\\fbox` does not count.

    Source: MATH's `last_boxed_only_string` and `remove_boxed`, as verl's `math_reward` has them.
    """
    _, blank, rest = text.rpartition(f"{_BOXED} ")
    if blank:
        return rest.partition("$")[0]
    opened = text.rfind(_BOXED)
    start = opened + len(_BOXED)
    if opened < 0 or not text.startswith("{", start):
        return None
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start + 1 : brace.start()]
    return None


def normal_form(answer: str) -> str:
    """The answer as MATH's published normalisation writes it; two answers are equal where these strings are.

    In this order: line breaks and `\\!` out; one spelling of backslashes and fractions; `\\left`, `\\right`, degrees
    and dollars out; what follows `\\text{ ` (a unit) out, where there is one; `\\%` out; a zero before a leading point;
    a name of one letter before an only "=" out; `\\sqrt3` to `\\sqrt{3}`; blanks out; `\\frac12` to `\\frac{1}{2}`; 0.5
    to `\\frac{1}{2}`; and `a/b` of whole numbers to `\\frac{a}{b}`.

    Source: Hendrycks et al. 2021 (`math_equivalence`).
    """
    for word, spelling in _SPELLINGS:
        answer = answer.replace(word, spelling)
    if answer.count(_UNIT) == 1:
        answer = answer.partition(_UNIT)[0]
    answer = answer.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if answer.startswith("."):
        answer = f"0{answer}"
    name, equals, value = answer.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        answer = value
    answer = _BARE_ROOT.sub(r"\\sqrt{\1}", answer).replace(" ", "")
    answer = _BARE_FRACTION.sub(_with_braces, answer)
    if answer == "0.5":
        return "\\frac{1}{2}"
    fraction = _WHOLE_NUMBERS.fullmatch(answer)
    return answer if fraction is None else f"\\frac{{{fraction[1]}}}{{{fraction[2]}}}"


def _with_braces(fraction: re.Match[str]) -> str:
    below = "{" if fraction[2] == "{" else f"{{{fraction[2]}}}"
    return f"\\frac{{{fraction[1]}}}{below}"
