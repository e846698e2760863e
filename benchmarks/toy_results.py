"""Result and cost of every method of the grid `tiny_methods`, relative to GSPO, for docs/methods.md.

Usage: python -m benchmarks.toy_results --runs-dir RUNS; writes docs/results/tiny_methods.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from experiments.planner import plan_grid
from experiments.report.cells import Results, Variant, read_results
from experiments.report.costs import pair_cost
from experiments.report.differences import paired_difference
from experiments.report.statistics import Difference, holm
from flows.planning.method_table import RESULTS

BASELINE, BENCHMARK = Variant("gspo"), "arithmetic_test"


def _costs(results: Results, variant: Variant) -> dict[str, float]:
    """Sampled and trained tokens of all pairs, relative to the baseline's."""
    costs = [
        (pair_cost(results, pair, variant, [BENCHMARK]), pair_cost(results, pair, BASELINE, [BENCHMARK]))
        for pair in results.pairs
    ]
    known = [(ours, theirs) for ours, theirs in costs if ours is not None and theirs is not None]
    return {
        kind: sum(getattr(ours, kind) for ours, _ in known) / sum(getattr(theirs, kind) for _, theirs in known)
        for kind in ("sampled_tokens", "trained_tokens")
    }


def measure(results: Results) -> pd.DataFrame:
    """One row per method: points ahead of GSPO over all agents with interval and p-values, and relative tokens."""
    rows = []
    for variant in results.variants:
        row: dict[str, object] = {"method": variant.method, **_costs(results, variant)}
        if variant != BASELINE:
            difference = paired_difference(results, variant, BASELINE, results.places, [BENCHMARK])
            if not isinstance(difference, Difference):
                raise SystemExit(f"{variant.title}: {difference}; complete the grid tiny_methods first")
            row |= {"points": 100 * difference.value, "low": 100 * difference.low, "high": 100 * difference.high}
            row |= {"p": difference.p_value, "seeds": difference.num_seeds}
        rows.append(row)
    frame = pd.DataFrame(rows)
    is_compared = frame["p"].notna()
    frame.loc[is_compared, "p_holm"] = holm(frame.loc[is_compared, "p"].tolist())
    return frame


def main() -> None:
    """Read the grid's runs and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    frame = measure(read_results(plan_grid("tiny_methods", runs_dir=parser.parse_args().runs_dir)))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    frame.round(4).to_csv(RESULTS, index=False)
    print(frame.to_string(index=False))


if __name__ == "__main__":
    main()
