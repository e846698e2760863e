"""Step-by-step test of the engines on this machine with one agent, for `hacpo doctor --gpu` and a benchmark.

load ─▶ hand over and sample ─▶ sample again ─▶ score ─▶ update ─▶ score the update
     ─▶ checkpoint ─▶ resume ─▶ replay

Shapes: N token of all responses, B row of a mini-batch.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flows.doctor.trials import (
    OnStep,
    Outcome,
    Trial,
    TrialStep,
    Workload,
    device_name,
    ignore,
    report_of,
    run_steps,
    trial_config,
)
from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.engines.learning.replay import UpdateTrace, compare
from hacpo_core.methods.base import SampleSpec
from hacpo_core.placement.checkpoints import save_checkpoint
from hacpo_core.records import SamplingLimits
from hacpo_core.responses import Responses

AGENT = "trial"
MAX_DIFFERENCE = 1e-3
"""between log-probabilities of sampler and learner in float32, nats"""
_SCORE_UPDATE = "score the update"


def try_engines(
    config: ExperimentConfig, root: Path, workload: Workload, *, last: str = "", on_step: OnStep = ignore
) -> list[TrialStep]:
    """Run the steps in order; stop after the first one that fails.

    Args:
        config: from `trial_config`.
        root: an empty folder for models and checkpoints.
        workload: what to sample and train.
        last: step after which to stop; "": the last one.
        on_step: is called with each step when it ends.
    """
    return run_steps(EngineTrial(config, root, workload), config, last=last, on_step=on_step)


def trial_report(
    hardware: str,
    *,
    model: Path | None = None,
    workload: Workload | None = None,
    overrides: Sequence[str] = (),
    on_step: OnStep = ignore,
) -> dict[str, Any]:
    """Run a trial of one agent and return it as a JSON-serialisable value.

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
    return report_of(EngineTrial, config, workload, hardware=hardware, on_step=on_step)


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


class EngineTrial(Trial):
    """The steps of a trial of one agent."""

    def __init__(self, config: ExperimentConfig, root: Path, workload: Workload) -> None:
        super().__init__(config, root, workload)
        self._responses: Responses | None = None
        self._trace: UpdateTrace | None = None

    def steps(self) -> list[tuple[str, Callable[[], Outcome]]]:
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

    def _agent(self, version: int) -> Any:
        return self._agent_at(AGENT, version)

    def _load(self) -> Outcome:
        self._open(self._root)
        engine = self._config.engine
        return (
            f"{engine.learner} learner and {engine.sampler} sampler on {device_name(engine.device)}, {engine.dtype}",
            self._memory(),
        )

    def _responses_of(self, version: int) -> Responses:
        return self._rollout(self._agent(version), step=version + 1)

    def _sample(self) -> Outcome:
        begun_at = time.perf_counter()
        self._responses = self._responses_of(0)
        num_tokens = self._responses.num_tokens
        rate = num_tokens / (time.perf_counter() - begun_at)
        return f"{num_tokens} tokens", {"num_tokens": float(num_tokens), "tokens_per_s": rate} | self._memory()

    @property
    def _sampled(self) -> Responses:
        assert self._responses is not None, "responses are sampled first"
        return self._responses

    def _score(self) -> Outcome:
        return self._compare(self._sampled, version=0)

    def _score_update(self) -> Outcome:
        return self._compare(self._responses_of(1), version=1)

    def _compare(self, responses: Responses, *, version: int) -> Outcome:
        """Difference between the sampler's log-probabilities and the learner's."""
        begun_at = time.perf_counter()
        scored = self._agent(version).score(responses)
        rate = responses.num_tokens / (time.perf_counter() - begun_at)
        difference_N = abs(responses.logprobs.value_N - scored.value_N)
        mean, max_difference = float(difference_N.mean()), float(difference_N.max())
        figures = {"difference_mean_nats": mean, "difference_max_nats": max_difference, "tokens_per_s": rate}
        return f"sampler and learner differ by {mean:.1e} nats on average, {max_difference:.1e} at most", figures

    def _update(self) -> Outcome:
        outcome, self._trace, rate = self._timed_update()
        first = np.log(outcome.rows.figures["ratio"][outcome.rows.update_B == 0])
        noise = math.sqrt(float(np.mean(first**2)))
        norm = statistics.fmean(minibatch.grad_norm for minibatch in outcome.minibatches)
        figures = {"tokens_per_s": rate, "own_noise_rms": noise, "grad_norm": norm} | self._memory()
        return f"{len(outcome.minibatches)} updates, rms log s {noise:.1e} before the first", figures

    def _timed_update(self) -> tuple[UpdateOutcome, UpdateTrace, float]:
        """Update the agent on its responses; also the trained tokens per s."""
        minibatches = self._minibatches(self._sampled)
        agent, begun_at = self._agent(0), time.perf_counter()
        applied = agent.update(minibatches, self._objective, version=1, measures_cosine=False, recomputes_own=True)
        num_tokens = sum(minibatch.num_trained_tokens for minibatch in applied.outcome.minibatches)
        return applied.outcome, applied.trace, num_tokens / (time.perf_counter() - begun_at)

    def _checkpoint(self) -> Outcome:
        placement, begun_at = self._placement, time.perf_counter()
        assert placement is not None, "the agent is loaded first"
        save_checkpoint(self._root, 1, [AGENT], placement.save, {}, keep=1)
        size = sum(path.stat().st_size for path in (self._root / "checkpoints").rglob("*") if path.is_file())
        rate = size / (time.perf_counter() - begun_at)
        return f"{size / 2**20:.0f} MiB", {"num_bytes": float(size), "bytes_per_s": rate}

    def _resume(self) -> Outcome:
        version = self._open(self._root)
        agent = self._agent(version)
        limits = SamplingLimits(1.0, 1.0, self._workload.max_tokens)
        responses = agent.sample([SampleSpec(self._problems[0], 0, limits)], step=2, purpose="rollout")
        if version != 1:
            raise RuntimeError(f"expected the checkpoint of version 1, but the agent has version {version}")
        return f"version {version}, digests equal; {responses.num_tokens} tokens sampled", self._memory()

    def _replay(self) -> Outcome:
        assert self._trace is not None, "the agent is updated first"
        self._open(self._root / "from the initial model")
        _, trace, rate = self._timed_update()
        replay = compare(self._trace, trace)
        if replay.kind == "different":
            raise RuntimeError(f"replaying the update gives other weights: relative distance {replay.distance:.1e}")
        figures = {"distance": replay.distance, "tokens_per_s": rate}
        return f"{replay.kind}, relative distance {replay.distance:.1e}", figures
