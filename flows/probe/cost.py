"""Time and memory of a step and of a run, from the rates that a probe measured and the planner's memory plan.

    response of k = tokens / sampling rate + 1 / verifying rate + passed tokens / rate of a forward pass
    passed tokens = tokens of k's rows with an advantage x PASSES, and its own once more if they are scored anew
    step          = sum over agents that take turns, or the largest of agents that work side by side

The backward pass counts as two forward passes, recomputed activations as one more, of some layers as part of one.
Optimizer steps, hand-overs of weights and checkpoints are not included.
"""

from dataclasses import dataclass

import psutil

from flows.grids.estimate import num_evaluation_responses
from flows.planning.disk import CheckpointSpace, checkpoint_space
from flows.planning.memory import GIB, gpu_gib, peak_gib
from flows.probe.measure import Probe
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import checkpointing, num_samples, recomputed_layers, scores_own

PASSES = 3
"""forward passes that an update costs as much as, if no activations are recomputed"""


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Estimated cost of the run.

    Attributes:
        step_s: of one step.
        run_hours: of all steps and evaluations, wall-clock.
        memory_gib, min_gib: of the fullest GPU, or of the process on the CPU: with all responses at the limit, and
            with one response at a time.
        room_gib: memory of the GPU or, on the CPU, of the machine; None if it is not known.
        disk: space of the run's checkpoints.
    """

    step_s: float
    run_hours: float
    memory_gib: float
    min_gib: float
    room_gib: float | None
    disk: CheckpointSpace


def probe_cost(config: ExperimentConfig, probe: Probe) -> ProbeCost:
    """Cost of the run that was probed."""
    step_s, run_s = [], []
    for name, agent in probe.agents.items():
        num_layers = max(1, agent.shape.num_layers)
        passes = PASSES + recomputed_layers(checkpointing(config, name), num_layers) / num_layers
        passed_tokens = config.method.build.num_iterations * passes * agent.trained_tokens
        passed_tokens += agent.mean_length if scores_own(config) else 0.0
        sampling_s = agent.mean_length / agent.sampled_per_s
        response_s = sampling_s + 1 / agent.verified_per_s + passed_tokens / agent.scored_per_s
        step_s.append(config.train.problems * num_samples(config) * response_s)
        run_s.append(config.train.num_steps * step_s[-1] + num_evaluation_responses(config) * sampling_s)
    takes_turns = config.placement.kind == "local" or config.placement.colocated
    total_of = sum if takes_turns else max
    shapes, room = {k: agent.shape for k, agent in probe.agents.items()}, gpu_gib(config)
    if config.engine.device == "cpu":
        room = psutil.virtual_memory().total / GIB
    memory, min_memory = (
        peak_gib(config, shapes, gpu_gib=room or 0.0, is_least=is_least) for is_least in (False, True)
    )  # without a known GPU, vLLM's share counts as nothing
    disk = checkpoint_space(config, shapes)
    return ProbeCost(total_of(step_s), total_of(run_s) / 3600, memory, min_memory, room, disk)
