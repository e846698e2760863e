"""What Prefect costs of a step: the same experiment under the direct runner and as Prefect tasks, A B A B.

Usage: python benchmarks/prefect_share.py [--steps 15] [--rounds 2]; writes benchmarks/results/prefect_share.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from flows.build import find_plan
from flows.server import stop_server
from hacpo_core.store import StepStore

RESULTS = Path(__file__).parent / "results" / "prefect_share.json"


def step_seconds(runner: str, steps: int, runs_dir: Path, seed: int) -> list[float]:
    """Seconds from one step's end to the next one's, the first (warm-up) left out."""
    words = [f"runtime.runs_dir={runs_dir}", f"runtime.runner={runner}", f"train.num_steps={steps}", f"seed={seed}"]
    words += ["tracking.enabled=false", f"checkpoint.every={steps}", "diagnostics.every=0"]
    command = [sys.executable, "-m", "flows.cli", "train", "tiny", "hacpo", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    store = StepStore(find_plan(runs_dir, result["id"]).root)
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in range(1, steps + 1)]
    return [after - before for before, after in itertools.pairwise(ends)]


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", type=Path, help="folder of warm models, to save the warm-up")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"direct": [], "prefect": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        for seed in range(options.rounds):
            for runner, found in seconds.items():
                runs_dir = Path(folder) / runner
                if not runs_dir.exists():
                    runs_dir.mkdir()
                    (runs_dir / "models").symlink_to(options.models or Path(folder) / "models")
                found += step_seconds(runner, options.steps, runs_dir, seed)
        stop_server(Path(folder) / "prefect")
    medians = {runner: statistics.median(found) for runner, found in seconds.items()}
    means = {runner: statistics.fmean(found) for runner, found in seconds.items()}
    result = {
        "experiment": "tiny hacpo, both agents, one thread",
        "steps_per_runner": len(seconds["direct"]),
        "median_s": medians,
        "mean_s": means,
        "share_of_median": medians["prefect"] / medians["direct"] - 1.0,
        "share_of_mean": means["prefect"] / means["direct"] - 1.0,
        "versions": {name: version(name) for name in ("prefect", "torch", "transformers")},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
