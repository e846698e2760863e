"""A grid's report: the verdict, results beside the paper's, cells without a result and why, and the configuration."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.charts.charts import Chart
from dashboards.charts.pictures import svg
from dashboards.report.cells import variant_of
from dashboards.report.comparison import Comparer
from dashboards.report.curves import training_curves
from dashboards.report.differences import comparisons
from dashboards.report.document import to_html, to_markdown
from dashboards.report.results import Results
from dashboards.report.tables import accuracy_table, ratio_table
from flows.records.gridfile import GridCell
from flows.service.experiment_state import ExperimentState
from hacpo_core.files import write_atomically


@dataclass(frozen=True, slots=True)
class Report:
    """A written report: its HTML page, and a sentence for each comparison of the method of interest over all agents."""

    page: Path
    sentences: tuple[str, ...]


def write_report(results: Results, folder: Path) -> Report:
    """Write `report.html` (self-contained), `report.md` and `figures/*.svg` into a folder.

    Raises:
        StoreError: the folder cannot be written. (An unreadable result is listed in the report as missing.)
    """
    content = report_content(results)
    forests: list[Chart | None] = [comparison.forest for comparison in content["comparisons"]]
    charts = {chart.name: chart for chart in [*forests, *content["curves"]] if chart is not None}
    pictures = {name: svg(chart) for name, chart in charts.items()}
    markdown = to_markdown(content)
    texts = {folder / "figures" / f"{name}.svg": picture for name, picture in pictures.items()}
    texts[folder / "report.md"] = markdown
    texts[folder / "report.html"] = to_html(results.config.title, markdown, charts, pictures)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    sentences = [row.sentence for comparison in content["comparisons"][:1] for row in comparison.joint_rows]
    return Report(folder / "report.html", tuple(sentences))


def report_content(results: Results) -> Mapping[str, Any]:
    """What the template shows; empty parts are left out there."""
    config, runs = results.config, results.runs
    layout, has_results = config.report.table, bool(results.experiments)
    tables = [Comparer(runs, pair) for pair in runs.pairs]
    return {
        "title": config.title,
        "layout": layout,
        "incomplete": _incomplete(results) if results.missing else "",
        "about": config.about,
        "summary": _summary(results),
        "versions": results.versions,
        "comparisons": comparisons(runs, config.report.against or []) if has_results else [],
        "accuracies": accuracy_table(tables, results.metric_kinds),
        "ratios": ratio_table(results, is_printed=layout == "table6"),
        "missing": _missing_lines(results.missing),
        "health": _health(results) if has_results else None,
        "curves": list(training_curves(results)),
        "is_of_paper": layout != "plain",
    }


def _incomplete(results: Results) -> str:
    states = Counter({cell.experiment: state.state for cell, state in results.missing}.values())
    total = len({cell.experiment for cell in results.record.cells})
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    return f"Incomplete: {states.total()} of {total} experiments have no result ({counts}); they are listed below."


def _summary(results: Results) -> str:
    cells = results.record.cells
    experiments = len({cell.experiment for cell in cells})
    seeds = ", ".join(str(seed) for seed in results.config.seeds)
    return (
        f"Grid {results.record.name}: {len(cells) - len(results.missing)} of {len(cells)} cells (pair x method x "
        f"seed x agent) are measured, from {experiments} experiments. Seeds: {seeds}. Hardware: "
        f"{results.config.hardware}."
    )


def _missing_lines(cells: Sequence[tuple[GridCell, ExperimentState]]) -> list[str]:
    """A line per state and reason."""
    by_reason: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell, state in cells:
        lines = state.reason.strip().splitlines()  # one for each model or file that is missing, or a traceback
        reason = "; ".join(lines if state.state == "unavailable" else lines[-1:])
        agents_by_run = by_reason.setdefault((state.state, reason), {})
        agents_by_run.setdefault(f"{variant_of(cell).title} seed {cell.seed}", []).append(cell.agent)
    return [
        f"{status}{': ' if reason else ''}{reason} — "
        + "; ".join(f"{name} ({', '.join(dict.fromkeys(agents))})" for name, agents in agents_by_run.items())
        for (status, reason), agents_by_run in by_reason.items()
    ]


def _health(results: Results) -> pd.DataFrame:
    """A line per finding about the health of a run."""
    cells = {cell.experiment: cell for cell in results.record.cells}
    rows = []
    for name, experiment in results.experiments.items():
        for finding in experiment.progress.findings:
            rows.append(
                {
                    "method": variant_of(cells[name]).title,
                    "agent": finding.agent,
                    "finding": finding.title,
                    "seed": str(cells[name].seed),
                    "steps": f"{finding.begun_at} to {finding.ended_at or 'the end'}",
                    "at its beginning": finding.text,
                }
            )
    return pd.DataFrame(rows)
