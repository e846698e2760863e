"""How a step's time and memory grow with agents, responses, problems and length, in one process and in several.

One thing grows at a time, tiny models, direct runner; an exponent is the slope of log seconds over log size. With Ray
every agent has a process of its own, and the cores go to whoever has work.

Usage: python -m benchmarks.scaling [--steps 3]; writes benchmarks/results/scaling.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from benchmarks.measure import PeakMemory, child, write_result

AGENTS = (1, 2, 3, 4, 8)
GROWTH: dict[str, tuple[str, Sequence[int]]] = {
    "responses": ("rollout.num_samples", (4, 8, 16, 32)),
    "problems": ("train.problems", (8, 16, 32, 64)),
    "length": ("rollout.max_response_tokens", (20, 40, 80, 160)),
}
PHASES = ("rollout", "verify", "update")
SIDE_BY_SIDE, RAY = (1, 2, 4), "placement.kind=ray"


def pair_of(num_agents: int) -> dict[str, Any]:
    """Agents of one size without warm-up, so that responses have their full length."""
    tiny = {"family": "qwen3", "tokenizer": "character", "hidden_size": 64, "num_layers": 2, "max_positions": 512}
    agents = {f"agent{n}": {"tiny": {**tiny, "warmup": {"steps": 0, "seed": n}}} for n in range(num_agents)}
    return {
        "pair": {"name": f"of{num_agents}", "agents": agents},
        "train": {"problems": 16},
        "method": {"build": {"problems": 8}},
        "rollout": {"num_samples": 8, "max_prompt_tokens": 40, "max_response_tokens": 40},
        "data": {"train": ["arithmetic"]},
        "engine": {"skip_zero_advantage": False},
    }


def run(folder: Path, num_agents: int, words: Sequence[str], num_steps: int) -> dict[str, Any]:
    """Median seconds of a step and of each agent's phases in it, the first step left out."""
    from flows.planning.compose import compose
    from flows.planning.plans import plan, save_plan
    from flows.records.watcher import QuietWatcher
    from flows.runs.experiment import run_experiment
    from hacpo_core.phases.runner import DirectRunner
    from hacpo_core.store.steps import StepStore

    path = folder / f"of{num_agents}.yaml"
    path.write_text(OmegaConf.to_yaml(pair_of(num_agents)), encoding="utf-8")
    common = [f"runtime.runs_dir={folder}", "runtime.runner=direct", "tracking.enabled=false", "verifier.num_workers=1"]
    common += [f"train.num_steps={num_steps}", "diagnostics.every=0", "evaluate.during=[]", "evaluate.final=[]"]
    common += [f"checkpoint.every={num_steps}", "verifier.cache=false"]
    memory = PeakMemory()
    with _cluster(num_agents) if RAY in words else nullcontext([]) as address:
        planned = plan(compose(str(path), "hacpo", overrides=[*common, *words, *address]))
        save_plan(planned)
        run_experiment(planned, DirectRunner(), QuietWatcher())
    store = StepStore(planned.root)
    metrics = [store.metrics(step)["agents"] for step in range(2, num_steps + 1)]
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in range(1, num_steps + 1)]
    phases = {
        k: {phase: statistics.median(found[k][f"time/{phase}_s"] for found in metrics) for phase in PHASES}
        for k in metrics[0]
    }
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return {"step_s": statistics.median(steps), "peak_mb": memory.mb(), "phases_s": phases}


@contextmanager
def _cluster(num_agents: int) -> Iterator[list[str]]:
    """A Ray cluster with room for all agents, however few cores there are; the words that name it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_agents, "include_dashboard": False})
    try:
        yield [f"placement.ray.address={cluster.address}"]
    finally:
        cluster.shutdown()


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of log seconds over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def grown(sizes: Sequence[int], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds of the step and of all agents' phases together, MiB, and their exponents."""
    series = {"step_s": [one["step_s"] for one in found], "peak_mb": [one["peak_mb"] for one in found]}
    for what in PHASES:
        series[f"{what}_s"] = [sum(agent[what] for agent in one["phases_s"].values()) for one in found]
    exponents = {name.rpartition("_")[0] + "_exponent": exponent(sizes, values) for name, values in series.items()}
    return {**series, **exponents}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--one", nargs="+", metavar="WORD", help="folder, agents, fields")
    asked = parser.parse_args()
    if asked.one:
        folder, num_agents, *words = asked.one
        print(json.dumps(run(Path(folder), int(num_agents), words, asked.steps)))
        return
    growth: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:

        def measure(num_agents: int, *words: str) -> dict[str, Any]:
            found = child("scaling", "--steps", str(asked.steps), "--one", folder, str(num_agents), *words)
            print(num_agents, *words, f"{found['step_s']:.3f} s", flush=True)
            return dict(found)

        by_agents = [measure(number) for number in AGENTS]
        steps = [found["step_s"] for found in by_agents]
        growth["agents"] = {"sizes": AGENTS, **grown(AGENTS, by_agents)}
        side_by_side = [
            {"agents": number, "one_process_s": step_s, "own_processes_s": measure(number, RAY, "seed=1")["step_s"]}
            for number, step_s in zip(AGENTS, steps, strict=True)
            if number in SIDE_BY_SIDE
        ]
        for name, (field, sizes) in GROWTH.items():
            # The second size is what the two agents above had; asked for again, that run would only be read.
            found = [by_agents[1] if size == sizes[1] else measure(2, f"{field}={size}") for size in sizes]
            growth[name] = {"sizes": sizes, **grown(sizes, found)}
    write_result("scaling", {"growth": growth, "side_by_side": side_by_side}, ["torch", "transformers", "ray"])


if __name__ == "__main__":
    main()
