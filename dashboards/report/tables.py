"""Tables in the paper's layouts as texts, with its values beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from dashboards.report.cells import REFERENCE, Results, Run, Variant, average
from dashboards.report.published import AVERAGE, BEFORE, PrintedValue, printed_ratios, printed_values
from dashboards.report.statistics import Summary, summarize
from hacpo_core.evaluation.results import EvaluationResult

DASH = "—"
MUCH_CUT = 0.1
"""a larger share of truncated responses is noted beside the accuracy"""
HEADINGS = {
    "math500": "MATH-500",
    "math": "MATH",
    "gsm8k": "GSM8K",
    "aime2025": "AIME 2025",
    "amc23": "AMC 23",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
}
PaperValues = Mapping[tuple[str, str, str, str], float]
"""the paper's values by (pair, agent, method, benchmark)"""


def paper_values_in(table: str) -> PaperValues:
    """Cells of a printed table; empty if there is no table of that name."""
    return {_key(cell): cell.value for cell in printed_values() if cell.table == table}


def _key(cell: PrintedValue) -> tuple[str, str, str, str]:
    return cell.pair, cell.agent, cell.method, cell.benchmark


def with_interval(summary: Summary, digits: int = 3) -> str:
    """Mean ± half width as text; with one seed only the mean."""
    if math.isnan(summary.mean):
        return DASH
    width = "" if math.isnan(summary.half_width) else f" ± {summary.half_width:.{digits}f}"
    return f"{summary.mean:.{digits}f}{width}"


def number_text(value: float, form: str, unit: str = "") -> str:
    """A number with its unit, or a dash for nan."""
    return DASH if math.isnan(value) else f"{value:{form}}{unit}"


def _with_note(text: str, *notes: str) -> str:
    return f"{text} ({', '.join(notes)})" if notes else text


def accuracy_table(results: Results, paper_values: PaperValues, benchmarks: Sequence[str]) -> pd.DataFrame:
    """Rows: an agent before training and with every method. Columns: benchmarks and, if several, their average."""
    rows = []
    for pair, agent in results.places:
        before = [run.before for run in results.of(pair, agent).values()]
        rows.append([*_accuracy_row(pair, agent, Variant(BEFORE), before, paper_values, benchmarks), ""])
        for variant in (candidate for candidate in results.variants if results.holds((pair, agent), candidate)):
            after = [run.after for run in results.of(pair, agent, variant).values()]
            seeds = f"{len(after)} of {len(results.grid.config.seeds)}"
            rows.append([*_accuracy_row(pair, agent, variant, after, paper_values, benchmarks), seeds])
    metrics = {name: run.after[name].headline for run in results.runs for name in run.after}
    columns = [f"{HEADINGS.get(name, name)}{' ' + metrics[name] if name in metrics else ''}" for name in benchmarks]
    columns += ["AVG"] if len(benchmarks) > 1 else []
    return pd.DataFrame(rows, columns=["pair", "agent", "method", *columns, "seeds"])


def _accuracy_row(
    pair: str,
    agent: str,
    variant: Variant,
    evaluations: Sequence[dict[str, EvaluationResult]],
    paper_values: PaperValues,
    benchmarks: Sequence[str],
) -> list[str]:
    texts = [pair, agent, variant.title]
    average_columns = [(tuple(benchmarks), AVERAGE)] if len(benchmarks) > 1 else []
    for columns, name in [*(((name,), name) for name in benchmarks), *average_columns]:
        values = [
            value for run_evaluations in evaluations if not math.isnan(value := average(run_evaluations, columns))
        ]
        # Before training, all runs have the same model, so there is no variation over seeds.
        if values and variant.method == BEFORE:
            values = [sum(values) / len(values)]
        paper = None if variant.label else paper_values.get((pair, agent, variant.method, name))
        notes = [] if paper is None else [f"paper {paper:.3f}"]
        results_of_columns = [
            run_evaluations[column]
            for run_evaluations in evaluations
            for column in columns
            if column in run_evaluations
        ]
        texts.append(
            _with_note(with_interval(summarize(values)) if values else DASH, *notes, *_caveats(results_of_columns))
        )
    return texts


def _caveats(evaluations: Sequence[EvaluationResult]) -> Iterator[str]:
    """Notes on an accuracy: problems and unscored responses that it leaves out, and a large share of truncated ones."""
    num_problems = sum(result.num_problems for result in evaluations)
    num_left_out = num_problems - sum(result.headline_estimate.num_problems for result in evaluations)
    if num_left_out:
        yield f"{num_left_out} of {num_problems} problems left out"
    for share, limit, label in (("unscored_share", 0.0, "unscored"), ("cut_share", MUCH_CUT, "truncated")):
        mean = sum(getattr(result, share) for result in evaluations) / max(1, len(evaluations))
        if mean > limit:
            yield f"{100 * mean:.1f} % {label}"


def exponent_table(results: Results) -> pd.DataFrame:
    """Table 4: accuracy on MATH-500 by agent and exponent."""
    paper_values, rows = paper_values_in("table4"), []
    for pair, agent in results.places:
        evaluations = [[run.after for run in results.of(pair, agent, v).values()] for v in results.variants]
        figures = [
            _accuracy_row(pair, agent, variant, variant_evaluations, paper_values, ["math500"])[-1]
            for variant, variant_evaluations in zip(results.variants, evaluations, strict=True)
        ]
        rows.append([pair, agent, *figures])
    return pd.DataFrame(rows, columns=["pair", "agent", *(variant.title for variant in results.variants)])


def ratio_table(results: Results, *, is_printed: bool) -> pd.DataFrame | None:
    """Table 6: ratios of own and cross-agent responses over steps and seeds, and shares beyond the bounds.

    Args:
        results: of the grid.
        is_printed: show the paper's values beside those of qwen3-1.7b-base.

    Returns:
        None if no ratio was measured or printed.
    """
    paper_rows = {row.source: row for row in printed_ratios()} if is_printed else {}
    rows = []
    for pair, agent in results.places:
        for variant in results.variants:
            runs = list(results.of(pair, agent, variant).values())
            for source, symbol in (("own", "s_homo"), ("cross", "s_hete")):
                values = _steps(runs, f"ratio_{source}/mean")
                row = paper_rows.get(source) if (agent, variant) == ("qwen3-1.7b-base", REFERENCE) else None
                if not values and row is None:
                    continue
                paper_notes = [f"paper {p:.5f}" for p in (row.mean, row.maximum, row.minimum, row.range)] if row else []
                figures = [
                    _with_note(figure, *paper_notes[number : number + 1])
                    for number, figure in enumerate(_spread(values))
                ]
                shares = [_steps(runs, f"clip_{source}/{name}_share") for name in ("below", "above", "stopped")]
                percents = [
                    f"{100 * sum(step_shares) / len(step_shares):.1f} %" if step_shares else DASH
                    for step_shares in shares
                ]
                rows.append([pair, agent, variant.title, symbol, *figures, *percents])
    columns = ["pair", "agent", "method", "ratio", "mean", "max", "min", "range", "below", "above", "no gradient"]
    return pd.DataFrame(rows, columns=columns) if rows else None


def _spread(values: Sequence[float]) -> list[str]:
    """Mean, maximum, minimum and range, as text."""
    if not values:
        return [DASH] * 4
    minimum, maximum = min(values), max(values)
    return [f"{value:.5f}" for value in (sum(values) / len(values), maximum, minimum, maximum - minimum)]


def _steps(runs: Sequence[Run], metric: str) -> list[float]:
    return [float(value) for run in runs for value in run.curves.loc[run.curves.metric == metric, "value"].dropna()]
