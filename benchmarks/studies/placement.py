"""Step time with both agents in one process, and with each in a Ray actor, measured alternately.

In `tiny` and `tiny_size` the second agent is slower in all phases; in `opposite` the first agent is the slower sampler
(deep and narrow) and the second the slower learner (wide and shallow).

Usage: python -m benchmarks.studies.placement [--steps 20] [--rounds 2]; writes benchmarks/results/placement.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import write_result
from flows.planning.plans import find_plan
from hacpo_core.store.steps import StepStore

CONDITIONS = {
    "one process": ["runtime.runner=direct"],
    "two actors": ["runtime.runner=direct", "placement.kind=ray"],
}
OPPOSITE = """
extends: _tiny
pair:
  name: opposite
  agents:
    deep:
      tiny: {family: qwen3, hidden_size: 48, num_layers: 8}
      warm_up: &sums {source: arithmetic, template: "{problem}", num_steps: 100, learning_rate: 4.0e-3}
    wide:
      tiny: {family: llama, tokenizer: merged, hidden_size: 256, num_layers: 1}
      warm_up: *sums
"""


def _step_seconds(
    conditions: Mapping[str, Sequence[str]], *, pair: str, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Step times in every condition without the first step of each run, s; conditions alternate.

    Args:
        conditions: configuration overrides by name.
        pair: name or YAML file; trained with HACPO.
        arguments: of the command line.
    """
    seconds: dict[str, list[float]] = {name: [] for name in conditions}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        for seed, (name, overrides) in itertools.product(range(arguments.rounds), conditions.items()):
            runs_dir = Path(folder) / name.replace(" ", "-")
            if not runs_dir.exists():
                runs_dir.mkdir()
                (runs_dir / "models").symlink_to((arguments.models or Path(folder) / "models").absolute())
            seconds[name] += _train(pair, [*overrides, f"seed={seed}"], arguments.steps, runs_dir)
    return seconds


def _train(pair: str, overrides: Sequence[str], steps: int, runs_dir: Path) -> list[float]:
    common = [f"runtime.runs_dir={runs_dir}", f"train.num_steps={steps}", "tracking.enabled=false"]
    common += [f"checkpoint.every={steps}", "diagnostics.every=0", "evaluate.during=[]"]
    command = [sys.executable, "-m", "flows.cli", "train", pair, "hacpo", *common, *overrides, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    store = StepStore(find_plan(runs_dir, json.loads(done.stdout.splitlines()[-1])["id"]).root)
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in range(1, steps + 1)]
    return [after - before for before, after in itertools.pairwise(ends)]


def _summary(seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Number of steps, median and mean step time of every condition."""
    return {
        "steps": {name: len(times) for name, times in seconds.items()},
        "median_s": {name: statistics.median(times) for name, times in seconds.items()},
        "mean_s": {name: statistics.fmean(times) for name, times in seconds.items()},
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20, help="steps per run")
    parser.add_argument("--rounds", type=int, default=2, help="runs per condition")
    parser.add_argument("--models", type=Path, help="folder of warm models, to save the warm-up")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        opposite = Path(folder) / "opposite.yaml"
        opposite.write_text(OPPOSITE, encoding="utf-8")
        pairs = {"tiny": "tiny", "tiny_size": "tiny_size", "opposite": str(opposite)}
        results = {
            name: _summary(_step_seconds(CONDITIONS, pair=pair, arguments=arguments)) for name, pair in pairs.items()
        }
    for result in results.values():
        means = result["mean_s"]
        result["speed_up_of_mean"] = {name: means["one process"] / means[name] for name in CONDITIONS}
    write_result(
        "placement", {"experiment": "hacpo, one thread per agent", **results}, ["ray", "torch", "transformers"]
    )


if __name__ == "__main__":
    main()
