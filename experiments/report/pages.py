"""A grid's report: results beside the paper's, missing cells with reasons, and the configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.planner import Cell, GridPlan
from experiments.published.tables import BENCHMARKS
from experiments.report import words
from experiments.report.appendix import audit_blocks
from experiments.report.cells import REFERENCE, Results, Run, Variant, read_results
from experiments.report.comparisons import (
    ENOUGH_SEEDS,
    cost_table,
    difference_table,
    gained_for_half,
    has_few_seeds,
    is_on_cpu,
    known,
    p_text,
)
from experiments.report.document import (
    Block,
    Bullets,
    Heading,
    Listing,
    Paragraph,
    Picture,
    to_html,
    to_markdown,
)
from experiments.report.figures import training_curves
from experiments.report.statistics import NUM_PAIRED_RESAMPLES
from experiments.report.tables import Printed, accuracy_table, exponent_table, printed_in, ratio_table
from flows.planning.compose import to_yaml
from hacpo_core.config import as_dict, flatten
from hacpo_core.store.files import write_atomically


def write_report(grid: GridPlan, folder: Path) -> Path:
    """Write `report.html` (self-contained), `report.md` and `figures/*.svg` into a folder.

    Returns:
        path of the HTML page.

    Raises:
        StoreError: the folder cannot be written. (An unreadable result is listed in the report as missing.)
    """
    title, blocks = grid.config.title, list(report_blocks(grid))
    texts = {folder / "report.html": to_html(title, blocks), folder / "report.md": to_markdown(title, blocks)}
    texts |= {folder / "figures" / f"{b.name}.svg": b.svg for b in blocks if isinstance(b, Picture)}
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return folder / "report.html"


def report_blocks(grid: GridPlan) -> Iterator[Block]:
    """All blocks of the report, in order."""
    layout = grid.config.report.table
    results, printed = read_results(grid), printed_in(layout)
    is_of_paper = layout != "plain"
    chosen = grid.config.report.benchmarks
    benchmarks = list(chosen) if chosen else results.benchmarks or (list(BENCHMARKS) if is_of_paper else [])
    if results.missing:
        yield Paragraph(_incomplete(results))
    yield Paragraph(_summary(results))
    yield from _versions(results.runs)
    yield from _questions(results)
    if layout.startswith("figure"):
        yield from _curves(results)
    if layout == "table4":
        yield exponent_table(results)
    elif layout == "table6":
        yield from _ratios(results, is_printed=True)
    else:
        yield Heading("Accuracy")
        yield Paragraph(words.ACCURACY)
        yield accuracy_table(results, printed, benchmarks)
    yield from _missing(results.missing)
    if results.runs:
        yield from _differences(results, benchmarks, printed, grid.config.report.against or [])
        yield from _costs(results, benchmarks)
        if layout != "table6":
            yield from _ratios(results, is_printed=False)
        if not layout.startswith("figure"):
            yield from _curves(results)
    if is_of_paper:
        yield from audit_blocks()
    yield from _settings(results)


def _incomplete(results: Results) -> str:
    states = Counter({cell.experiment: cell.status for cell in results.missing}.values())
    total = len({cell.experiment for cell in results.grid.cells})
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    return f"Incomplete: {states.total()} of {total} experiments have no result ({counts}); they are listed below."


def _summary(results: Results) -> str:
    cells = results.grid.cells
    done, total = len(results.runs), len(cells)
    experiments = len({cell.experiment for cell in cells})
    seeds = ", ".join(str(seed) for seed in results.grid.config.seeds)
    return (
        f"Grid {results.grid.name}: {done} of {total} cells (pair x method x seed x agent) are measured, from "
        f"{experiments} experiments. Seeds: {seeds}. Hardware: {results.grid.config.hardware}"
        f"{_devices(results.runs)}."
    )


def _devices(runs: Sequence[Run]) -> str:
    """Devices and dtypes that the runs used, to follow the name of the hardware file."""
    engines = [run.plan.config.engine for run in runs]
    used = dict.fromkeys(f"{engine.device} in {engine.dtype}" for engine in engines)
    return f" (run on {', '.join(used)})" if used else ""


def _versions(runs: Sequence[Run]) -> Iterator[Block]:
    by_version: dict[str, set[str]] = {}
    for run in runs:
        by_version.setdefault(run.version, set()).add(run.plan.id)
    if len(by_version) > 1:
        yield Paragraph(words.VERSIONS)
        yield Bullets(tuple(f"{version}: {', '.join(sorted(names))}" for version, names in by_version.items()))
    elif by_version:
        yield Paragraph(f"Produced by {next(iter(by_version))}.")
    if any(version.endswith("-dirty") for version in by_version):
        yield Paragraph(words.DIRTY)


def _questions(results: Results) -> Iterator[Block]:
    """Warn about benchmarks whose problems or settings differ between runs."""
    items = []
    for name in results.benchmarks:
        ids_by_version: dict[tuple[str, str], list[str]] = {}
        for run in results.runs:
            for result in (run.before.get(name), run.after.get(name)):
                if result is not None:
                    declared = json.dumps(result.declaration, sort_keys=True)
                    ids_by_version.setdefault((result.digest, declared), []).append(run.plan.id)
        if len(ids_by_version) > 1:
            items += [
                f"{name}, version {digest[:12]}: {', '.join(dict.fromkeys(ids))}"
                for (digest, _), ids in ids_by_version.items()
            ]
    if items:
        yield Paragraph(words.QUESTIONS)
        yield Bullets(tuple(items))


def _missing(cells: Sequence[Cell]) -> Iterator[Block]:
    if not cells:
        return
    yield Heading("Not measured")
    by_reason: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in cells:
        reason = cell.reason.strip().splitlines()[-1] if cell.reason.strip() else ""
        agents_by_run = by_reason.setdefault((cell.status, reason), {})
        agents_by_run.setdefault(f"{Variant(cell.method, cell.label).title} seed {cell.seed}", []).append(cell.agent)
    yield Bullets(
        tuple(
            f"{status}{': ' if reason else ''}{reason} — "
            + "; ".join(f"{name} ({', '.join(dict.fromkeys(agents))})" for name, agents in agents_by_run.items())
            for (status, reason), agents_by_run in by_reason.items()
        )
    )


def _differences(
    results: Results, benchmarks: Sequence[str], printed: Printed, against: Sequence[str]
) -> Iterator[Block]:
    """HACPO against all others; or, if the grid names baselines, all others against each of them."""
    comparisons: dict[str, list[tuple[Variant, Variant]]] = {}
    if against:
        for baseline in map(Variant, against):
            others = [variant for variant in results.variants if variant != baseline]
            comparisons[f"The other methods against {baseline.title}"] = [(other, baseline) for other in others]
    elif REFERENCE in results.variants:
        others = [variant for variant in results.variants if variant != REFERENCE]
        comparisons[f"{REFERENCE.title} against the other methods"] = [(REFERENCE, other) for other in others]
    tables = {title: difference_table(results, printed, benchmarks, pairs) for title, pairs in comparisons.items()}
    for number, (title, table) in enumerate((title, table) for title, table in tables.items() if table is not None):
        yield Heading(title)
        if number == 0:
            yield Paragraph(words.DIFFERENCES.format(resamples=NUM_PAIRED_RESAMPLES))
        yield table
        if has_few_seeds(table):
            yield Paragraph(words.FEW.format(enough=ENOUGH_SEEDS))


def _costs(results: Results, benchmarks: Sequence[str]) -> Iterator[Block]:
    yield Heading("Cost per point of accuracy")
    yield Paragraph(words.COSTS)
    if not all(map(is_on_cpu, results.runs)):
        yield Paragraph(words.GPU_HOURS)
    if any(map(is_on_cpu, results.runs)):
        yield Paragraph(words.CPU_HOURS)
    yield cost_table(results, benchmarks)
    items = []
    for pair, (share, lead) in gained_for_half(results, benchmarks).items():
        tokens = known(share, ".2f")
        ahead = lead if isinstance(lead, str) else f"{100 * lead.value:+.1f} points (p {p_text(lead.p_value)})"
        items.append(f"{pair}: HACPO samples {tokens} times the tokens of GSPO x 2; HACPO − GSPO x 2: {ahead}.")
    if items:
        yield Paragraph(words.HALF)
        yield Bullets(tuple(items))


def _ratios(results: Results, *, is_printed: bool) -> Iterator[Block]:
    table = ratio_table(results, is_printed=is_printed)
    if not table.rows:
        return
    yield Heading("Ratios of own and cross-agent responses")
    yield Paragraph(words.RATIOS)
    yield table


def _curves(results: Results) -> Iterator[Block]:
    pictures = list(training_curves(results))
    if pictures:
        yield Heading("Training curves")
        yield Paragraph(words.CURVES)
        yield from pictures


def _settings(results: Results) -> Iterator[Block]:
    """The complete configuration of one experiment, and the differences of each other one."""
    plans = results.grid.plans
    if not plans:
        return
    chosen = next((plan for plan in plans.values() if plan.config.method.name == REFERENCE.method), None)
    first = chosen or next(iter(plans.values()))
    base = flatten(as_dict(first.config))
    yield Heading("Settings")
    yield Paragraph(f"All fields of {first.id}:")
    yield Listing(to_yaml(first.config))
    lines = []
    for plan in plans.values():
        fields = flatten(as_dict(plan.config))
        changed = [
            f"{name}={value}"
            for name, value in fields.items()
            if not name.startswith("pair.") and (name not in base or base[name] != value)
        ]
        if plan is not first:
            lines.append(f"{plan.id}: {', '.join(changed) or 'no difference'}")
    if lines:
        yield Paragraph("Differences of the other experiments, apart from their agents:")
        yield Listing("\n".join(lines))
