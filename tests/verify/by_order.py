"""A reward function that does what responses say. It imports next to nothing, so that its process starts at once."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hacpo_core.records import Problem


def by_order(problems: Sequence[Problem], responses: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for text in responses:
        if text == "raise":
            raise KeyError("no such rule")
        if text == "die":
            os._exit(1)
        if text == "sleep":
            time.sleep(60)
        found.append({"none": None, "nan": float("nan"), "two": 2.0, "words": "good"}.get(text, 0.25))
    return [*found, 1.0] if "one more" in responses else found
