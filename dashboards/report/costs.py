"""The cost per point of accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboards.report.cells import REFERENCE, Results, Run, Variant, average
from dashboards.report.differences import Finals
from dashboards.report.statistics import p_text
from dashboards.report.tables import number_text


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
    teams = [[by_seed[seed] for by_seed in runs] for seed in seeds]
    if not teams:
        return None

    def mean(totals: Sequence[float]) -> float:
        return float(np.mean(totals))

    return Cost(
        sampled_tokens=mean([sum(run.total("tokens/sampled") for run in team) for team in teams]),
        trained_tokens=mean([sum(run.total("tokens/trained") for run in team) for team in teams]),
        gpu_hours=mean([sum(map(gpu_hours, team)) for team in teams]),
        points=mean(
            [sum(100 * (average(r.after, benchmarks) - average(r.before, benchmarks)) for r in team) for team in teams]
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


def cost_table(results: Results, benchmarks: Sequence[str]) -> pd.DataFrame:
    """Tokens and GPU-hours of every method, in total and per point of accuracy gained; no hours on the CPU."""
    rows = []
    for pair in results.pairs:
        costs = {variant: pair_cost(results, pair, variant, benchmarks) for variant in results.variants}
        rows += [
            [pair, variant.title, *_figures(cost, costs.get(REFERENCE))]
            for variant, cost in costs.items()
            if cost is not None
        ]
    columns = [
        "pair", "method", "sampled tokens", "relative to HACPO", "trained tokens", "points gained per agent",
        "sampled tokens per point", "seeds", "GPU-hours", "GPU-hours per point",
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns)
    return frame.iloc[:, :-2] if all(map(is_on_cpu, results.runs)) else frame


def is_on_cpu(run: Run) -> bool:
    """Whether a run used the CPU."""
    return run.plan.config.engine.device == "cpu"


def _figures(cost: Cost, reference: Cost | None) -> list[str]:
    return [
        _tokens_text(cost.sampled_tokens),
        number_text(tokens_share(cost, reference), ".2f", " x"),
        _tokens_text(cost.trained_tokens),
        number_text(cost.points / cost.num_agents, "+.1f"),
        "no gain" if cost.points <= 0 else _tokens_text(cost.sampled_tokens / cost.points),
        str(cost.num_seeds),
        number_text(cost.gpu_hours, ".3g"),
        "no gain" if cost.points <= 0 else number_text(cost.gpu_hours / cost.points, ".3g"),
    ]


def tokens_share(cost: Cost, reference: Cost | None) -> float:
    """Sampled tokens relative to the reference's; nan if either is unknown or the reference sampled none."""
    return cost.sampled_tokens / reference.sampled_tokens if reference and reference.sampled_tokens else math.nan


def _tokens_text(value: float) -> str:
    """A number of tokens with an SI prefix."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return number_text(value, ".0f")


def gained_for_half(results: Results, finals: Finals) -> list[str]:
    """Check of "half the rollout cost", a line per pair: HACPO's tokens relative to GSPO x 2, and its lead."""
    twice = Variant("gspo_x2")
    lines = []
    for pair in results.pairs:
        ours, theirs = (pair_cost(results, pair, variant, finals.benchmarks) for variant in (REFERENCE, twice))
        if ours is None or theirs is None:
            continue
        lead = finals.difference(REFERENCE, twice, [(pair, agent) for agent in results.agents(pair)])
        lead_text = lead if isinstance(lead, str) else f"{lead.value:+.1f} points (p {p_text(lead.p_value)})"
        share = number_text(tokens_share(ours, theirs), ".2f")
        lines.append(f"{pair}: HACPO samples {share} times the tokens of GSPO x 2; HACPO − GSPO x 2: {lead_text}.")
    return lines
