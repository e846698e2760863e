"""The reward of the authors' public code: the last \\boxed{} of a response, normalised and compared as text.

No algebra; time linear in the length of the text. The rules are those published with MATH, quirks included.
"""

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
    """Content of the last \\boxed{}, or None if there is none or it does not close.

    Every brace counts, even an escaped one. If a box has a space and no braces (`\\boxed 2`), the text after the last
    such box, up to a dollar sign, is the answer. `\\fbox` does not count.

    Source: MATH's `last_boxed_only_string` and `remove_boxed`, as in verl's `math_reward`.
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
    """The answer after MATH's published normalisation; two answers are equal if these strings are.

    In this order: remove line breaks and `\\!`; unify backslashes and fractions; remove `\\left`, `\\right`, degree
    signs and dollar signs; remove the text from a single `\\text{ ` (a unit); remove `\\%`; put a zero before a leading
    decimal point; remove a name of one letter before a single "="; `\\sqrt3` to `\\sqrt{3}`; remove spaces; `\\frac12`
    to `\\frac{1}{2}`; 0.5 to `\\frac{1}{2}`; and `a/b` of integers to `\\frac{a}{b}`.

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
