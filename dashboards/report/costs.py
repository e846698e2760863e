"""The cost per point of accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dashboards.formats import count
from dashboards.report.cells import REFERENCE, Variant
from dashboards.report.compared import TOGETHER, ComparedRow
from dashboards.report.comparison import PairTable, PairTableLine
from dashboards.report.published import BEFORE
from dashboards.report.tables import DASH, number_text

_TWICE = Variant("gspo_x2")


def _pair_lines(table: PairTable) -> dict[Variant, PairTableLine]:
    """The lines over all agents of a pair, by method."""
    name = TOGETHER if len(table.agents) > 1 else table.agents[0]
    return {line.variant: line for line in table.lines if line.agent == name}


def cost_table(tables: Sequence[PairTable]) -> pd.DataFrame:
    """Sampled tokens of every method, in total and per point of accuracy gained, and GPU-hours if there were any."""
    rows = []
    for table in tables:
        lines = _pair_lines(table)
        for line in (line for line in lines.values() if line.tokens is not None):
            gain = _points(line) - _points(lines[Variant(BEFORE)])
            price = count((line.tokens or 0.0) / (gain * len(table.agents))) if gain > 0 else "no gain"
            rows.append(
                {
                    "pair": table.pair,
                    "method": line.variant.title,
                    "sampled tokens": count(line.tokens),
                    "relative to HACPO": number_text(_share(line, lines.get(REFERENCE)), ".2f", " x"),
                    "points gained per agent": number_text(gain, "+.1f"),
                    "sampled tokens per point": DASH if math.isnan(gain) else price,
                    "seeds": str(line.num_seeds),
                    "GPU-hours": number_text(line.gpu_hours, ".3g") if line.gpu_hours else "",
                }
            )
    return pd.DataFrame(rows)


def _points(line: PairTableLine) -> float:
    """Accuracy in points, mean over benchmarks; nan if it is unknown."""
    summary = line.figures[-1].summary if line.figures else None
    return math.nan if summary is None else 100 * summary.mean


def _share(line: PairTableLine, reference: PairTableLine | None) -> float | None:
    """Sampled tokens relative to the reference's."""
    return line.tokens / reference.tokens if line.tokens and reference and reference.tokens else None


def gained_for_half(tables: Sequence[PairTable], rows: Sequence[ComparedRow]) -> list[str]:
    """Check of "half the rollout cost", a line per pair: HACPO's tokens relative to GSPO x 2, and its lead."""
    lines = []
    for row in rows:
        table = next((table for table in tables if table.pair == row.pair), None)
        if table is not None and (row.ours, row.theirs, row.agent) == (REFERENCE, _TWICE, TOGETHER):
            share = _share(_pair_lines(table)[REFERENCE], _pair_lines(table)[_TWICE])
            times = number_text(share, ".2f")
            lines.append(f"{row.pair}: HACPO samples {times} times the tokens of GSPO x 2. {row.sentence}.")
    return lines
