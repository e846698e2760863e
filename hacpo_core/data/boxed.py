"""The boxes of a LaTeX text: pure text, time linear in its length."""

from __future__ import annotations

import re

_TEX_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[ \t]*([^\s{}$\\]+)")


def boxed(text: str) -> list[str]:
    """Contents of the complete, non-empty `\\boxed{...}` and `\\fbox{...}`, `\\boxed 2` included, in their order.

    A box that holds another one is left out: what it says is in the inner one, and nesting costs no time.
    """
    found: list[str] = []
    last_start = -1
    open_braces: list[tuple[int, int]] = []  # (start of the box or -1, start of the content)
    box_at = box_end = -1
    for token in _TEX_TOKEN.finditer(text):
        kind = token.group()
        if kind == "{":
            is_box = box_at >= 0 and not text[box_end : token.start()].strip()
            open_braces.append((box_at if is_box else -1, token.end()))
            box_at = -1
        elif kind == "}":
            box_at = -1
            if open_braces:
                start, content_start = open_braces.pop()
                if start > last_start and (content := text[content_start : token.start()].strip()):
                    last_start = start
                    found.append(content)
        elif kind in ("\\boxed", "\\fbox"):
            box_at, box_end = token.start(), token.end()
            bare = _BARE_BOX.match(text, box_end)
            if bare is not None and (content := bare.group(1).rstrip(".,;:")):
                last_start = box_at
                found.append(content)
        else:
            box_at = -1
    return found
