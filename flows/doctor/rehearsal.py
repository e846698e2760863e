"""`hacpo doctor --gpu MODEL`: the longest rows through a real update of two agents, and the memory that they take.

Both agents sample first, so that each has held its engine awake while the other's was asleep.

Shapes: N response token of all rows.
"""

import math
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil

from flows.doctor.trial import ALONE
from flows.planning.compose import compose
from flows.planning.memory import GIB, folder_shape, gpu_gib, memory_of_agents, nvidia_smi, used_gib
from flows.planning.plans import plan
from flows.runs.opening import open_experiment
from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.batches import own_minibatch
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.seeds import generator

EVERY_S = 0.2
"""time between two readings of the memory in use"""
FIXED = ("train.num_steps=1", "train.problems=2", "method.build.problems=2", "rollout.num_samples=4")
LENGTHS = ("rollout.max_prompt_tokens=1024", "rollout.max_response_tokens=4096")
"""the paper's, which the words of a call may change"""


def rehearse(model: str, hardware: str, *overrides: str) -> str:
    """Sample and update two agents of this model with the longest rows, and compare the peak of memory with the plan.

    Args:
        model: folder or hub name.
        hardware: name or path of a hardware file.
        overrides: each "section.field=value".

    Returns:
        one line: peak, plan and what there is, GiB: of the fullest GPU, or on the CPU of this process.

    Raises:
        HacpoError: the plan is refused, or memory ran out.
    """
    agents = [f"pair.agents.{name}.{field}" for name in ("first", "second") for field in (f"path={model}", "tiny=null")]
    with tempfile.TemporaryDirectory(prefix="hacpo-rehearsal-", ignore_cleanup_errors=True) as folder:
        words = [*agents, *ALONE, *FIXED, *LENGTHS, f"runtime.runs_dir={folder}"]
        planned = plan(compose("_trial_two", "gspo", hardware=hardware, overrides=[*words, *overrides]))
        config = planned.config
        with _peak(config) as peak, open_experiment(planned) as (experiment, _):
            shapes = {agent: folder_shape(experiment.placement.folder(agent)) for agent in experiment.agents}
            problems, objective = experiment.problems(1), experiment.method.objective
            specs = [SampleSpec(problem, sample, config.rollout.limits) for problem in problems for sample in range(4)]
            for agent in experiment.agents:
                with agent_at(experiment, agent, 0) as (placed, _):
                    placed.sample(specs, step=1, purpose="rollout")
            for agent, shape in shapes.items():
                rows = _longest_rows(config, shape.vocab_size)
                logprobs = Ragged.from_lengths(np.full(len(rows.responses.value_N), -1.0), rows.responses.lengths)
                advantages = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)
                with agent_at(experiment, agent, 0) as (placed, _):
                    placed.update([own_minibatch(rows, logprobs, advantages, objective)], objective, version=1)
    room = gpu_gib(config) or psutil.virtual_memory().total / GIB
    memory = memory_of_agents(config, shapes, gpu_gib=room)
    expected = max(used_gib(config, memory, lambda needs: max(needs.updating, needs.sampling)).values())
    return f"two agents of {model}: peak {peak[0]:.1f} GiB, by the plan at most {expected:.1f}, of {room:.1f}"


def _longest_rows(config: ExperimentConfig, vocab_size: int) -> TokenRows:
    """Rows of random tokens, as long as the configuration allows, for two full passes of each rank at least."""
    lengths = config.rollout.max_prompt_tokens, config.rollout.max_response_tokens
    num_rows = 16 * math.ceil(config.engine.micro_batch_tokens / sum(lengths))
    random = generator(config.seed, "rehearsal")
    return TokenRows.of(*([random.integers(vocab_size, size=length) for _ in range(num_rows)] for length in lengths))


@contextmanager
def _peak(config: ExperimentConfig) -> Iterator[list[float]]:
    """Yields a list with the largest memory in use so far, GiB, read from time to time."""
    peak, has_ended = [0.0], threading.Event()

    def watch() -> None:
        while not has_ended.wait(EVERY_S):
            peak[0] = max(peak[0], _used_gib(config.engine.device))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        has_ended.set()
        thread.join()


def _used_gib(device: str) -> float:
    if device == "cpu":
        return psutil.Process().memory_info().rss / GIB
    return max(int(line) / 1024 for line in nvidia_smi("memory.used"))
