"""The boxes of a LaTeX text, found by text search in time linear in its length."""

import re
from collections.abc import Iterator

_TEX_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}]", re.DOTALL)
_BARE_BOXED = re.compile(r"[ \t]*([^\s{}$\\]+)")


def boxed(text: str) -> list[str]:
    """Contents of the complete, non-empty `\\boxed{...}` and `\\fbox{...}`, `\\boxed 2` included, in their order.

    A box that contains another box is left out: the answer is in the inner one.
    """
    return [content for content, _ in _boxes(text)]


def first_box_end(text: str) -> int | None:
    """End of the first complete, non-empty `\\boxed{...}` or `\\fbox{...}`; None if there is none.

    `\\boxed 2` does not count, since the next characters may belong to it.
    """
    return next((end for _, end in _boxes(text) if text[end - 1] == "}"), None)


def _boxes(text: str) -> Iterator[tuple[str, int]]:
    """Content and end of each box."""
    last_start = -1
    open_braces: list[tuple[int, int]] = []  # (start of the command or -1, start of the content)
    boxed_at = boxed_end = -1
    for token in _TEX_TOKEN.finditer(text):
        kind = token.group()
        if kind == "{":
            is_boxed = boxed_at >= 0 and not text[boxed_end : token.start()].strip()
            open_braces.append((boxed_at if is_boxed else -1, token.end()))
            boxed_at = -1
        elif kind == "}":
            boxed_at = -1
            if open_braces:
                start, content_start = open_braces.pop()
                if start > last_start and (content := text[content_start : token.start()].strip()):
                    last_start = start
                    yield content, token.end()
        elif kind in ("\\boxed", "\\fbox"):
            boxed_at, boxed_end = token.start(), token.end()
            bare = _BARE_BOXED.match(text, boxed_end)
            if bare is not None and (content := bare.group(1).rstrip(".,;:")):
                last_start = boxed_at
                yield content, bare.end()
        else:
            boxed_at = -1
