"""The report's appendix: consistency checks of the paper's printed tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from experiments.audit import (
    PrintedRow,
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
from experiments.report import words
from experiments.report.cells import TITLES
from experiments.report.document import Block, Bullets, Heading, Paragraph, Table, TableCell
from experiments.report.tables import HEADINGS

_TABLES = {"table1": "Table 1", "table2": "Table 2", "table3": "Table 3", "table7": "Table 7"}


def audit_blocks() -> Iterator[Block]:
    """All checks of `experiments.audit`; they use only the paper's printed numbers."""
    rows = printed_rows()
    yield Heading("Appendix: the printed tables, recomputed")
    yield Paragraph(words.AUDIT)
    yield from _averages(rows)
    yield from _gains(rows)
    yield from _repetitions(rows)
    yield from _impossible(rows)
    yield from _settings()


def _averages(rows: Sequence[PrintedRow]) -> Iterator[Block]:
    wrong = wrong_averages(rows)
    yield Heading("Averages that are not the mean of their row", 3)
    yield Paragraph(words.AUDIT_AVERAGES.format(wrong=len(wrong), rows=len(rows)))
    cells = [
        (
            _TABLES[row.table],
            row.pair,
            row.agent,
            TITLES[row.method],
            f"{row.printed_average:.3f}",
            f"{row.average:.3f}",
            f"{100 * (row.printed_average - row.average):+.1f}",
        )
        for row in wrong
    ]
    columns = ("table", "pair", "agent", "row", "printed", "mean of the row", "difference, points")
    yield Table(columns, tuple(tuple(map(TableCell, line)) for line in cells), num_labels=4)


def _gains(rows: Sequence[PrintedRow]) -> Iterator[Block]:
    yield Heading("HACPO's lead", 3)
    yield Paragraph(words.AUDIT_LEAD)
    cells = [
        (
            " and ".join(_TABLES[name] for name in gain.tables),
            TITLES[gain.against],
            str(gain.num_agents),
            f"{gain.printed:+.2f}",
            f"{gain.computed:+.2f}",
            f"{gain.least:+.2f}",
            str(gain.num_behind),
            "{} of {}".format(*num_cells_behind(rows, gain.tables, gain.against)),
        )
        for gain in gains(rows)
    ]
    columns = (
        "tables",
        "against",
        "agents",
        "printed",
        "recomputed",
        "least",
        "agents behind",
        "results behind",
    )
    yield Table(columns, tuple(tuple(map(TableCell, line)) for line in cells), num_labels=2)


def _repetitions(rows: Sequence[PrintedRow]) -> Iterator[Block]:
    yield Heading("Rows that agree or differ but should not", 3)
    yield Paragraph(words.AUDIT_REPETITIONS.format(values=len(BENCHMARKS)))
    items = []
    for repetition in repetitions(rows):
        places = f"beside {_partner(repetition.first)} and beside {_partner(repetition.second)}"
        row = f"{repetition.first.agent}, {TITLES[repetition.first.method]}"
        if repetition.is_expected:
            unequal = [
                f"{HEADINGS[name]} {a:.3f} against {b:.3f}"
                for name, a, b in zip(BENCHMARKS, repetition.first.values, repetition.second.values, strict=True)
                if a != b
            ]
            items.append(f"{row}: the same model is printed with {', '.join(unequal)} {places}.")
        else:
            items.append(f"{row}: {repetition.num_equal} values are equal to the last digit {places}.")
    yield Bullets(tuple(items))


def _partner(row: PrintedRow) -> str:
    return " + ".join(name for name in row.pair.split("+") if name != row.agent)


def _impossible(rows: Sequence[PrintedRow]) -> Iterator[Block]:
    impossible = impossible_values(rows)
    numbers = Counter(cell.benchmark for cell in impossible)
    yield Heading("Cells that no number of correct responses gives", 3)
    listed = ", ".join(f"{HEADINGS[name]} {number}" for name, number in numbers.items())
    yield Paragraph(words.AUDIT_COUNTS.format(numbers=listed))
    yield Paragraph(words.AUDIT_AIME.format(**asdict(aime_fit(rows))))
    items = [
        f"{HEADINGS[cell.benchmark]} {cell.value:.3f}: {cell.row.agent}, {TITLES[cell.row.method]}"
        for cell in impossible
        if cell.benchmark != "aime2025"
    ]
    yield Bullets(tuple(items))


def _settings() -> Iterator[Block]:
    yield Heading("Settings", 3)
    floors = sorted({row.cross_floor for row in pair_settings()})
    least = min(row.least for row in printed_ratios() if row.source == "cross")
    bounds = " or ".join(f"{1 - floor:.1f}" for floor in floors)
    items = [
        words.AUDIT_DELTA.format(floors=" and ".join(map(str, floors)), bounds=bounds, least=least),
        words.AUDIT_TABLE_4,
    ]
    chosen = {row.pair: f"hacpo_alpha{row.cross_exponent:.0f}" for row in pair_settings()}
    for pair, means in exponent_means().items():
        listed = ", ".join(f"{_exponent(name)}: {mean:.3f}" for name, mean in means.items())
        best = max(means, key=lambda name: means[name])
        is_best = "it is the best" if best == chosen[pair] else "it is not the best"
        items.append(
            words.AUDIT_EXPONENT.format(pair=pair, chosen=_exponent(chosen[pair]), is_best=is_best, listed=listed)
        )
    yield Bullets(tuple(items))


def _exponent(method: str) -> str:
    """The part "α = 1" of the title of a method of Table 4."""
    return TITLES[method].rpartition(", ")[2]
