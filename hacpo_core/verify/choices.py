"""Options of a multiple choice, yes and no, true and false, as text."""

from __future__ import annotations

import re

OPTION = re.compile(r"\(?([A-J])\)?")
TRUTH = re.compile(r"(yes|no|true|false)", re.IGNORECASE)
_LEADING_OPTION = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:\\text\{)?\(?([A-J])(?:\)|\}|[.:](?!\d)|$)")
_LEADING_TRUTH = re.compile(r"(?:\\text\{)?(yes|no|true|false)\b", re.IGNORECASE)
_FURTHER_CHOICE = re.compile(
    r"(?<![A-Za-z])\([A-J]\)|(?:\b(?:and|or)\b|[,;&/]) ?(?:[A-J]\.(?!\d)|[A-J]$)"
    r"|(?:\bor\b|\band\b|/) ?(?i:yes|no|true|false)\b"
)


def first_words_agree(candidate: str, expected: str) -> bool | None:
    """Whether a candidate starts with the gold answer's option letter or truth value and names no other.

    None if either has neither.
    """
    for whole, leading in ((OPTION, _LEADING_OPTION), (TRUTH, _LEADING_TRUTH)):
        expected_match = whole.fullmatch(expected)
        candidate_match = None if expected_match is None else leading.match(candidate)
        if expected_match is not None and candidate_match is not None:
            is_same = candidate_match.group(1).lower() == expected_match.group(1).lower()
            return is_same and not _FURTHER_CHOICE.search(candidate, candidate_match.end())
    return None
