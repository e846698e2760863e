"""Colours of methods and agents: the same on the page, in reports and in figures.

All have at least 3:1 contrast on the light and on the dark ground, and stay apart for colour-blind readers; lines also
differ in their dashes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

GREY = "#767b80"
_OTHERS = ("#2e8bc0", "#c0558f", "#7a6fd0", "#8a6a4a", "#5b8a00", "#00828a")
_FIXED = {
    "before training": GREY,
    "HACPO": "#0072b2",
    "GSPO": "#d55e00",
    "GSPO x 2": "#b07700",
    "Naive": "#00875f",
    "GRPO": "#b85a96",
}
"""by title: methods of the paper's main table look the same in every grid"""
_AGENTS = ("#0072b2", "#d55e00", "#00875f", "#b85a96", "#b07700", "#7a6fd0")
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))


@dataclass(frozen=True, slots=True)
class Stroke:
    """Colour and dashes of a line."""

    colour: str
    dash: tuple[int, ...] = DASHES[0]


def method_strokes(titles: Iterable[str]) -> dict[str, Stroke]:
    """A stroke per method, in the order of a grid; the paper's main methods have colours of their own."""
    strokes = {}
    others = 0
    for title in dict.fromkeys(titles):
        if title in _FIXED:
            strokes[title] = Stroke(_FIXED[title])
        else:  # dashed, so that it cannot be taken for one of the main methods
            dash = DASHES[1 + others // len(_OTHERS) % (len(DASHES) - 1)]
            strokes[title] = Stroke(_OTHERS[others % len(_OTHERS)], dash)
            others += 1
    return strokes


def agent_strokes(agents: Iterable[str]) -> dict[str, Stroke]:
    """A stroke per agent, in the order of the pair."""
    names = dict.fromkeys(agents)
    return {
        name: Stroke(_AGENTS[number % len(_AGENTS)], DASHES[number // len(_AGENTS) % len(DASHES)])
        for number, name in enumerate(names)
    }
