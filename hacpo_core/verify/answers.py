"""Extract the answer from a response: text only, no algebra, in time linear in the length of the text.

    text -> the last complete \\boxed{...}
         -> the text after the last ####, "answer is", "Answer:", "A:" or JSON key "answer"
         -> the last line, if it is a bare expression
         -> the last formula or number

Style "auto" tries these in order; each other style is one of them. To keep the time linear, no regular expression here
has nested repetition, and repetition before a required token is bounded.
"""

import json
import re
from collections import deque

from hacpo_core.data.boxed import boxed
from hacpo_core.records import AnswerStyle
from hacpo_core.verify.spelling import AMOUNT, words

MAX_TEXT_CHARS = 200_000
"""Only the last MAX_TEXT_CHARS characters of a response are searched."""

MAX_ANSWER_CHARS = 2_000
"""A longer candidate is wrong unless it equals the gold answer as text; the longest gold answer in MATH, GSM8K,
OlympiadBench and Minerva has 210 characters."""

UNREADABLE = "the gold answer cannot be read"
"""Reason of a verdict on an answer that is spelled otherwise than such a gold answer."""

_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}.])[-−][ ]?)?(?:\\?\$(?P<minus>-)?)?"
    r"(?P<digits>\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)?(?P<decimals>(?<!\.)\.\d+)?"
    r"(?P<over>/\d+(?!\d|\.\d))?(?P<percent>[ ]?\\?%)?"
    r"(?P<more>\^\{?[-−]?\d{1,9}\}?|:\d\d(?!\d)(?::\d\d)?(?:[ ]?[aApP]\.?[mM]\b)?|[eE][-+]?\d{1,3}(?!\w|\.\d)"
    r"|[ ]?(?:[x×*]|\\times)[ ]?10\^\{?[-−]?\d{1,9}\}?|(?<=\d)(?<!/\d)(?<!\.\d)[ ]\d{1,9}/\d{1,9}(?!\d|\.\d)"
    r"|[ ](?:hundred|thousand|[mbtr]+illion|dozen|lakh|crore)s?\b)?"
)
_FORMULA = re.compile(
    r"\$\$(?P<display>[^$]{1,2000})\$\$"
    r"|(?<!\\)\$(?P<inline>(?![\s$])(?:[^$\\\n]|\\.){0,2000}(?<!\s))\$(?!\d)"
    r"|\\\[(?P<bracket>(?:[^\\]|\\(?![\[\]])){1,2000})\\\]"
    r"|\\\((?P<parenthesis>(?:[^\\]|\\(?![()])){1,2000})\\\)"
)
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*(?P<line>[^\n]*)")
_JSON_ANSWER = re.compile(r'"(?:final[_ ]?)?answer"[ \t]{0,8}:\s{0,8}', re.IGNORECASE)
_ANNOUNCEMENT = re.compile(
    r"(?:\banswers?\b(?:[ ](?:to|for|of|in|as)\b[^.:\n=]{0,60}?(?:[ ]is\b|[ ]are\b|:)|[ ]is\b|[ ]are\b|[*_ ]{0,4}[:=])"
    r"|\brespuesta(?: final| correcta)? es\b|\bréponse(?: finale)? est\b|\bAntwort(?:en)? (?:ist|lautet|sind)\b"
    r"|答案[是为:：])"
    r"[:：*_ ]{0,4}"
    r"|^[*_]{0,2}A[:.][*_ ]{1,4}",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_VERDICT_OR_OPTION = re.compile(r"(?:yes|no|true|false)\b|\(?[A-J]\)", re.IGNORECASE)
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])(?!(?:sqrt|frac|pi|sin|cos|tan|log|ln|exp|and|or)\b)[A-Za-z]{2,}")
_TAIL = re.compile(
    r",?[ ](?:because|since|so|which|that|who|as(?![ ]long)|at(?![ ](?:least|most))"
    r"|in(?!$|[ ](?:total|all|case|base)\b)|rounded|to the nearest|on(?![ ](?:the[ ])?condition)|every|each|during|from"
    r"|of the)[ ].*"
    r"|,[ ](?:and|so)[ ](?:the|so|then|this|that|it|he|she|they|we)\b.*",
    re.IGNORECASE | re.DOTALL,
)
"""what explains an answer behind it; other words stay, for they may change it"""
_CHANGE = re.compile(
    r"(?!st\b|nd\b|rd\b|th\b)[A-Za-z√π!]|[ ]?(?:[b-z](?![\w.])|[-+±−*/÷×](?!\*)|\\(?![)\]])|\((?![A-Za-z]))"
    rf"|[ ](?:pi|sqrt|squared|cubed|{'|'.join(words('no noun') + words('number') + words('tens'))})s?(?!\w)"
    rf"|\$?[ ]{AMOUNT}"
    r"|.*(?:\d|\b(?:if|iff|unless|when|whenever|or|otherwise|except|but|not|below|assuming|provided)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""what changes a number, behind it"""
_CHANGE_OF_FORMULA = re.compile(
    r"(?:,|,? (?:and|or)) ?(?:\$|\\\(|-?\d)|[ ]?[-+*/^×÷±][ ]?(?:\$|\\\(|\d)|[ ]\w+ (?:and|or) (?:\$|\\\(|\d)"
    r"|[ ](?:if|iff|unless|whenever|except|otherwise|in base|squared|cubed|times|percent|to the power"
    rf"|(?:more|less|fewer|greater) than|when (?:\$|\\\(|[b-z]\b)|{AMOUNT})\b",
    re.IGNORECASE,
)
"""what changes a formula, behind it"""
_CHANGE_BEFORE = re.compile(
    r"(?:[√π+/^<≤≥≠|×·÷±−-]|(?<![=-])(?<!answer)>|(?<!boxed)\{|\\(?!text)[A-Za-z]+|(?<![A-Za-z])[b-z])[ ]?$|[A-Za-z]\($"
    r"|\b(?:not|never|cannot be|between|either|at (?:least|most)|(?:more|less|fewer|greater|other) than|over|under"
    r"|up to|except|(?:square|cube|root|half|third|quarter|fifth|tenth|percent) of|minus|plus|negative|times|twice"
    r"|double|triple|log|ln)[ $*(]*$",
    re.IGNORECASE,
)
"""what changes a number or formula, in front of it"""
_SEVERAL = re.compile(
    r"[ ](?:and|or)[ ]|\d,[^=]*=|(?<![A-Za-z])\d+[ ]?[a-z][ ]?=|(?:[\^√]|\\[A-Za-z]).*=", re.IGNORECASE
)
"""equations that are more than a number and its name"""
_NUMBER_WORD = re.compile(rf"(?:{'|'.join(words('number') + words('tens'))})\b", re.IGNORECASE)
_DENIAL = re.compile(r"(?:\b(?:not|never|cannot|neither|nor)\b|n't\b)(?:(?!but\b)[^.;,\n]){0,30}$", re.IGNORECASE)
_SEPARATOR = re.compile(r",(?:\\!\s*)+(?=\d{3}(?!\d))")  # of thousands: 11,\! 111
_BETWEEN_FORMULAS = re.compile(r"(?<!\\)\$\s*,\s*\$")
_IDLE = r"\\\\|\\noindent|\\newline|\\par|[\s,;:]|(?<!\.)\.(?!\.)"
_LAYOUT = re.compile(rf"(?:{_IDLE})+$")
_LAYOUT_AND_END = re.compile(rf"(?:{_IDLE}|\\end\{{[A-Za-z*]{{1,20}}\}})+$")


def extract_answer(text: str, *, style: AnswerStyle) -> str | None:
    """The answer given in a response, or None.

    Args:
        text: a response; only its last MAX_TEXT_CHARS characters are read.
        style: "boxed": the last complete \\boxed{}; "last_number": as in GSM8K; "plain": the whole text; "auto": a
            \\boxed{} if there is one, else an announced answer, else the last line or the last formula or number.

    Returns:
        the answer as written, without surrounding dollar signs and spaces; with "last_number", also without thousands
        separators and currency symbols.
    """
    tail = text[-MAX_TEXT_CHARS:]
    if style == "boxed":
        return last_boxed(tail)
    if style == "last_number":
        return _number_of(tail)
    if style == "plain":
        return tail.strip() or None
    return last_boxed(tail) or _announced_expression(tail) or _last_expression(tail)


def after_reasoning(text: str, *, end: str, is_required: bool) -> str:
    """The part of a response in which its answer can be: behind the reasoning, and before any that begins anew.

    Args:
        text: a response.
        end: mark that closes the reasoning, such as </think>; the opening mark is the same without the slash.
        is_required: a response without `end` has no such part.
    """
    _, closing, tail = text.rpartition(end)
    if is_required and not closing:
        return ""
    opening = end.replace("/", "", 1)
    return tail if opening == end else tail.partition(opening)[0]


def normalise(answer: str) -> str:
    """The answer without dollar signs, repeated spaces, and layout commands and full stops at its end.

    Answers that are equal after this count as equal; no algebra is needed.
    """
    bare = (
        _BETWEEN_FORMULAS.sub(", ", _SEPARATOR.sub("", answer))
        .replace("\\$", "")
        .replace("$", "")
        .replace("\\!", "")
        .strip()
    )
    # \end of a matrix belongs to the answer; \end of an environment around the answer does not.
    ending = (_LAYOUT if "\\begin{" in bare else _LAYOUT_AND_END).search(bare[-200:])
    if ending is not None:
        bare = bare[: len(bare) - (ending.end() - ending.start())]
    return " ".join(bare.split())


def last_boxed(text: str) -> str | None:
    """Content of the last complete \\boxed{}, or None."""
    contents = boxed(text)
    return contents[-1] if contents else None


def _number_of(text: str) -> str | None:
    """The final number of a response: after the last ####, else in the announced answer, else the last number."""
    segment = _announced_segment(text)
    sentence = "" if segment is None else _TAIL.sub("", _first_sentence(segment)).strip().strip("*_`")
    for part in (sentence if _SEVERAL.search(sentence) else sentence.rpartition("=")[2], sentence):
        number = next(filter(_is_number, _NUMBER.finditer(part)), None)
        if number is not None:
            is_changed = _CHANGE.match(part, number.end()) or _CHANGE_BEFORE.search(part[: number.start()])
            return part.strip() if is_changed else _plain_number(number)
    return sentence if _NUMBER_WORD.match(sentence) else _last_number(text)


def _announced_expression(text: str) -> str | None:
    """The announced answer: a formula, if nothing around changes it; else its sentence without what explains it."""
    segment = _announced_segment(text)
    if segment is None:
        return None
    first = _first_sentence(segment)
    sentence = _TAIL.sub("", first)
    formula = None if _VERDICT_OR_OPTION.match(sentence.lstrip("*_`\"' ")) else _FORMULA.search(segment)
    has_number = any(character.isdecimal() for character in sentence)  # then a formula in the explanation is none
    if formula is not None and formula.start() <= len(sentence if has_number else first):
        if not (_CHANGE_OF_FORMULA.match(segment, formula.end()) or _CHANGE_BEFORE.search(segment[: formula.start()])):
            return _formula_content(formula)
        sentence = segment[: formula.end()] + _TAIL.sub("", _first_sentence(segment[formula.end() :]))
    sentence = sentence.strip().strip("*_`\"'").strip()
    is_short = len(sentence) <= MAX_ANSWER_CHARS and any(character.isalnum() for character in sentence)
    return sentence if is_short else None


def _announced_segment(text: str) -> str | None:
    """The text after the last ####, else after the last announcement of an answer; JSON values are decoded."""
    hashes = _last_match(_HASHES, text)
    # #### is also a Markdown heading: then the line is prose and more text follows.
    if hashes is not None and (not text[hashes.end() :].strip() or not _PROSE_WORD.search(hashes["line"])):
        return hashes["line"][:MAX_ANSWER_CHARS]
    matches = [match for match in (_last_match(_JSON_ANSWER, text), _last_match(_ANNOUNCEMENT, text)) if match]
    if not matches:
        return None
    last = max(matches, key=re.Match.end)
    if last.re is _JSON_ANSWER:
        return _json_value(text, last.end())
    return text[last.end() : last.end() + MAX_ANSWER_CHARS].lstrip()


def _json_value(text: str, start: int) -> str:
    """The JSON string at a position with its escapes decoded, or the rest of the line if it is not valid JSON."""
    line = text[start : start + MAX_ANSWER_CHARS].partition("\n")[0]
    if line.startswith('"'):
        try:
            value, _ = json.JSONDecoder(strict=False).raw_decode(line)
        except ValueError:
            value = line[1:].rstrip(' \t\r,}"')
        return str(value)
    return line.rstrip(" \t\r,}")


def _last_expression(text: str) -> str | None:
    """The last line if it is a bare expression, else the last formula or number, whichever ends later."""
    stripped = text.strip()
    line = stripped[stripped.rfind("\n") + 1 :].strip().strip("*_`").strip()
    has_content = any(character.isalnum() for character in line)
    is_short = has_content and len(line) <= MAX_ANSWER_CHARS
    if is_short and not _PROSE_WORD.search(line) and not _FORMULA.search(line):
        return line.rstrip(".,;:") or None
    formula = _last_match(_FORMULA, text)
    number = _last_number_match(text)
    if formula is not None and (number is None or number.end() <= formula.end()):
        return None if re.search(r"\b(?:not|cannot be) $", text[: formula.start()][-12:]) else _formula_content(formula)
    if number is not None:
        return _plain_number(number)
    return line if is_short and line == stripped else None


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _first_sentence(segment: str) -> str:
    end = _SENTENCE_END.search(segment)
    return segment if end is None else segment[: end.start()]


def _formula_content(formula: re.Match[str]) -> str | None:
    content = next(group for group in formula.groups() if group is not None)
    return normalise(content) or None


def _last_number(text: str) -> str | None:
    match = _last_number_match(text)
    return None if match is None else _plain_number(match)


def _last_number_match(text: str) -> re.Match[str] | None:
    last = deque(filter(_is_number, _NUMBER.finditer(text)), maxlen=1)
    return last[0] if last and not _DENIAL.search(text[: last[0].start()][-60:]) else None


def _is_number(match: re.Match[str]) -> bool:
    return bool(match["digits"] or match["decimals"])


def _plain_number(match: re.Match[str]) -> str | None:
    """A number without currency symbol, thousands separators or trailing zeros ("18.00" becomes "18")."""
    if not _is_number(match):
        return None
    if match["more"]:
        return match[0].strip()
    digits = (match["digits"] or "0").replace("{,}", "").replace(",", "")
    decimals = (match["decimals"] or "").rstrip("0").rstrip(".")
    sign = "-" if match["sign"] or match["minus"] else ""
    return f"{sign}{digits}{decimals}{match['over'] or ''}{'%' if match['percent'] else ''}"
