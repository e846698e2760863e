"""HACPO against every other method, paired; and what a point of accuracy costs.

Shapes: A agent, S seed, P problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.published.tables import AVERAGE
from experiments.report.cells import REFERENCE, Results, Run, Variant, average, paired_scores
from experiments.report.document import Section, Table, TableCell
from experiments.report.statistics import Difference, Floats, paired_bootstrap
from experiments.report.tables import DASH, Printed
from hacpo_core.errors import StoreError

ALL = "all agents"
Place = tuple[str, str]


def compare(results: Results, other: Variant, places: Sequence[Place], benchmarks: Sequence[str]) -> Difference | str:
    """HACPO − other over some places, on the seeds that all of them have of both methods.

    Returns:
        in units of accuracy, or why there is none.
    """
    runs = [(results.of(*place, REFERENCE), results.of(*place, other)) for place in places]
    common = [set(ours) & set(theirs) for ours, theirs in runs]
    seeds = sorted(set.intersection(*common)) if common else []
    if not seeds or not benchmarks:
        return "no seed of both"
    difference_ASP: dict[str, Floats] = {}
    for name in benchmarks:
        if any(name not in found[s].after for pair in runs for found in pair for s in seeds):
            return f"no evaluation on {name}"
        try:
            rows = [paired_scores(results, [a[s] for s in seeds], [b[s] for s in seeds], name) for a, b in runs]
        except StoreError as error:
            return f"responses cannot be read: {error}"
        known = [row for row in rows if row is not None]
        if len(known) < len(rows) or len({row.shape for row in known}) > 1:
            return "other problems"
        difference_ASP[name] = np.stack(known)
    return paired_bootstrap(difference_ASP)


def difference_table(results: Results, printed: Printed, benchmarks: Sequence[str]) -> Table | None:
    """One section per other method, one row per agent and one over all; None where there is nothing to compare."""
    others = [variant for variant in results.variants if variant != REFERENCE]
    if REFERENCE not in results.variants or not others:
        return None
    rows: list[Section | tuple[TableCell, ...]] = []
    for other in others:
        rows.append(Section(f"{REFERENCE.title} − {other.title}"))
        places = [place for place in results.places if _has_both(results, place, other)]
        for pair, agent in places:
            leads = [_printed_lead(printed, (pair, agent), other)]
            rows.append(_difference_row(pair, agent, compare(results, other, [(pair, agent)], benchmarks), leads))
        if len(places) > 1:
            leads = [_printed_lead(printed, place, other) for place in places]
            rows.append(_difference_row(ALL, "", compare(results, other, places, benchmarks), leads))
    columns = ["pair", "agent", "points", "95 % interval", "p", "seeds", "problems", "dropped"]
    if not printed:
        return Table(tuple(columns), tuple(row if isinstance(row, Section) else row[:-1] for row in rows), num_labels=2)
    return Table((*columns, "paper, points"), tuple(rows), num_labels=2)


def _has_both(results: Results, place: Place, other: Variant) -> bool:
    found = {(c.method, c.label) for c in results.grid.cells if (c.pair, c.agent) == place}
    return {(REFERENCE.method, REFERENCE.label), (other.method, other.label)} <= found


def _printed_lead(printed: Printed, place: Place, other: Variant) -> float | None:
    ours, theirs = printed.get((*place, REFERENCE.method, AVERAGE)), printed.get((*place, other.method, AVERAGE))
    return None if ours is None or theirs is None or other.label else 100 * (ours - theirs)


def _difference_row(
    pair: str, agent: str, found: Difference | str, leads: Sequence[float | None]
) -> tuple[TableCell, ...]:
    known = [lead for lead in leads if lead is not None]
    paper = f"{sum(known) / len(known):+.1f}" if known and len(known) == len(leads) else ""
    if isinstance(found, str):
        figures = [f"{DASH} ({found})", *[DASH] * 5]
    else:
        figures = [
            f"{100 * found.value:+.1f}",
            f"{100 * found.low:+.1f} to {100 * found.high:+.1f}",
            "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}",
            str(found.num_seeds),
            f"{found.num_problems:,}",
            str(found.num_dropped),
        ]
    return tuple(TableCell(text) for text in (pair, agent, *figures, paper))


@dataclass(frozen=True, slots=True)
class Cost:
    """What training a pair with a method took, mean over seeds, all agents together.

    `points` is the accuracy gained, in points, summed over the agents. `device_hours` are GPU-hours, or seconds of the
    phases x threads where the device is the CPU.
    """

    sampled_tokens: float
    trained_tokens: float
    device_hours: float
    points: float
    num_agents: int
    num_seeds: int


def pair_cost(results: Results, pair: str, variant: Variant, benchmarks: Sequence[str]) -> Cost | None:
    """Cost over the seeds that every agent of the pair has; None where there is none."""
    agents = [agent for where, agent in results.places if where == pair]
    runs = [results.of(pair, agent, variant) for agent in agents]
    seeds = sorted(set.intersection(*(set(found) for found in runs)))
    chosen = [[found[seed] for found in runs] for seed in seeds]
    if not chosen:
        return None

    def mean(totals: Sequence[float]) -> float:
        return float(np.mean(totals))

    return Cost(
        sampled_tokens=mean([sum(run.total("tokens/sampled") for run in one) for one in chosen]),
        trained_tokens=mean([sum(run.total("tokens/trained") for run in one) for one in chosen]),
        device_hours=mean([sum(map(device_hours, one)) for one in chosen]),
        points=mean(
            [sum(100 * (average(r.after, benchmarks) - average(r.before, benchmarks)) for r in one) for one in chosen]
        ),
        num_agents=len(agents),
        num_seeds=len(seeds),
    )


def device_hours(run: Run) -> float:
    """GPU-hours of a run's rollouts and updates; on the CPU, hours of its phases x threads."""
    engine = run.plan.config.engine
    if engine.device == "cpu":
        seconds = sum(run.total(f"time/{phase}_s") for phase in ("rollout", "verify", "update"))
        return seconds * engine.num_threads / 3600
    return sum(run.total(f"gpu/{phase}_s") for phase in ("rollout", "update")) / 3600


def cost_table(results: Results, benchmarks: Sequence[str]) -> Table:
    """One section per pair: tokens and hours of every method, and per point of accuracy gained."""
    devices = {"CPU" if run.plan.config.engine.device == "cpu" else "GPU" for run in results.runs}
    device = "/".join(sorted(devices)) or "GPU"
    rows: list[Section | tuple[TableCell, ...]] = []
    for pair in dict.fromkeys(pair for pair, _ in results.places):
        costs = {variant: pair_cost(results, pair, variant, benchmarks) for variant in results.variants}
        found = {variant: cost for variant, cost in costs.items() if cost is not None}
        if found:
            rows.append(Section(pair))
            rows += [_cost_row(variant, cost, found.get(REFERENCE)) for variant, cost in found.items()]
    columns = ("method", "sampled tokens", "of HACPO's", "trained tokens", f"{device}-hours", "points gained per agent")
    return Table((*columns, "sampled tokens per point", f"{device}-hours per point", "seeds"), tuple(rows))


def _cost_row(variant: Variant, cost: Cost, reference: Cost | None) -> tuple[TableCell, ...]:
    share = f"{cost.sampled_tokens / reference.sampled_tokens:.2f} x" if reference else DASH
    is_gain = cost.points > 0
    texts = (
        variant.title,
        count(cost.sampled_tokens),
        share,
        count(cost.trained_tokens),
        f"{cost.device_hours:.3g}",
        f"{cost.points / cost.num_agents:+.1f}",
        count(cost.sampled_tokens / cost.points) if is_gain else "no gain",
        f"{cost.device_hours / cost.points:.3g}" if is_gain else "no gain",
        str(cost.num_seeds),
    )
    return tuple(TableCell(text) for text in texts)


def count(value: float) -> str:
    """A number of tokens with its unit."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def gained_for_half(results: Results, benchmarks: Sequence[str]) -> Mapping[str, tuple[float, Difference | str]]:
    """The claim of half the rollout cost: by pair, HACPO's share of GSPO x 2's sampled tokens, and its lead."""
    found = {}
    for pair in dict.fromkeys(pair for pair, _ in results.places):
        ours = pair_cost(results, pair, REFERENCE, benchmarks)
        theirs = pair_cost(results, pair, Variant("gspo_x2"), benchmarks)
        if ours is not None and theirs is not None:
            places = [place for place in results.places if place[0] == pair]
            lead = compare(results, Variant("gspo_x2"), places, benchmarks)
            found[pair] = (ours.sampled_tokens / theirs.sampled_tokens, lead)
    return found
