"""One real step of training with a very small model, on the engines of a hardware file.

    sample, score ─▶ step 1: sample, judge, update ─▶ sample, score       at both ends sampler and learner are compared

Shapes: N token of all responses.
"""

import tempfile
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from flows.planning.compose import compose
from flows.planning.plans import plan
from flows.runs.opening import open_experiment
from hacpo_core.algorithm import train_step
from hacpo_core.experiment import Experiment
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.phases.health_rules import sampler_limit
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import Problem
from hacpo_core.responses import Responses

SIZES = ("train.num_steps=1", "train.problems=2", "method.build.problems=2", "rollout.num_samples=4")
LENGTHS = ("rollout.max_prompt_tokens=64", "rollout.max_response_tokens=8", "optimizer.learning_rate=0.01")
ALONE = ("evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=false", f"reward.functions=[{__name__}:coin]")


def coin(problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
    """A reward of 0 or 1 by the text alone, since random weights solve nothing."""
    return [float(zlib.crc32(text.encode()) % 2) for text in responses]


def try_step(hardware: str = "cpu", *overrides: str) -> str:
    """Train one step, and compare the log-probabilities of sampler and learner before and after it.

    Args:
        hardware: name or path of a hardware file; `cpu` uses a GPU if there is one.
        overrides: each "section.field=value", such as engine.sampler=vllm.

    Returns:
        one line about the result.

    Raises:
        HacpoError: an engine cannot be used.
        RuntimeError: sampler and learner disagree, or the update changed nothing.
    """
    device = ("engine.device=cuda",) if hardware == "cpu" and torch.cuda.is_available() else ()
    with tempfile.TemporaryDirectory(prefix="hacpo-trial-", ignore_cleanup_errors=True) as folder:
        words = [*SIZES, *LENGTHS, *ALONE, f"runtime.runs_dir={folder}", *device, *overrides]
        with open_experiment(plan(compose("_trial", "gspo", hardware=hardware, overrides=words))) as (experiment, _):
            responses, before = _difference(experiment, version=0)
            train_step(experiment, 1, DirectRunner())
            _, after = _difference(experiment, version=1)
            (agent,) = experiment.agents
            with agent_at(experiment, agent, 1) as (placed, _):
                scores = placed.score(responses)
            engine = experiment.config.engine
    if np.allclose(scores.value_N, responses.logprobs.value_N, atol=sampler_limit(engine.dtype)):
        raise RuntimeError("the update changed nothing: expected other log-probabilities after it than before")
    limit = sampler_limit(engine.dtype)
    if not max(before, after) <= limit:
        raise RuntimeError(
            f"sampler and learner differ by {before:.1e} nats a token before an update, {after:.1e} after it, expected "
            f"at most {limit:g}"
        )
    return (
        f"samples and trains on {engine.device} in {engine.dtype}; {engine.sampler} sampler and {engine.learner} "
        f"learner agree to {max(before, after):.0e} nats before and after an update"
    )


def _difference(experiment: Experiment, *, version: int) -> tuple[Responses, float]:
    """What the only agent samples with these weights, and the mean |sampler - learner| log-probability, nats."""
    (agent,), limits = experiment.agents, experiment.config.rollout.limits
    specs = [SampleSpec(problem, sample, limits) for problem in experiment.problems(1) for sample in range(4)]
    with agent_at(experiment, agent, version) as (placed, _):
        responses = placed.sample(specs, step=version + 1, purpose="rollout")
        scores = placed.score(responses)
    return responses, float(np.abs(scores.value_N - responses.logprobs.value_N).mean())
