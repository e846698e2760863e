"""What the trials of `hacpo doctor --gpu` share: their configuration, workload, steps and report.

A trial uses the same code path as training: a hardware file, a placement and its agents.
"""

from __future__ import annotations

import gc
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flows.planning.capacity import with_memory_plan
from flows.planning.compose import compose
from flows.planning.memory import folder_shape
from flows.planning.ranks import with_ranks
from flows.records.versions import version_tags
from flows.runs.opening import placement_of
from flows.service.gpu_locks import gpu_locks
from hacpo_core.columns import TokenRows
from hacpo_core.config import AgentConfig, ExperimentConfig, as_dict
from hacpo_core.data.batches import Minibatch, own_minibatch
from hacpo_core.data.training import load_training
from hacpo_core.engines.learning.offload import release_unused
from hacpo_core.engines.models.loading import check_device
from hacpo_core.methods.base import Objective, SampleSpec
from hacpo_core.placement.base import Placement
from hacpo_core.placement.checkpoints import latest_checkpoint
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.records import Problem, SamplingLimits
from hacpo_core.responses import Responses

PAIRS = {1: "_trial", 2: "_trial_two"}
"""pair of random tiny models, by number of agents"""
Outcome = tuple[str, dict[str, float]]
"""a sentence about a step, and its figures"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Amount of work: num_problems x num_samples responses, trained on in `num_updates` updates."""

    num_problems: int = 16
    num_samples: int = 4
    max_tokens: int = 64
    num_updates: int = 2


@dataclass(frozen=True, slots=True)
class TrialStep:
    """Outcome of one step; keys of `figures` end in their unit."""

    name: str
    is_ok: bool
    seconds: float
    detail: str
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'ok ' if self.is_ok else 'NO '} {self.name:<22} {self.seconds:7.1f} s  {self.detail}"


OnStep = Callable[[TrialStep], None]


def ignore(step: TrialStep) -> None:
    """Show nothing."""


def trial_config(
    hardware: str,
    *,
    model: Path | None,
    workload: Workload | None = None,
    overrides: Sequence[str] = (),
    num_agents: int = 1,
) -> ExperimentConfig:
    """Configuration of a hardware file with one or two agents: a model folder, or tiny models with random weights.

    Raises:
        ConfigError: the hardware file or an override cannot be used.
        ModelError: the folder holds no model.
    """
    lengths = [f"rollout.max_response_tokens={(workload or Workload()).max_tokens}", "rollout.max_prompt_tokens=64"]
    overrides = [*lengths, "evaluate.during=[]", "evaluate.final=[]", *overrides]
    config = compose(PAIRS[num_agents], "gspo", hardware=hardware, overrides=overrides)
    shapes = {}
    if model is not None:
        agents = {name: AgentConfig(path=str(model)) for name in config.pair.agents}
        config = replace(config, pair=replace(config.pair, agents=agents))
        shapes = dict.fromkeys(agents, folder_shape(model))
    return with_memory_plan(with_ranks(config, {}), shapes)


class Trial(ABC):
    """Steps of a trial, and the agents that they share."""

    def __init__(self, config: ExperimentConfig, root: Path, workload: Workload) -> None:
        """Prepare a trial in an empty folder, for models and checkpoints."""
        self._config, self._root, self._workload = config, root, workload
        self._objective: Objective = config.method.objective
        self._placement: Placement | None = None
        self._problems: list[Problem] = load_training(config.data).problems[: workload.num_problems]

    @abstractmethod
    def steps(self) -> list[tuple[str, Callable[[], Outcome]]]:
        """Names and functions of the steps, in order."""

    def close(self) -> None:
        """Close the agents and free their device memory."""
        if self._placement is not None:
            self._placement.close()
            self._placement = None
        gc.collect()  # DeepSpeed's engine is part of a reference cycle
        release_unused(torch.device(self._config.engine.device))

    def _open(self, root: Path) -> int:
        """Load the agents from a folder, and return the version of their weights."""
        self.close()
        root.mkdir(exist_ok=True)
        if self._config.placement.kind == "local":
            check_device(self._config.engine.device)
        agents = self._config.pair.agents
        initial = {name: InitialModel(name, agents[name], self._root / "models").make() for name in agents}
        self._placement = placement_of(self._config, root, initial)
        checkpoint = latest_checkpoint(root)
        self._placement.open(checkpoint)
        return checkpoint.step if checkpoint is not None else 0

    def _agent_at(self, name: str, version: int) -> Any:
        assert self._placement is not None, "the agents are loaded first"

        def replays(*_: object) -> None:
            raise AssertionError("a trial only requests existing versions")

        return self._placement.agent_at(name, version, replay=replays)

    def _rollout(self, agent: Any, *, step: int) -> Responses:
        limits = SamplingLimits(1.0, 1.0, self._workload.max_tokens)
        samples = range(self._workload.num_samples)
        specs = [SampleSpec(problem, sample, limits) for problem in self._problems for sample in samples]
        responses: Responses = agent.sample(specs, step=step, purpose="rollout")
        return responses

    def _minibatches(self, responses: Responses) -> list[Minibatch]:
        """The responses with advantages of alternating sign."""
        rows = TokenRows.of(list(responses.prompt_ids), responses.token_ids)
        return [
            own_minibatch(
                rows.take(part), responses.logprobs.take(part), [(-1.0) ** row for row in part], self._objective
            )
            for part in np.array_split(np.arange(len(rows)), self._workload.num_updates)
        ]

    def _memory(self) -> dict[str, float]:
        """Device memory in use by all processes, GiB; empty on the CPU and with Ray."""
        if self._config.engine.device == "cpu" or self._config.placement.kind != "local":
            return {}
        free, total = torch.cuda.mem_get_info()
        return {"device_gib": (total - free) / 2**30}


def run_steps(trial: Trial, config: ExperimentConfig, *, last: str = "", on_step: OnStep = ignore) -> list[TrialStep]:
    """Run the steps in order; stop after the first one that fails.

    Args:
        trial: to run and close.
        config: from `trial_config`.
        last: step after which to stop; "": the last one.
        on_step: is called with each step when it ends.
    """
    steps: list[TrialStep] = []

    def add(is_ok: bool, detail: str, figures: dict[str, float]) -> None:
        steps.append(TrialStep(name, is_ok, time.perf_counter() - begun_at, detail, figures))
        on_step(steps[-1])

    name, begun_at = "lock GPUs", time.perf_counter()
    try:
        with gpu_locks(config), closing(trial):
            for name, work in trial.steps():
                begun_at = time.perf_counter()
                add(True, *work())
                if name == last:
                    break
    except Exception as error:  # noqa: BLE001  any error of an engine is the outcome of its step
        message = " ".join(str(error).split())
        add(False, f"{type(error).__name__}: {message}", {})
    return steps


def report_of(
    kind: type[Trial], config: ExperimentConfig, workload: Workload, *, hardware: str, on_step: OnStep = ignore
) -> dict[str, Any]:
    """Run a trial and return it as a JSON-serialisable value: settings, device and the outcome of each step."""
    with tempfile.TemporaryDirectory(prefix="hacpo-trial-", ignore_cleanup_errors=True) as folder:
        steps = run_steps(kind(config, Path(folder), workload), config, on_step=on_step)
    paths = {agent.path for agent in config.pair.agents.values()}
    return {
        "model": paths.pop() or "tiny",
        "agents": len(config.pair.agents),
        "hardware": hardware,
        "engine": as_dict(config.engine),
        "device": device_name(config.engine.device),
        "workload": asdict(workload),
        "is_ok": steps[-1].is_ok,
        "steps": [asdict(step) for step in steps],
        "versions": dict(version_tags()),
    }


def device_name(device: str) -> str:
    """Name of the GPU, or cpu."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else device
