"""A grid's report: the verdict, results beside the paper's, cells without a result and why, and the configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.charts.charts import Chart
from dashboards.charts.pictures import svg
from dashboards.report.cells import Results, Run, Variant, read_results
from dashboards.report.comparison import Comparer
from dashboards.report.costs import cost_table, gained_for_half
from dashboards.report.curves import training_curves
from dashboards.report.differences import ScoreReader, comparisons, finals_of
from dashboards.report.document import to_html, to_markdown
from dashboards.report.published import BENCHMARKS, paper_values_in
from dashboards.report.tables import accuracy_table, exponent_table, ratio_table
from flows.grids.planner import GridPlan
from flows.records.gridfile import GridCell, GridRecord
from flows.records.states import ExperimentStatus, experiment_status
from flows.runs.verifier import gold_lines, known_unreadable_golds
from flows.service.experiment_state import ExperimentState
from hacpo_core.evaluation.results import findings_of
from hacpo_core.files import write_atomically
from hacpo_core.store.steps import StepStore


@dataclass(frozen=True, slots=True)
class Report:
    """A written report: its HTML page, and a sentence for each comparison over all agents."""

    page: Path
    sentences: tuple[str, ...]


def write_report(grid: GridPlan, folder: Path) -> Report:
    """Write `report.html` (self-contained), `report.md` and `figures/*.svg` into a folder.

    Raises:
        StoreError: the folder cannot be written. (An unreadable result is listed in the report as missing.)
    """
    results = read_results(grid)
    content = report_content(results)
    forests: list[Chart | None] = [comparison.forest for comparison in content["comparisons"]]
    charts = {chart.name: chart for chart in [*forests, *content["curves"]] if chart is not None}
    pictures = {name: svg(chart) for name, chart in charts.items()}
    markdown = to_markdown(content)
    texts = {folder / "figures" / f"{name}.svg": picture for name, picture in pictures.items()}
    texts[folder / "report.md"] = markdown
    texts[folder / "report.html"] = to_html(grid.config.title, markdown, charts, pictures)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    joint = [row.sentence for comparison in content["comparisons"] for row in comparison.joint_rows]
    return Report(folder / "report.html", tuple(filter(None, joint)))


def report_content(results: Results) -> Mapping[str, Any]:
    """What the template shows; empty parts are left out there."""
    grid = results.grid
    layout, configured_benchmarks = grid.config.report.table, grid.config.report.benchmarks
    paper_values = paper_values_in(layout)
    is_of_paper = layout != "plain"
    benchmarks = (
        list(configured_benchmarks)
        if configured_benchmarks
        else results.benchmarks or (list(BENCHMARKS) if is_of_paper else [])
    )
    record = GridRecord(grid.name, grid.config.title, layout, benchmarks, grid.cells)
    status_of = _status_of(results)
    tables = [Comparer(record, pair, status_of, benchmarks).comparison for pair in results.pairs]
    finals = finals_of(record, status_of, lambda name: grid.plans[name].root, ScoreReader())
    sections = comparisons(finals, paper_values, grid.config.report.against or []) if results.runs else []
    headlines = {result.benchmark: result.headline for run in results.runs for result in run.ends}
    versions = _versions(results.runs)
    return {
        "title": grid.config.title,
        "layout": layout,
        "incomplete": _incomplete(results) if results.missing else "",
        "about": grid.config.about,
        "summary": _summary(results),
        "versions": versions,
        "is_dirty": any(version.endswith("-dirty") for version in versions),
        "questions": _questions(results),
        "golds": _golds(results.runs),
        "comparisons": sections,
        "exponents": exponent_table(tables) if layout == "table4" else None,
        "accuracies": accuracy_table(tables, headlines),
        "ratios": ratio_table(results, is_printed=layout == "table6"),
        "missing": _missing_lines(results.missing),
        "health": _health(results.runs) if results.runs else None,
        "costs": cost_table(tables) if results.runs else None,
        "half": gained_for_half(tables, [row for section in sections for row in section.rows]),
        "curves": list(training_curves(results)),
        "is_of_paper": is_of_paper,
    }


def _status_of(results: Results) -> Callable[[str], ExperimentStatus]:
    """The status of the grid's experiments, each read once; one that cannot be read is missing."""
    readable = {run.plan.id for run in results.runs}

    @cache
    def status_of(name: str) -> ExperimentStatus:
        if name not in readable:
            return ExperimentStatus("missing", None, None)
        return experiment_status(results.grid.plans[name].root)

    return status_of


def _incomplete(results: Results) -> str:
    states = Counter({cell.experiment: state.state for cell, state in results.missing}.values())
    total = len({cell.experiment for cell in results.grid.cells})
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    return f"Incomplete: {states.total()} of {total} experiments have no result ({counts}); they are listed below."


def _summary(results: Results) -> str:
    cells = results.grid.cells
    experiments = len({cell.experiment for cell in cells})
    seeds = ", ".join(str(seed) for seed in results.grid.config.seeds)
    return (
        f"Grid {results.grid.name}: {len(results.runs)} of {len(cells)} cells (pair x method x seed x agent) are "
        f"measured, from {experiments} experiments. Seeds: {seeds}. Hardware: {results.grid.config.hardware}"
        f"{_devices(results.runs)}."
    )


def _devices(runs: Sequence[Run]) -> str:
    """Devices and dtypes that the runs used, to follow the name of the hardware file."""
    engines = [run.plan.config.engine for run in runs]
    devices = dict.fromkeys(f"{engine.device} in {engine.dtype}" for engine in engines)
    return f" (run on {', '.join(devices)})" if devices else ""


def _versions(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Experiments by the version of the code that made them."""
    by_version: dict[str, set[str]] = {}
    for run in runs:
        by_version.setdefault(run.version, set()).add(run.plan.id)
    return {version: sorted(names) for version, names in by_version.items()}


def _golds(runs: Sequence[Run]) -> list[str]:
    """A sentence for each data set with gold answers that the verifier cannot read."""
    golds_by_set: dict[str, list[str]] = {}
    for root in dict.fromkeys(run.plan.root for run in runs):
        golds_by_set |= known_unreadable_golds(root)
    return gold_lines(golds_by_set)


def _questions(results: Results) -> list[str]:
    """Benchmarks whose problems or settings differ between runs."""
    lines = []
    for name in results.benchmarks:
        ids_by_version: dict[tuple[str, str], list[str]] = {}
        for run in results.runs:
            for result in run.ends:
                if result.benchmark == name:
                    declaration = json.dumps(result.declaration, sort_keys=True)
                    ids_by_version.setdefault((result.digest, declaration), []).append(run.plan.id)
        if len(ids_by_version) > 1:
            lines += [
                f"{name}, version {digest[:12]}: {', '.join(dict.fromkeys(ids))}"
                for (digest, _), ids in ids_by_version.items()
            ]
    return lines


def _missing_lines(cells: Sequence[tuple[GridCell, ExperimentState]]) -> list[str]:
    """A line per state and reason."""
    by_reason: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell, state in cells:
        reason = state.reason.strip().splitlines()[-1] if state.reason.strip() else ""
        agents_by_run = by_reason.setdefault((state.state, reason), {})
        agents_by_run.setdefault(f"{Variant(cell.method, cell.label).title} seed {cell.seed}", []).append(cell.agent)
    return [
        f"{status}{': ' if reason else ''}{reason} — "
        + "; ".join(f"{name} ({', '.join(dict.fromkeys(agents))})" for name, agents in agents_by_run.items())
        for (status, reason), agents_by_run in by_reason.items()
    ]


def _health(runs: Sequence[Run]) -> pd.DataFrame:
    """A line per finding about the health of a run, judged from its committed metrics."""
    runs_by_id = {run.plan.id: run for run in runs}
    findings = [
        (run, finding)
        for run in runs_by_id.values()
        for finding in findings_of(StepStore(run.plan.root), run.plan.config)
    ]
    rows = [
        {
            "method": Variant(run.cell.method, run.cell.label).title,
            "agent": finding.agent,
            "finding": finding.title,
            "seed": str(run.cell.seed),
            "steps": f"{finding.begun_at} to {finding.ended_at or 'the end'}",
            "at its beginning": finding.text,
        }
        for run, finding in findings
    ]
    return pd.DataFrame(rows)
