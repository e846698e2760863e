"""Paired differences between methods, and the cost per point of accuracy.

Shapes: A agent, S seed, P problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.published.tables import AVERAGE
from experiments.report.cells import REFERENCE, Results, Run, Variant, average, paired_scores
from experiments.report.document import Section, Table, TableCell
from experiments.report.statistics import Difference, holm, paired_bootstrap
from experiments.report.tables import DASH, Printed
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.metrics import Floats

ALL = "all agents"
_FEW_SEEDS = "few"
ENOUGH_SEEDS = 5
HOURS = ("GPU-hours", "GPU-hours per point")
_PairAgent = tuple[str, str]


def paired_difference(
    results: Results, ours: Variant, theirs: Variant, places: Sequence[_PairAgent], benchmarks: Sequence[str]
) -> Difference | str:
    """Ours − theirs over some (pair, agent) places, on the seeds that all of them have for both methods.

    Returns:
        difference in units of accuracy, or the reason why there is none.
    """
    runs = [(results.of(*place, ours), results.of(*place, theirs)) for place in places]
    common = [set(a) & set(b) for a, b in runs]
    seeds = sorted(set.intersection(*common)) if common else []
    if not seeds or not benchmarks:
        return "no common seed"
    if all(a[s].cell.experiment == b[s].cell.experiment for a, b in runs for s in seeds):
        return "same experiments"
    difference_ASP: dict[str, Floats] = {}
    for name in benchmarks:
        if any(name not in by_seed[s].after for pair in runs for by_seed in pair for s in seeds):
            return f"no evaluation on {name}"
        try:
            rows = [paired_scores(results, [a[s] for s in seeds], [b[s] for s in seeds], name) for a, b in runs]
        except StoreError as error:
            return f"responses cannot be read: {error}"
        answered = [row for row in rows if row is not None]
        if len(answered) < len(rows) or len({row.shape for row in answered}) > 1:
            return "different problems"
        difference_ASP[name] = np.stack(answered)
        if np.isnan(difference_ASP[name]).any(axis=(0, 1)).all():
            return "no problem scored in both"
    return paired_bootstrap(difference_ASP)


@dataclass(frozen=True, slots=True)
class _Row:
    """A difference for one agent, or over all agents of all pairs (`pair` is then `ALL`)."""

    pair: str
    agent: str
    difference: Difference | str
    leads: Sequence[float | None]
    """the paper's leads, in points"""


def difference_table(
    results: Results, printed: Printed, benchmarks: Sequence[str], comparisons: Sequence[tuple[Variant, Variant]]
) -> Table | None:
    """One section per comparison of two methods, one row per agent and one over all; None without comparisons.

    p-values are corrected by Holm's procedure, separately for rows of single agents and rows over all agents.
    """
    sections = {
        f"{ours.title} − {theirs.title}": _compared(results, printed, benchmarks, ours, theirs)
        for ours, theirs in comparisons
    }
    if not sections:
        return None
    every = [row for rows in sections.values() for row in rows]
    corrected: dict[int, float] = {}
    for is_joint in (False, True):
        family = [row for row in every if isinstance(row.difference, Difference) and (row.pair == ALL) == is_joint]
        p_values = [row.difference.p_value for row in family if isinstance(row.difference, Difference)]
        corrected |= zip(map(id, family), holm(p_values), strict=True)
    lines: list[Section | tuple[TableCell, ...]] = []
    for title, rows in sections.items():
        lines.append(Section(title))
        lines += [_difference_row(row, corrected.get(id(row), math.nan)) for row in rows]
    columns = ["pair", "agent", "points", "95 % interval", "p", "p, Holm", "sd of seeds", "power, 1 point", "seeds"]
    columns += ["problems", "dropped"]
    if not printed:
        return Table(
            tuple(columns), tuple(row if isinstance(row, Section) else row[:-1] for row in lines), num_labels=2
        )
    return Table((*columns, "paper, points"), tuple(lines), num_labels=2)


def _compared(
    results: Results, printed: Printed, benchmarks: Sequence[str], ours: Variant, theirs: Variant
) -> list[_Row]:
    places = [place for place in results.places if all(results.holds(place, variant) for variant in (ours, theirs))]
    rows = [
        _Row(
            *place,
            paired_difference(results, ours, theirs, [place], benchmarks),
            [_printed_lead(printed, place, ours, theirs)],
        )
        for place in places
    ]
    if len(places) > 1:
        leads = [_printed_lead(printed, place, ours, theirs) for place in places]
        rows.append(_Row(ALL, "", paired_difference(results, ours, theirs, places, benchmarks), leads))
    return rows


def _printed_lead(printed: Printed, place: _PairAgent, ours: Variant, theirs: Variant) -> float | None:
    ahead, behind = (printed.get((*place, variant.method, AVERAGE)) for variant in (ours, theirs))
    return None if ahead is None or behind is None or ours.label or theirs.label else 100 * (ahead - behind)


def _difference_row(row: _Row, corrected_p: float) -> tuple[TableCell, ...]:
    printed, difference = [lead for lead in row.leads if lead is not None], row.difference
    paper = f"{sum(printed) / len(row.leads):+.1f}" if row.leads and len(printed) == len(row.leads) else ""
    if isinstance(difference, str):
        figures = [TableCell(f"{DASH} ({difference})"), *[TableCell(DASH)] * 8]
    else:
        figures = [
            TableCell(f"{100 * difference.value:+.1f}"),
            TableCell(f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"),
            TableCell(p_text(difference.p_value).removeprefix("= ")),
            TableCell(p_text(corrected_p).removeprefix("= ")),
            TableCell(known(100 * difference.seed_std, ".1f")),
            TableCell(known(100 * difference.power(0.01), ".0f", " %")),
            TableCell(str(difference.num_seeds), _FEW_SEEDS if difference.num_seeds < ENOUGH_SEEDS else ""),
            TableCell(f"{difference.num_problems:,}"),
            TableCell(str(difference.num_dropped)),
        ]
    return (TableCell(row.pair), TableCell(row.agent), *figures, TableCell(paper))


def p_text(p_value: float) -> str:
    """A p-value as "= 0.012" or "< 0.001", which is near the resolution of the resamples."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


def has_few_seeds(table: Table) -> bool:
    """Whether a row of a table of differences has fewer than ENOUGH_SEEDS seeds."""
    return any(cell.note == _FEW_SEEDS for row in table.rows if not isinstance(row, Section) for cell in row)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of training a pair with a method: mean over seeds, sum over agents.

    `points` is the gain in accuracy, in points (1/100), summed over agents. Unknown values are nan, and so are
    `gpu_hours` on the CPU.
    """

    sampled_tokens: float
    trained_tokens: float
    gpu_hours: float
    points: float
    num_agents: int
    num_seeds: int


def pair_cost(results: Results, pair: str, variant: Variant, benchmarks: Sequence[str]) -> Cost | None:
    """Cost over the seeds that every agent of the pair has; None if there are none."""
    agents = results.agents(pair)
    runs = [results.of(pair, agent, variant) for agent in agents]
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs)))
    chosen = [[by_seed[seed] for by_seed in runs] for seed in seeds]
    if not chosen:
        return None

    def mean(totals: Sequence[float]) -> float:
        return float(np.mean(totals))

    return Cost(
        sampled_tokens=mean([sum(run.total("tokens/sampled") for run in team) for team in chosen]),
        trained_tokens=mean([sum(run.total("tokens/trained") for run in team) for team in chosen]),
        gpu_hours=mean([sum(map(gpu_hours, team)) for team in chosen]),
        points=mean(
            [sum(100 * (average(r.after, benchmarks) - average(r.before, benchmarks)) for r in team) for team in chosen]
        ),
        num_agents=len(agents),
        num_seeds=len(seeds),
    )


def gpu_hours(run: Run) -> float:
    """GPU-hours of a run's models; nan on the CPU, where only wall time is measured."""
    if is_on_cpu(run):
        return math.nan
    teach_s = run.total("gpu/teach_s")  # nan without teachers
    seconds = sum(run.total(f"gpu/{phase}_s") for phase in ("rollout", "update"))
    return (seconds + (0.0 if math.isnan(teach_s) else teach_s)) / 3600


def cost_table(results: Results, benchmarks: Sequence[str]) -> Table:
    """One section per pair: tokens and GPU-hours of every method, in total and per point of accuracy gained.

    The hours are omitted if all runs are on the CPU.
    """
    rows: list[Section | tuple[TableCell, ...]] = []
    for pair in results.pairs:
        costs = {variant: pair_cost(results, pair, variant, benchmarks) for variant in results.variants}
        known_costs = {variant: cost for variant, cost in costs.items() if cost is not None}
        if known_costs:
            rows.append(Section(pair))
            rows += [_cost_row(variant, cost, known_costs.get(REFERENCE)) for variant, cost in known_costs.items()]
    columns = ("method", "sampled tokens", "relative to HACPO", "trained tokens", "points gained per agent")
    table = Table((*columns, "sampled tokens per point", "seeds", *HOURS), tuple(rows))
    if not all(map(is_on_cpu, results.runs)):
        return table
    kept = len(table.columns) - len(HOURS)
    return Table(table.columns[:kept], tuple(row if isinstance(row, Section) else row[:kept] for row in rows))


def is_on_cpu(run: Run) -> bool:
    """Whether a run used the CPU."""
    return run.plan.config.engine.device == "cpu"


def _cost_row(variant: Variant, cost: Cost, reference: Cost | None) -> tuple[TableCell, ...]:
    texts = (
        variant.title,
        _tokens_text(cost.sampled_tokens),
        known(tokens_share(cost, reference), ".2f", " x"),
        _tokens_text(cost.trained_tokens),
        known(cost.points / cost.num_agents, "+.1f"),
        "no gain" if cost.points <= 0 else _tokens_text(cost.sampled_tokens / cost.points),
        str(cost.num_seeds),
        known(cost.gpu_hours, ".3g"),
        "no gain" if cost.points <= 0 else known(cost.gpu_hours / cost.points, ".3g"),
    )
    return tuple(TableCell(text) for text in texts)


def tokens_share(cost: Cost, reference: Cost | None) -> float:
    """Sampled tokens relative to the reference's; nan if either is unknown or the reference sampled none."""
    return cost.sampled_tokens / reference.sampled_tokens if reference and reference.sampled_tokens else math.nan


def known(value: float, form: str, unit: str = "") -> str:
    """A number with its unit, or a dash for nan."""
    return DASH if math.isnan(value) else f"{value:{form}}{unit}"


def _tokens_text(value: float) -> str:
    """A number of tokens with an SI prefix."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return known(value, ".0f")


def gained_for_half(results: Results, benchmarks: Sequence[str]) -> Mapping[str, tuple[float, Difference | str]]:
    """Check of "half the rollout cost": by pair, HACPO's sampled tokens relative to GSPO x 2, and its lead."""
    by_pair = {}
    for pair in results.pairs:
        ours = pair_cost(results, pair, REFERENCE, benchmarks)
        theirs = pair_cost(results, pair, Variant("gspo_x2"), benchmarks)
        if ours is not None and theirs is not None:
            places = [(pair, agent) for agent in results.agents(pair)]
            lead = paired_difference(results, REFERENCE, Variant("gspo_x2"), places, benchmarks)
            by_pair[pair] = (tokens_share(ours, theirs), lead)
    return by_pair
