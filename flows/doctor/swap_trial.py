"""Test of two agents that take turns on one device, for `hacpo doctor --gpu`.

    load both ─▶ three times, for each agent: take over, sample, update

An agent takes over while the other one rests: its engine sleeps, its offloaded tensors are in host memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.doctor.trials import OnStep, Outcome, Trial, Workload, device_name, ignore, report_of, trial_config
from flows.planning.memory import shares_gpu

NUM_STEPS = 3


def swap_report(
    hardware: str,
    *,
    model: Path | None = None,
    workload: Workload | None = None,
    overrides: Sequence[str] = (),
    on_step: OnStep = ignore,
) -> dict[str, Any] | None:
    """Run the trial and return it as `engine_trial.trial_report` does; None if agents have devices of their own.

    Arguments and errors are those of `trial_report`; both agents have the same model.
    """
    workload = workload or Workload()
    config = trial_config(hardware, model=model, workload=workload, overrides=overrides, num_agents=2)
    if not shares_gpu(config):
        return None
    return report_of(SwapTrial, config, workload, hardware=hardware, on_step=on_step)


class SwapTrial(Trial):
    """The steps of a trial of two agents."""

    def steps(self) -> list[tuple[str, Callable[[], Outcome]]]:
        turns = [(step, name) for step in range(1, NUM_STEPS + 1) for name in self._config.pair.agents]
        works = [(f"step {step}, {name}", partial(self._turn, name, step)) for step, name in turns]
        return [("load both", self._load), *works]

    def _load(self) -> Outcome:
        self._open(self._root)
        engine, memory = self._config.engine, self._memory()
        summary = f"two {engine.learner} learners and {engine.sampler} samplers on {device_name(engine.device)}"
        return f"{summary}{_gib(memory, 'held')}", memory

    def _turn(self, name: str, step: int) -> Outcome:
        """One agent's part of a step, with the memory of the device before and after each thing that it does."""
        begun_at = time.perf_counter()
        agent = self._agent_at(name, step - 1)
        swap_s, memory_at_start = time.perf_counter() - begun_at, self._memory()
        responses = self._rollout(agent, step=step)
        memory_after_sampling = self._memory()
        update = agent.update(
            self._minibatches(responses), self._objective, version=step, measures_cosine=False, recomputes_own=True
        )
        memory_after_update = self._memory()
        figures = {"swap_s": swap_s, "num_tokens": float(responses.num_tokens)}
        for when, memory in (
            ("swap", memory_at_start),
            ("sampled", memory_after_sampling),
            ("updated", memory_after_update),
        ):
            figures |= {f"{when}_{key}": value for key, value in memory.items()}
        parts = (
            _gib(memory_at_start, "after the swap"),
            _gib(memory_after_sampling, "sampled"),
            _gib(memory_after_update, "updated"),
        )
        summary = f"{responses.num_tokens} tokens, {len(update.outcome.minibatches)} updates, swap {swap_s:.1f} s"
        return f"{summary}{''.join(parts)}", figures


def _gib(memory: dict[str, float], when: str) -> str:
    return "".join(f", {value:.1f} GiB {when}" for value in memory.values())
