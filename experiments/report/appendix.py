"""The report's appendix: consistency checks of the paper's printed tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from experiments.audit import (
    PrintedRow,
    Repetition,
    aime_fit,
    exponent_means,
    gains,
    impossible_values,
    num_cells_behind,
    printed_rows,
    repetitions,
    wrong_averages,
)
from experiments.published.tables import BENCHMARKS, pair_settings, printed_ratios
from experiments.report.cells import TITLES
from experiments.report.tables import HEADINGS

_TABLES = {"table1": "Table 1", "table2": "Table 2", "table3": "Table 3", "table7": "Table 7"}


def audit() -> Mapping[str, Any]:
    """All checks of `experiments.audit` for the template; they use only the paper's printed numbers."""
    rows = printed_rows()
    averages = [
        {
            "table": _TABLES[row.table],
            "pair": row.pair,
            "agent": row.agent,
            "row": TITLES[row.method],
            "printed": f"{row.printed_average:.3f}",
            "mean of the row": f"{row.average:.3f}",
            "difference, points": f"{100 * (row.printed_average - row.average):+.1f}",
        }
        for row in wrong_averages(rows)
    ]
    leads = [
        {
            "tables": " and ".join(_TABLES[name] for name in gain.tables),
            "against": TITLES[gain.against],
            "agents": str(gain.num_agents),
            "printed": f"{gain.printed:+.2f}",
            "recomputed": f"{gain.computed:+.2f}",
            "least": f"{gain.least:+.2f}",
            "agents behind": str(gain.num_behind),
            "results behind": "{} of {}".format(*num_cells_behind(rows, gain.tables, gain.against)),
        }
        for gain in gains(rows)
    ]
    impossible = impossible_values(rows)
    numbers = Counter(cell.benchmark for cell in impossible)
    floors = sorted({row.cross_floor for row in pair_settings()})
    return {
        "num_rows": len(rows),
        "averages": pd.DataFrame(averages),
        "gains": pd.DataFrame(leads),
        "num_values": len(BENCHMARKS),
        "repetitions": [_repetition_text(repetition) for repetition in repetitions(rows)],
        "counts": ", ".join(f"{HEADINGS[name]} {number}" for name, number in numbers.items()),
        "aime": asdict(aime_fit(rows)),
        "impossible": [
            f"{HEADINGS[cell.benchmark]} {cell.value:.3f}: {cell.row.agent}, {TITLES[cell.row.method]}"
            for cell in impossible
            if cell.benchmark != "aime2025"
        ],
        "floors": floors,
        "bounds": [f"{1 - floor:.1f}" for floor in floors],
        "min_ratio": min(row.least for row in printed_ratios() if row.source == "cross"),
        "exponents": _exponents(),
    }


def _repetition_text(repetition: Repetition) -> str:
    first, second = repetition.first, repetition.second
    places = f"beside {_partner(first)} and beside {_partner(second)}"
    row = f"{first.agent}, {TITLES[first.method]}"
    if not repetition.is_expected:
        return f"{row}: {repetition.num_equal} values are equal to the last digit {places}."
    unequal = [
        f"{HEADINGS[name]} {a:.3f} against {b:.3f}"
        for name, a, b in zip(BENCHMARKS, first.values, second.values, strict=True)
        if a != b
    ]
    return f"{row}: the same model is printed with {', '.join(unequal)} {places}."


def _partner(row: PrintedRow) -> str:
    return " + ".join(name for name in row.pair.split("+") if name != row.agent)


def _exponents() -> list[dict[str, Any]]:
    chosen = {row.pair: f"hacpo_alpha{row.cross_exponent:.0f}" for row in pair_settings()}
    return [
        {
            "pair": pair,
            "chosen": _exponent(chosen[pair]),
            "is_best": max(means, key=lambda name: means[name]) == chosen[pair],
            "listed": ", ".join(f"{_exponent(name)}: {mean:.3f}" for name, mean in means.items()),
        }
        for pair, means in exponent_means().items()
    ]


def _exponent(method: str) -> str:
    """The part "α = 1" of the title of a method of Table 4."""
    return TITLES[method].rpartition(", ")[2]
