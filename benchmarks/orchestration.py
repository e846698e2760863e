"""Overhead of Prefect, the step store and MLflow for steps of 0.3, 3 and 30 s, and start-up time.

The same experiment with the direct runner and as Prefect tasks. A pause in every agent's sampling stretches steps to
the requested length; all time that is not pause, model or verifier counts as orchestration. Also measured: bytes on
disk per step, and the time from the command to the first sampling of a warm tiny run.

Usage: python -m benchmarks.orchestration [--rounds 3]; writes benchmarks/results/orchestration.json.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import child, write_result
from flows.service.prefect_server import stop_server

STEPS = {0.3: 12, 3.0: 3, 30.0: 1}
"""number of measured steps by step length, s"""


def run(runs_dir: Path, runner: str, step_s: float) -> dict[str, float]:
    """Median step time and its orchestration part (neither pause, model nor verifier), s; bytes on disk per step."""
    from flows.planning.compose import compose
    from flows.planning.plans import plan, save_plan
    from flows.runs.experiment import run_experiment
    from hacpo_core.phases.runner import DirectRunner
    from hacpo_core.placement.agents import Agent
    from hacpo_core.store.steps import StepStore
    from hacpo_core.verify.pool import VerifierPool

    work: list[tuple[float, float]] = []

    def timed(owner: Any, name: str, *, pause_s: float = 0.0, pauses_after: int = 0) -> None:
        inner, calls = getattr(owner, name), itertools.count()

        def around(*args: Any, **options: Any) -> Any:
            begun = time.time()
            try:
                time.sleep(pause_s if next(calls) >= pauses_after else 0.0)
                return inner(*args, **options)
            finally:
                work.append((begun, time.time()))

        setattr(owner, name, around)

    num_steps = STEPS[step_s] + 1
    overrides = [f"runtime.runs_dir={runs_dir}", f"runtime.runner={runner}", f"train.num_steps={num_steps}"]
    overrides += [
        "train.problems=4",
        "method.build.problems=2",
        "evaluate.during=[]",
        "evaluate.final=[]",
        f"checkpoint.every={num_steps}",
    ]
    planned = plan(compose("tiny", "hacpo", overrides=overrides))
    save_plan(planned)
    timed(Agent, "sample", pause_s=step_s / 2, pauses_after=2)  # two agents; the first step is not measured
    for owner, name in ((Agent, "score"), (Agent, "update"), (VerifierPool, "verify")):
        timed(owner, name)
    if runner == "prefect":
        from flows.service.prefect_server import ensure_server, use_server

        use_server(ensure_server(runs_dir), runs_dir)
        from flows.runs.flow import run_with_prefect
        from hacpo_core.store.lock import ExperimentLock

        with ExperimentLock(planned.root):
            run_with_prefect(planned)
    else:
        run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    ends = [store.committed_at_ms(step, "metrics") / 1000 for step in range(1, num_steps + 1)]
    steps, costs = [], []
    for before, after in itertools.pairwise(ends):
        inside = sum(end - begun for begun, end in work if before < end <= after)
        steps.append(after - before)
        costs.append(after - before - inside)
    return {
        "step_s": statistics.median(steps),
        "orchestration_s": statistics.median(costs),
        "share": statistics.median(cost / step for cost, step in zip(costs, steps, strict=True)),
        "disk_bytes_per_step": _size(planned.root / "steps") // num_steps,
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def start(runs_dir: Path, runner: str, begun: float) -> None:
    """Run `hacpo train` until the first call of an agent's `sample`, print the seconds since `begun`, and exit."""
    from flows.cli import app
    from hacpo_core.placement.agents import Agent

    def sample(*_: Any, **__: Any) -> None:
        print(time.time() - begun, flush=True)
        os._exit(0)

    Agent.sample = sample  # type: ignore[method-assign,assignment]
    overrides = [f"runtime.runs_dir={runs_dir}", f"runtime.runner={runner}", "seed=99"]
    app(["train", "tiny", "hacpo", *overrides, "evaluate.final=[]", "evaluate.during=[]"])


def imports() -> float:
    """Time to start Python and import torch and transformers, which every run needs, s."""
    started = time.perf_counter()
    code = "import torch, transformers.modeling_utils"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=3, metavar=("RUNS_DIR", "RUNNER", "STEP_S"))
    parser.add_argument("--start", nargs=3, metavar=("RUNS_DIR", "RUNNER", "BEGUN"))
    parser.add_argument("--rounds", type=int, default=3, help="starts of a run, and imports")
    parser.add_argument("--models", type=Path, help="folder of warm models, to save the warm-up")
    arguments = parser.parse_args()
    if arguments.start:
        start(Path(arguments.start[0]), arguments.start[1], float(arguments.start[2]))
    if arguments.one:
        folder, runner, step_s = arguments.one
        print(json.dumps(run(Path(folder), runner, float(step_s))))
        return
    results, starts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        models = (arguments.models or Path(folder) / "models").absolute()
        models.mkdir(exist_ok=True)
        for runner in ("direct", "prefect"):
            runs_dir = Path(folder) / runner
            runs_dir.mkdir()
            (runs_dir / "models").symlink_to(models)
            try:
                for step_s in STEPS:
                    measured = child("orchestration", "--one", str(runs_dir), runner, str(step_s))
                    results.append({"asked_s": step_s, "runner": runner, **measured})
                    print(json.dumps(results[-1]), flush=True)
                starts[runner] = statistics.median(
                    child("orchestration", "--start", str(runs_dir), runner, str(time.time()))
                    for _ in range(arguments.rounds)
                )
            finally:
                stop_server(runs_dir)
        starts["imports alone"] = statistics.median(imports() for _ in range(arguments.rounds))
    write_result("orchestration", {"steps": results, "start_s": starts}, ["prefect", "mlflow", "torch", "transformers"])


if __name__ == "__main__":
    main()
