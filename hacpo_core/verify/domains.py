r"""The domain of an answer's variable, as text: f(x)=2x \text{ for all real } x, 2\pi k, k \in \mathbb{Z}."""

from __future__ import annotations

import re

_CLAUSE = re.compile(
    r"(?<=\S)[ ,;]*(?:\\text ?\{ ?)?\(?(?:(?P<all>\bfor (?:all|any|every|each)\b)|\b(?:for|where|with)\b"
    r"|(?P<comma>[,;]) ?(?=\\?[A-Za-z]+(?:_\w)? ?\\in))(?P<rest>[^=<>]*)$"
)
_IDLE = re.compile(r"\\(?:text|mathbb|mathbf|mathrm|Bbb)(?![a-z])|\\(?=in(?![a-z]))|[{}()$.,]|\s+")
_NAMES = {
    "R": "real",
    "Z": "integer",
    "N": "natural",
    "Q": "rational",
    "C": "complex",
    "constant": "",
    "positive integer": "natural",
}
_DOMAIN = re.compile(
    r"(?:(?P<variable>(?:[A-Za-z]|\\[a-z]+)(?:_\w)?) )*?"
    r"(?:(?:in|is|are|an|a|any|all|some|arbitrary|belongs to|the set of) )*"
    rf"(?:(?P<domain>{'|'.join(filter(None, (*_NAMES, *_NAMES.values())))})s?)?"
    r"(?: (?:numbers?|values?(?: of)?))?(?: ?\\?[A-Za-z](?:_\w)?)?"
)


def without_domain(answer: str) -> tuple[str, str]:
    """A canonical answer without the clause behind it that names its variable's domain, and the domain's name.

    The name is "" if there is no such clause or it names none. Other conditions stay, for they change the answer.
    """
    match = _CLAUSE.search(answer)
    if match is None:
        return answer, ""
    clause = _DOMAIN.fullmatch(" ".join(_IDLE.sub(" ", match["rest"]).split()))
    text_before = answer[: match.start()]
    if clause is None or not (clause["domain"] or match["all"]):
        return answer, ""
    if match["comma"] and (clause["variable"] or "") not in text_before:
        return answer, ""  # another variable, which may have any value of the domain
    domain = clause["domain"] or ""
    return text_before, _NAMES.get(domain, domain)
