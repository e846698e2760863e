"""Print a grid: the state of each cell, and what the experiments that are left will cost."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import pandas as pd

from flows.grids.estimate import CostEstimate, estimate
from flows.grids.planner import GridPlan, matrix
from flows.planning.plans import Plan
from flows.service.experiment_state import STATES

_log = logging.getLogger(__name__)
Selection = Literal["missing", "failed", "all"]
SELECTED: dict[Selection, tuple[str, ...]] = {
    "missing": ("missing",),
    "failed": ("failed",),
    "all": ("missing", "failed"),
}
"""states of the experiments that a selection runs"""


def show_grid(grid: GridPlan, selection: Selection) -> None:
    """Print the state of each cell, why cells are not done, and the estimated cost of the selected experiments."""
    plans_to_run = grid.experiments(*SELECTED[selection])
    cost = {"to run": estimate(grid, plans_to_run), "whole grid": estimate(grid, grid.experiments())}
    print(grid.config.title)
    print(pd.DataFrame(matrix(grid)).to_string(index=False))
    print()
    print_states(grid)
    for name, cost_estimate in cost.items():
        print(f"{name:<11}{_cost_text(cost_estimate, grid)}")


def print_states(grid: GridPlan) -> None:
    """Print how many experiments are in each state, and why some cannot be run or failed."""
    counts = count_experiments(grid)
    print(f"{experiments_text(sum(counts.values()))}: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n))
    states = [grid.states[cell.experiment] for cell in grid.cells]
    reasons = Counter(state.reason for state in states if state.state in ("failed", "unavailable"))
    for reason, number in reasons.items():
        print(f"  {number} {'cell' if number == 1 else 'cells'}: {reason}")


def count_experiments(grid: GridPlan) -> dict[str, int]:
    """Number of experiments in each state."""
    counts = Counter(state.state for state in grid.states.values())
    return {state: counts[state] for state in STATES}


def _cost_text(cost: CostEstimate, grid: GridPlan) -> str:
    if not cost.experiments:
        return "nothing"
    rates, device = grid.config.rates, "GPU" if uses_gpu(list(grid.plans.values())) else "core"
    hours = "hours unknown"
    if cost.busy_hours is not None:
        hours = f"{cost.occupied_hours:,.1f} {device}-hours occupied, {cost.busy_hours:,.1f} of them busy"
    basis = "no rates are stated, so tokens are those of responses at their limits" if rates is None else rates.source
    return (
        f"{experiments_text(cost.experiments)}, {cost.rollouts:,} rollouts, "
        f"{cost.evaluation_responses:,} evaluation responses, "
        f"{cost.sampled_tokens:,.0f} tokens sampled, {cost.trained_tokens:,.0f} trained on, "
        f"{hours} ({basis}), checkpoints of {cost.disk_gib:,.1f} GiB, {cost.disk_training_gib:,.1f} while one trains"
    )


def uses_gpu(plans: Sequence[Plan]) -> bool:
    """Whether any of the experiments runs its models on a GPU."""
    return any(plan.config.engine.device != "cpu" for plan in plans)


def experiments_text(number: int) -> str:
    """The number with its noun."""
    return f"{number} experiment" if number == 1 else f"{number} experiments"
