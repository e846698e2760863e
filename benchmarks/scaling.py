"""Growth of a step's time and memory with the number of agents, responses, problems and tokens.

One quantity varies at a time, with tiny models and the direct runner; an exponent is the slope of log time over log
size. Step times of agents in one process are compared with those of one process per agent (Ray).

Usage: python -m benchmarks.scaling [--steps 3]; writes benchmarks/results/scaling.json.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    """A pair file with equal agents without warm-up, so that responses have full length."""
    tiny = {"family": "qwen3", "tokenizer": "character", "hidden_size": 64, "num_layers": 2, "max_positions": 512}
    agents = {f"agent{n}": {"tiny": {**tiny, "seed": n}} for n in range(num_agents)}
    return {
        "pair": {"name": f"of{num_agents}", "agents": agents},
        "train": {"problems": 16},
        "method": {"build": {"problems": 8}},
        "rollout": {"num_samples": 8, "max_prompt_tokens": 40, "max_response_tokens": 40},
        "data": {"train": ["arithmetic"]},
        "engine": {"skip_zero_advantage": False},
    }


def run(folder: Path, num_agents: int, overrides: Sequence[str], num_steps: int) -> dict[str, Any]:
    """Median time of a step and of each agent's phases, without the first step, s; peak memory, MiB."""
    from flows.planning.compose import compose
    from flows.planning.plans import plan, save_plan
    from flows.runs.experiment import run_experiment
    from hacpo_core.phases.runner import DirectRunner
    from hacpo_core.store.steps import StepStore

    path = folder / f"of{num_agents}.yaml"
    path.write_text(OmegaConf.to_yaml(pair_of(num_agents)), encoding="utf-8")
    common = [f"runtime.runs_dir={folder}", "runtime.runner=direct", "tracking.enabled=false", "verifier.num_workers=1"]
    common += [f"train.num_steps={num_steps}", "evaluate.during=[]", "evaluate.final=[]"]
    common += [f"checkpoint.every={num_steps}"]
    memory = PeakMemory()
    cluster: AbstractContextManager[list[str]] = _cluster(num_agents) if RAY in overrides else nullcontext([])
    with cluster as address:
        planned = plan(compose(str(path), "hacpo", overrides=[*common, *overrides, *address]))
        save_plan(planned)
        run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    metrics = [store.metrics(step)["agents"] for step in range(2, num_steps + 1)]
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in range(1, num_steps + 1)]
    phases = {
        k: {phase: statistics.median(step[k][f"time/{phase}_s"] for step in metrics) for phase in PHASES}
        for k in metrics[0]
    }
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return {"step_s": statistics.median(steps), "peak_mb": memory.mb(), "phases_s": phases}


@contextmanager
def _cluster(num_agents: int) -> Iterator[list[str]]:
    """Start a Ray cluster with a slot per agent, regardless of the number of cores; yields the override to use it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_agents, "include_dashboard": False})
    try:
        yield [f"placement.ray.address={cluster.address}"]
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of log time over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def grown(sizes: Sequence[int], measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Step times, phase times summed over agents, peak memory, and the exponents of each."""
    series = {"step_s": [run["step_s"] for run in measured], "peak_mb": [run["peak_mb"] for run in measured]}
    for phase in PHASES:
        series[f"{phase}_s"] = [sum(agent[phase] for agent in run["phases_s"].values()) for run in measured]
    exponents = {name.rpartition("_")[0] + "_exponent": exponent(sizes, values) for name, values in series.items()}
    return {**series, **exponents}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--one", nargs="+", metavar="ARGUMENT", help="folder, number of agents, overrides")
    arguments = parser.parse_args()
    if arguments.one:
        folder, num_agents, *overrides = arguments.one
        print(json.dumps(run(Path(folder), int(num_agents), overrides, arguments.steps)))
        return
    growth: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:

        def measure(num_agents: int, *overrides: str) -> dict[str, Any]:
            measured = child("scaling", "--steps", str(arguments.steps), "--one", folder, str(num_agents), *overrides)
            print(num_agents, *overrides, f"{measured['step_s']:.3f} s", flush=True)
            return dict(measured)

        by_agents = [measure(number) for number in AGENTS]
        steps = [measured["step_s"] for measured in by_agents]
        growth["agents"] = {"sizes": AGENTS, **grown(AGENTS, by_agents)}
        side_by_side = [
            {"agents": number, "one_process_s": step_s, "own_processes_s": measure(number, RAY, "seed=1")["step_s"]}
            for number, step_s in zip(AGENTS, steps, strict=True)
            if number in SIDE_BY_SIDE
        ]
        for name, (field, sizes) in GROWTH.items():
            # The second size is the default, which was measured above; the complete run would not be run again.
            measured = [by_agents[1] if size == sizes[1] else measure(2, f"{field}={size}") for size in sizes]
            growth[name] = {"sizes": sizes, **grown(sizes, measured)}
    write_result("scaling", {"growth": growth, "side_by_side": side_by_side}, ["torch", "transformers", "ray"])


if __name__ == "__main__":
    main()
