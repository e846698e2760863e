"""What Prefect costs of a step: the same experiment under the direct runner and as Prefect tasks, A B A B.

Usage: python -m benchmarks.prefect_share [--steps 20] [--rounds 3]; writes benchmarks/results/prefect_share.json.
"""

from __future__ import annotations

from benchmarks.measure import write_result
from benchmarks.trainings import options, step_seconds, summary


def main() -> None:
    """Measure and write the result."""
    conditions = {runner: [f"runtime.runner={runner}"] for runner in ("direct", "prefect")}
    found = summary(step_seconds(conditions, pair="tiny", asked=options(steps=20, rounds=3)))
    shares = {
        f"share_of_{kind}": found[f"{kind}_s"]["prefect"] / found[f"{kind}_s"]["direct"] - 1
        for kind in ("median", "mean")
    }
    title = {"experiment": "tiny hacpo, both agents, one thread"}
    write_result("prefect_share", title | found | shares, ["prefect", "torch", "transformers"])


if __name__ == "__main__":
    main()
