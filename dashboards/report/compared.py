"""Two methods compared: the rows that the pages, the report and their charts show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboards.formats import counted, signed
from dashboards.report.cells import Variant
from dashboards.report.statistics import Difference, holm, p_text, verdict_word

TOGETHER = "all agents"
"""stands for the mean over a pair's agents, or over all agents of all pairs"""
EVERY_PAIR = ""
"""stands for all pairs of a grid together"""
NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Difference of two methods in points (1/100), for a pair (or EVERY_PAIR) and an agent (or TOGETHER).

    `corrected_p` is corrected by Holm over the rows of the same kind: single agents, pairs, or all pairs.
    """

    ours: Variant
    theirs: Variant
    pair: str
    agent: str
    difference: Difference | str
    """or the reason why there is none"""
    paper: float = math.nan
    """the paper's lead, in points; nan if it has none"""
    corrected_p: float = math.nan
    num_open: int = 0
    """pairs that have too few seeds yet, of a row over all pairs"""

    @property
    def title(self) -> str:
        """Both methods."""
        return f"{self.ours.title} − {self.theirs.title}"

    @property
    def word(self) -> str:
        """Win, tie or loss; ONE_SEED with one seed, and NOT_YET without a difference."""
        if isinstance(self.difference, str):
            return NOT_YET
        return verdict_word(self.difference.value, self.corrected_p, self.difference.num_seeds)

    @property
    def sentence(self) -> str:
        """Who is ahead of whom, by how much, and whether that is more than noise; without a difference, why not."""
        d = self.difference
        if isinstance(d, str):
            return f"{self.title}: {NOT_YET} ({d})"
        distance = f"{abs(d.value):.1f}"
        where = "level with" if distance == "0.0" else f"{distance} points {'ahead of' if d.value > 0 else 'behind'}"
        over, noise = (" over problems alone", "the noise of problems") if d.num_seeds < 2 else ("", "noise")
        aside = ", seeds aside" if d.num_seeds < 2 else ""
        interval = f"95 % interval{over} {signed(d.low)} to {signed(d.high)}, p {p_text(self.corrected_p)} after Holm"
        to_come = f", {counted(self.num_open, 'pair')} to come" if self.num_open else ""
        more = "no more" if self.corrected_p >= 0.05 else "more"
        return (
            f"{self.ours.title} is {where} {self.theirs.title} ({interval}, {counted(d.num_seeds, 'seed')}{to_come}): "
            f"{more} than {noise}{aside}"
        )


def holm_corrected(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """The rows with p-values corrected by Holm's procedure, apart for single agents, pairs, and all pairs."""
    kinds: dict[tuple[bool, bool], dict[int, float]] = {}
    for number, row in enumerate(rows):
        if isinstance(row.difference, Difference) and not math.isnan(row.difference.p_value):
            kind = kinds.setdefault((row.pair == EVERY_PAIR, row.agent == TOGETHER), {})
            kind[number] = row.difference.p_value
    corrected: dict[int, float] = {}
    for p_values in kinds.values():
        corrected |= zip(p_values, holm(list(p_values.values())), strict=True)
    return [replace(row, corrected_p=corrected.get(number, math.nan)) for number, row in enumerate(rows)]
