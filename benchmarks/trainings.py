"""What the measurements of whole trainings share: conditions in turn, A B A B, in processes of their own."""

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

from flows.plans import find_plan
from flows.server import stop_server
from hacpo_core.store import StepStore


def options(steps: int, rounds: int) -> argparse.Namespace:
    """The command line of such a measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps, help="of one training")
    parser.add_argument("--rounds", type=int, default=rounds, help="trainings of each condition")
    parser.add_argument("--models", type=Path, help="folder of warm models, to save the warm-up")
    return parser.parse_args()


def step_seconds(
    conditions: Mapping[str, Sequence[str]], *, pair: str, asked: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds from one step's end to the next one's in every condition, first steps left out; round by round.

    Args:
        conditions: configuration fields (dotlist) of each.
        pair: name or YAML file; trained with HACPO.
        asked: see `options`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in conditions}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        for seed, (name, words) in itertools.product(range(asked.rounds), conditions.items()):
            runs_dir = Path(folder) / name.replace(" ", "-")
            if not runs_dir.exists():
                runs_dir.mkdir()
                (runs_dir / "models").symlink_to((asked.models or Path(folder) / "models").absolute())
            seconds[name] += _train(pair, [*words, f"seed={seed}"], asked.steps, runs_dir)
        for name in conditions:
            stop_server(Path(folder) / name.replace(" ", "-") / "prefect")
    return seconds


def _train(pair: str, words: Sequence[str], steps: int, runs_dir: Path) -> list[float]:
    common = [f"runtime.runs_dir={runs_dir}", f"train.num_steps={steps}", "tracking.enabled=false"]
    common += [f"checkpoint.every={steps}", "diagnostics.every=0", "evaluate.during=[]"]
    command = [sys.executable, "-m", "flows.cli", "train", pair, "hacpo", *common, *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    store = StepStore(find_plan(runs_dir, json.loads(done.stdout.splitlines()[-1])["id"]).root)
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in range(1, steps + 1)]
    return [after - before for before, after in itertools.pairwise(ends)]


def summary(seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Number, median and mean of every condition's steps."""
    return {
        "steps": {name: len(found) for name, found in seconds.items()},
        "median_s": {name: statistics.median(found) for name, found in seconds.items()},
        "mean_s": {name: statistics.fmean(found) for name, found in seconds.items()},
    }
