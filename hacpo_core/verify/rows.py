r"""Equations in rows, as text: \begin{cases} x=5 \\ y=6 \end{cases} -> x=5, y=6."""

from __future__ import annotations

import re

_ENVIRONMENT = re.compile(
    r"(?:\\\{ ?)?\\begin ?\{(?P<name>aligned|align\*?|gathered|split|cases|array)\} ?(?:\{ ?[lcr] ?\})?(?P<body>.*)"
    r"\\end ?\{(?P=name)\} ?\.?",
    re.DOTALL,
)
_RELATION = re.compile(r"[=<>]|\\(?:[lg]eq?|neq?)(?![a-z])")
_WITH_CONDITIONS = ("cases", "array")
"""environments in which & may stand before a condition"""


def in_one_row(answer: str) -> str:
    """The equations or inequalities of an answer one after the other; a row that begins with = goes on."""
    match = _ENVIRONMENT.fullmatch(answer)
    body = answer if match is None else match["body"]
    has_conditions = match is not None and match["name"] in _WITH_CONDITIONS and "&" in body
    rows = [row.replace("&", "").strip(" ,") for row in body.split(r"\\")]
    if r"\begin" in body or has_conditions or not all(_RELATION.search(row) for row in rows if row):
        return answer
    if match is None and len(rows) == 1:
        return answer
    joined_rows = ""
    for row in filter(None, rows):
        joined_rows += f"{', ' if joined_rows and not row.startswith('=') else ' '}{row}"
    return joined_rows.strip()
