"""Time and memory of a step and of a run, from the rates that a probe measured and the planner's memory plan.

    sampling[k]  = tokens of k's responses in a step / measured sampling rate
    scoring[k]   = the same tokens / measured rate of a forward pass, if old log-probabilities are computed anew
    update[k]    = tokens of k's rows with an advantage x PASSES / measured rate of a forward pass
    step         = sum over agents that take turns, or the largest of agents that work side by side

The backward pass counts as two forward passes, recomputed activations as one more, of some layers as part of one.
Optimizer steps, hand-overs of weights and checkpoints are not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from flows.grids.estimate import num_evaluation_responses, occupied_hours
from flows.planning.memory import GIB, gpu_gib, peak_gib
from flows.probe.measure import AgentProbe, Probe
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import checkpointing, num_gpus, num_ranks, num_samples, recomputed_layers, scores_own

PASSES = 3
"""forward passes that an update costs as much as, if no activations are recomputed"""


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Estimated cost of the run.

    Attributes:
        sampling_s, scoring_s, verifying_s, updating_s: of one step, by agent.
        step_s: of one step.
        run_hours: of all steps and evaluations, wall-clock.
        occupied_hours: device-hours (GPUs, or processes on the CPU) that no other experiment can use.
        memory_gib, min_gib: of the fullest GPU, or of the process on the CPU: with all responses at the limit, and
            with one response at a time.
        room_gib: memory of the GPU or, on the CPU, of the machine; None if it is not known.
    """

    sampling_s: Mapping[str, float]
    scoring_s: Mapping[str, float]
    verifying_s: Mapping[str, float]
    updating_s: Mapping[str, float]
    step_s: float
    run_hours: float
    occupied_hours: float
    memory_gib: float
    min_gib: float
    room_gib: float | None


def _passes(config: ExperimentConfig, name: str, agent: AgentProbe) -> float:
    """Forward passes that an agent's update costs as much as."""
    num_layers = max(1, agent.shape.num_layers)
    return PASSES + recomputed_layers(checkpointing(config, name), num_layers) / num_layers


def probe_cost(config: ExperimentConfig, probe: Probe) -> ProbeCost:
    """Cost of the run that was probed."""
    num_rows, engine = config.train.problems * num_samples(config), config.engine
    agents = probe.agents
    passes = {k: config.method.build.num_iterations * _passes(config, k, agent) for k, agent in agents.items()}
    sampling = {k: num_rows * agent.mean_length / agent.sampled_per_s for k, agent in agents.items()}
    scoring = {
        k: num_rows * agent.mean_length / agent.scored_per_s if scores_own(config) else 0.0
        for k, agent in agents.items()
    }
    verifying = {k: num_rows / agent.verified_per_s for k, agent in agents.items()}
    updating = {k: passes[k] * num_rows * agent.trained_tokens / agent.scored_per_s for k, agent in agents.items()}
    steps = {k: sampling[k] + scoring[k] + verifying[k] + updating[k] for k in agents}
    num_responses = num_evaluation_responses(config)
    evaluating = {k: num_responses * agent.mean_length / agent.sampled_per_s for k, agent in agents.items()}
    takes_turns = config.placement.kind == "local" or config.placement.colocated
    total_of = sum if takes_turns else max
    runs = {k: config.train.num_steps * steps[k] + evaluating[k] for k in agents}
    busy = {k: seconds / 3600 * num_ranks(config, k) * max(1, num_gpus(config)) for k, seconds in runs.items()}
    shapes, room = {k: agent.shape for k, agent in agents.items()}, gpu_gib(config)
    if engine.device == "cpu":
        room = psutil.virtual_memory().total / GIB
    memory, min_memory = (
        peak_gib(config, shapes, gpu_gib=room or 0.0, is_least=is_least) for is_least in (False, True)
    )  # without a known GPU, vLLM's share counts as nothing
    return ProbeCost(
        sampling_s=sampling,
        scoring_s=scoring,
        verifying_s=verifying,
        updating_s=updating,
        step_s=total_of(steps.values()),
        run_hours=total_of(runs.values()) / 3600,
        occupied_hours=occupied_hours(config, busy),
        memory_gib=memory,
        min_gib=min_memory,
        room_gib=room,
    )
