"""Step-by-step test of the engines on this machine with one agent, for `hacpo doctor --gpu` and a benchmark.

    load ─▶ hand over and sample ─▶ sample again ─▶ score ─▶ update ─▶ score the update
         ─▶ checkpoint ─▶ resume ─▶ replay

It uses the same code path as training: a hardware file, a placement and its agents.
"""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flows.planning.capacity import with_memory_share
from flows.planning.compose import compose
from flows.planning.memory import folder_shape
from flows.planning.plans import with_ranks
from flows.records.versions import version_tags
from flows.runs.build import placement_of
from flows.service.slots import gpu_slots
from hacpo_core.columns import TokenRows
from hacpo_core.config import AgentConfig, ExperimentConfig, as_dict
from hacpo_core.data.batches import own_minibatch
from hacpo_core.data.training import load_training
from hacpo_core.engines.learning.offload import release_unused
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.engines.learning.replay import UpdateTrace, compare
from hacpo_core.engines.models.loading import check_device
from hacpo_core.methods.base import SampleSpec
from hacpo_core.placement.base import Placement
from hacpo_core.placement.checkpoints import latest_checkpoint, save_checkpoint
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.records import Problem, SamplingLimits
from hacpo_core.responses import Responses

AGENT = "trial"
MAX_DIFFERENCE = 1e-3
"""between log-probabilities of sampler and learner in float32, nats"""
_SCORE_UPDATE = "score the update"


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


def trial_config(
    hardware: str, *, model: Path | None, workload: Workload, overrides: Sequence[str]
) -> ExperimentConfig:
    """Configuration of a hardware file with one agent: a model folder, or a tiny model with random weights.

    Raises:
        ConfigError: the hardware file or an override cannot be used.
    """
    lengths = [f"rollout.max_response_tokens={workload.max_tokens}", "rollout.max_prompt_tokens=64"]
    overrides = [*lengths, "evaluate.during=[]", "evaluate.final=[]", *overrides]
    config = compose("_trial", "gspo", hardware=hardware, overrides=overrides)
    if model is not None:
        config = replace(config, pair=replace(config.pair, agents={AGENT: AgentConfig(path=str(model))}))
    shapes = {AGENT: folder_shape(model)} if model is not None else {}
    return with_memory_share(with_ranks(config, {}), shapes)


def _ignore(step: TrialStep) -> None:
    """Show nothing."""


def try_engines(
    config: ExperimentConfig,
    root: Path,
    workload: Workload,
    *,
    last: str = "",
    on_step: Callable[[TrialStep], None] = _ignore,
) -> list[TrialStep]:
    """Run the steps in order; stop after the first one that fails.

    Args:
        config: from `trial_config`.
        root: an empty folder for models and checkpoints.
        workload: what to sample and train.
        last: step after which to stop; "": the last one.
        on_step: is called with each step when it ends.
    """
    trial = _Trial(config, root, workload)
    steps: list[TrialStep] = []

    def add(is_ok: bool, detail: str, figures: dict[str, float]) -> None:
        steps.append(TrialStep(name, is_ok, time.perf_counter() - begun, detail, figures))
        on_step(steps[-1])

    name, begun = "lock GPUs", time.perf_counter()
    try:
        with gpu_slots(config), closing(trial):
            for name, work in trial.steps():
                begun = time.perf_counter()
                add(True, *work())
                if name == last:
                    break
    except Exception as error:  # noqa: BLE001  any error of an engine is the outcome of its step
        message = " ".join(str(error).split())
        add(False, f"{type(error).__name__}: {message}", {})
    return steps


def trial_report(
    hardware: str,
    *,
    model: Path | None = None,
    workload: Workload | None = None,
    overrides: Sequence[str] = (),
    on_step: Callable[[TrialStep], None] = _ignore,
) -> dict[str, Any]:
    """Run a trial and return it as a JSON-serialisable value: settings, device and the outcome of each step.

    Args:
        hardware: name or path of a hardware file.
        model: folder of the agent's model; None: make a tiny one.
        workload: what to sample and train.
        overrides: each "section.field=value".
        on_step: is called with each step when it ends.

    Raises:
        ConfigError: the hardware file or an override cannot be used.
        ModelError: the folder holds no model.
    """
    workload = workload or Workload()
    config = trial_config(hardware, model=model, workload=workload, overrides=overrides)
    with tempfile.TemporaryDirectory(prefix="hacpo-trial-", ignore_cleanup_errors=True) as folder:
        steps = try_engines(config, Path(folder), workload, on_step=on_step)
    return {
        "model": str(model) if model is not None else "tiny",
        "hardware": hardware,
        "engine": as_dict(config.engine),
        "device": _device_name(config.engine.device),
        "workload": asdict(workload),
        "is_ok": steps[-1].is_ok,
        "steps": [asdict(step) for step in steps],
        "versions": dict(version_tags()),
    }


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else device


def quick_trial(*overrides: str) -> str:
    """Sample, score and update in seconds, on the GPU if there is one, and score what the update samples.

    Args:
        overrides: of the hardware file `cpu`, such as engine.sampler=vllm.

    Returns:
        one line about the result.

    Raises:
        RuntimeError: a step failed, or sampler and learner disagree before or after the update.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workload = Workload(num_problems=1, num_samples=2, max_tokens=8, num_updates=1)
    words = (f"engine.device={device}", "optimizer.learning_rate=0.01", *overrides)
    config = trial_config("cpu", model=None, workload=workload, overrides=words)
    with tempfile.TemporaryDirectory(prefix="hacpo-trial-", ignore_cleanup_errors=True) as folder:
        *_, before, _, after = steps = try_engines(config, Path(folder), workload, last=_SCORE_UPDATE)
    if not steps[-1].is_ok:
        raise RuntimeError(f"{steps[-1].name}: {steps[-1].detail}")
    error = max(step.figures["difference_max_nats"] for step in (before, after))
    if not error <= MAX_DIFFERENCE:
        raise RuntimeError(f"sampler and learner differ by {error:.1e} nats, expected at most {MAX_DIFFERENCE:g}")
    return f"samples and trains; sampler and learner agree to {error:.0e} nats before and after an update"


_Outcome = tuple[str, dict[str, float]]


class _Trial:
    """The steps of a trial and the state that they share."""

    def __init__(self, config: ExperimentConfig, root: Path, workload: Workload) -> None:
        self._config, self._root, self._workload = config, root, workload
        self._objective = config.method.objective
        self._placement: Placement | None = None
        self._problems: list[Problem] = load_training(config.data).problems[: workload.num_problems]
        self._responses: Responses | None = None
        self._trace: UpdateTrace | None = None

    def steps(self) -> list[tuple[str, Callable[[], _Outcome]]]:
        """Names and functions of the steps, in order."""
        return [
            ("load", self._load),
            ("hand over and sample", self._sample),
            ("sample again", self._sample),
            ("score", self._score),
            ("update", self._update),
            (_SCORE_UPDATE, self._score_update),
            ("checkpoint", self._checkpoint),
            ("resume", self._resume),
            ("replay", self._replay),
        ]

    def close(self) -> None:
        """Close the agent and free its device memory."""
        if self._placement is not None:
            self._placement.close()
            self._placement = None
        gc.collect()  # DeepSpeed's engine is part of a reference cycle
        release_unused(torch.device(self._config.engine.device))

    def _open(self, root: Path) -> int:
        """Load the agent from a folder, and return the version of its weights."""
        self.close()
        root.mkdir(exist_ok=True)
        if self._config.placement.kind == "local":
            check_device(self._config.engine.device)
        initial = InitialModel(AGENT, self._config.pair.agents[AGENT], self._root / "models").make()
        self._placement = placement_of(self._config, root, {AGENT: initial})
        checkpoint = latest_checkpoint(root)
        self._placement.open(checkpoint)
        return checkpoint.step if checkpoint is not None else 0

    def _agent(self, version: int) -> Any:
        assert self._placement is not None, "the agent is loaded first"

        def replays(*_: object) -> None:
            raise AssertionError("a trial only requests existing versions")

        return self._placement.agent_at(AGENT, version, replay=replays)

    def _load(self) -> _Outcome:
        self._open(self._root)
        engine = self._config.engine
        return (
            f"{engine.learner} learner and {engine.sampler} sampler on {_device_name(engine.device)}, {engine.dtype}",
            self._memory(),
        )

    def _responses_of(self, version: int) -> Responses:
        limits = SamplingLimits(1.0, 1.0, self._workload.max_tokens)
        samples = range(self._workload.num_samples)
        specs = [SampleSpec(problem, sample, limits) for problem in self._problems for sample in samples]
        responses: Responses = self._agent(version).sample(specs, step=version + 1, purpose="rollout")
        return responses

    def _sample(self) -> _Outcome:
        begun = time.perf_counter()
        self._responses = self._responses_of(0)
        num_tokens = self._responses.num_tokens
        rate = num_tokens / (time.perf_counter() - begun)
        return f"{num_tokens} tokens", {"num_tokens": float(num_tokens), "tokens_per_s": rate} | self._memory()

    @property
    def _sampled(self) -> Responses:
        assert self._responses is not None, "responses are sampled first"
        return self._responses

    def _score(self) -> _Outcome:
        return self._compared(self._sampled, version=0)

    def _score_update(self) -> _Outcome:
        return self._compared(self._responses_of(1), version=1)

    def _compared(self, responses: Responses, *, version: int) -> _Outcome:
        """Difference between the sampler's log-probabilities and the learner's."""
        begun = time.perf_counter()
        scored = self._agent(version).score(responses)
        rate = responses.num_tokens / (time.perf_counter() - begun)
        difference_N = abs(responses.logprobs.value_N - scored.value_N)
        mean, largest = float(difference_N.mean()), float(difference_N.max())
        figures = {"difference_mean_nats": mean, "difference_max_nats": largest, "tokens_per_s": rate}
        return f"sampler and learner differ by {mean:.1e} nats on average, {largest:.1e} at most", figures

    def _update(self) -> _Outcome:
        outcome, self._trace, rate = self._timed_update()
        first = np.log(outcome.rows.columns["ratio"][outcome.rows.update_B == 0])
        noise = math.sqrt(float(np.mean(first**2)))
        norm = statistics.fmean(minibatch.grad_norm for minibatch in outcome.minibatches)
        figures = {"tokens_per_s": rate, "own_noise_rms": noise, "grad_norm": norm} | self._memory()
        return f"{len(outcome.minibatches)} updates, rms log s {noise:.1e} before the first", figures

    def _timed_update(self) -> tuple[UpdateOutcome, UpdateTrace, float]:
        """Update the agent on its responses, with advantages of alternating sign; also the trained tokens per s."""
        rows = TokenRows.of(list(self._sampled.prompt_ids), self._sampled.token_ids)
        minibatches = [
            own_minibatch(
                rows.take(part), self._sampled.logprobs.take(part), [(-1.0) ** row for row in part], self._objective
            )
            for part in np.array_split(np.arange(len(rows)), self._workload.num_updates)
        ]
        agent, begun = self._agent(0), time.perf_counter()
        applied = agent.update(minibatches, self._objective, version=1, measures_cosine=False, recomputes_own=True)
        num_tokens = sum(minibatch.num_trained_tokens for minibatch in applied.outcome.minibatches)
        return applied.outcome, applied.trace, num_tokens / (time.perf_counter() - begun)

    def _checkpoint(self) -> _Outcome:
        placement, begun = self._placement, time.perf_counter()
        assert placement is not None, "the agent is loaded first"
        save_checkpoint(self._root, 1, [AGENT], placement.save, {}, keep=1)
        size = sum(path.stat().st_size for path in (self._root / "checkpoints").rglob("*") if path.is_file())
        rate = size / (time.perf_counter() - begun)
        return f"{size / 2**20:.0f} MiB", {"num_bytes": float(size), "bytes_per_s": rate}

    def _resume(self) -> _Outcome:
        version = self._open(self._root)
        agent = self._agent(version)
        limits = SamplingLimits(1.0, 1.0, self._workload.max_tokens)
        responses = agent.sample([SampleSpec(self._problems[0], 0, limits)], step=2, purpose="rollout")
        if version != 1:
            raise RuntimeError(f"expected the checkpoint of version 1, but the agent has version {version}")
        return f"version {version}, digests equal; {responses.num_tokens} tokens sampled", self._memory()

    def _replay(self) -> _Outcome:
        assert self._trace is not None, "the agent is updated first"
        self._open(self._root / "from the initial model")
        _, trace, rate = self._timed_update()
        replay = compare(self._trace, trace)
        if replay.kind == "different":
            raise RuntimeError(f"replaying the update gives other weights: relative distance {replay.distance:.1e}")
        figures = {"distance": replay.distance, "tokens_per_s": rate}
        return f"{replay.kind}, relative distance {replay.distance:.1e}", figures

    def _memory(self) -> dict[str, float]:
        """Device memory in use by all processes, GiB; empty on the CPU and with Ray."""
        if self._config.engine.device == "cpu" or self._config.placement.kind != "local":
            return {}
        free, total = torch.cuda.mem_get_info()
        return {"device_gib": (total - free) / 2**30}
