"""Algorithm 1 of the paper, once, as phases that a runner may call directly or run as tasks.

    problems -> rollout[k] -> verify[k] -> advantage -> update[k] -> metrics
                (agent k)                  (joint)      (agent k)

Every phase starts from what the step store holds and commits what it makes, so that it may be run again at any time.
Shapes: P problem, A agent, G response. Index k learns, j sampled.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from hacpo_core.agents import AgentTokenizer, rollout_task
from hacpo_core.algo.capability import batch_capability, capability_ratios, unit_ratios, windowed_capability
from hacpo_core.algo.methods import BaselineError, Method, joint_advantages
from hacpo_core.batches import LearnerBatch, learner_batch, minibatch_slots
from hacpo_core.checkpoints import Checkpoint, save_checkpoint
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import measures_cosine, num_gpus, num_minibatches, num_ranks, num_samples
from hacpo_core.data.problems import step_batch
from hacpo_core.data.retokenize import Retokenizer
from hacpo_core.engines.replay import NEAR_SHARE, UpdateTrace, compare
from hacpo_core.errors import AgentLostError, ConfigError, EngineError, ReplayError, VerificationError
from hacpo_core.ledger import CapabilityState, JointBatch, Ledger, SampledBatch, UpdateRecord, VerifiedBatch
from hacpo_core.metrics import step_metrics
from hacpo_core.phases import Handle, Phase, Runner
from hacpo_core.placement.base import PlacedAgent, Placement
from hacpo_core.records import Problem, Rollout
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.verify.pool import VerifierPool

NUM_PROBED = 8
"""responses of a step that the learner scores to compare it with the sampler, where it does not score all"""
SAME_LOGPROB = 1e-5
"""nats; a sampler all of whose probed tokens are as near to the learner works with its weights and numerics"""
LARGEST_SAMPLER_ERROR = 1e-3
"""mean |s - 1| between sampler and learner, above which a step warns"""
MOST_LOSSES = 3
"""times that an agent's process may die under one phase before the phase fails"""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(slots=True)
class Experiment:
    """Everything that the phases of one experiment work with; `hacpo_core` never builds one by itself."""

    id: str
    config: ExperimentConfig
    method: Method
    problems: Sequence[Problem]
    placement: Placement
    ledger: Ledger
    verifier: VerifierPool
    opened_at: Checkpoint | None = None
    _retokenizers: dict[tuple[str, str], Retokenizer] = field(default_factory=dict)
    text_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in order."""
        return self.ledger.agents

    @property
    def first_version(self) -> int:
        """Step that the run begins behind: the checkpoint's, or 0."""
        return self.opened_at.step if self.opened_at is not None else 0

    def window_before(self, step: int) -> dict[str, list[float]]:
        """Capability window that a step starts from: the checkpoint's where the run begins there, else the store's."""
        if step == 1:
            return {}
        if self.opened_at is not None and self.opened_at.step == step - 1:
            return self.opened_at.window
        return self.ledger.advantages(step - 1).capability.window

    def retokenizer(self, source: AgentTokenizer, target: AgentTokenizer) -> Retokenizer:
        """The one that turns the source's responses into the target's tokens; comparing tokenizers is done once."""
        key = source.name, target.name
        if key not in self._retokenizers:
            self._retokenizers[key] = Retokenizer(
                source.tokenizer,
                target.tokenizer,
                eos=self.config.retokenize.eos,  # type: ignore[arg-type]
                max_response_tokens=self.config.rollout.max_response_tokens,
                source_eos_ids=source.eos_ids,
                has_same_arguments=source.template_arguments == target.template_arguments,
            )
        return self._retokenizers[key]

    def with_agent(self, k: str, version: int, work: Callable[[PlacedAgent], Result]) -> Result:
        """Result of `work` on agent k with the weights of that version.

        The agent is restored from a checkpoint and stored rollouts if need be. One whose process dies meanwhile is
        replaced, and the work done again.
        """
        for losses in range(1, MOST_LOSSES + 1):
            try:
                with self.placement.turn():
                    agent = self.placement.agent_at(k, version, replay=self._replay)
                    return work(agent)
            except AgentLostError as error:
                if losses == MOST_LOSSES:
                    raise
                _log.warning("%s; it is replaced", error)
        raise AssertionError("the last loss is raised")

    def checkpoint(self, step: int) -> None:
        """Save all agents as they are after `step`; one whose process dies meanwhile is replaced and saved again.

        Raises:
            StoreError: the disk is full or not writable.
        """
        self.ledger.store.sync()  # what the checkpoint was made from does not come after it
        save_checkpoint(
            self.ledger.store.root,
            step,
            self.names,
            lambda k, folder: self.with_agent(k, step, lambda _: self.placement.save(k, folder)),
            self.ledger.advantages(step).capability.window,
            keep=self.config.checkpoint.keep,
        )

    def _replay(self, agent: PlacedAgent, step: int) -> None:
        _apply_update(self, agent, step)

    def stopwatch(self, k: str) -> Stopwatch:
        """One for the GPUs that agent k works on."""
        return Stopwatch(num_ranks(self.config, k) * num_gpus(self.config))


def method_of(config: ExperimentConfig) -> Method:
    """The method that a configuration declares."""
    is_token_level = config.method.ratio == "token"
    return Method(
        name=config.method.name,
        ratio=config.method.ratio,  # type: ignore[arg-type]
        shares_rollouts=config.method.shares_rollouts,
        baseline=config.method.baseline,
        cross_baseline=config.advantage.cross_baseline,  # type: ignore[arg-type]
        cross_weight=config.method.cross_weight,  # type: ignore[arg-type]
        cross_exponent=config.method.cross_exponent,
        cross_power=config.objective.cross_power,  # type: ignore[arg-type]
        cross_bounds=config.method.cross_bounds,  # type: ignore[arg-type]
        cross_is_pessimistic=config.method.cross_is_pessimistic,
        cross_floor=config.clip.cross_floor,
        cross_step=config.clip.cross_step,
        own_low=config.clip.token_low if is_token_level else config.clip.sequence_low,
        own_high=config.clip.token_high if is_token_level else config.clip.sequence_high,
        aggregation=config.objective.aggregation,  # type: ignore[arg-type]
        token_aggregation=config.objective.token_aggregation,  # type: ignore[arg-type]
        binary_guard=config.advantage.binary_guard,
        capability_metric=config.capability.metric,  # type: ignore[arg-type]
        capability_window=config.capability.window,
        kl_coef=config.objective.kl_coef,
        rollout_factor=config.method.rollout_factor,
    )


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A step whose phases are under way: the update of each agent, by name."""

    step: int
    updates: Mapping[str, Handle]


def train_step(x: Experiment, step: int, runner: Runner, *, before: StartedStep | None = None) -> StartedStep:
    """Start one step of Algorithm 1; agent k samples as soon as its own update of the step before is done.

    Args:
        x: the experiment.
        step: 1-based.
        runner: where and when the phases run.
        before: the step before, where it is still under way.
    Source: HACPO, Algorithm 1.
    """
    problems = step_batch(x.problems, step=step, size=x.config.train.problems, seed=x.config.seed)  # line 5
    rollouts = [  # line 10: sample G outputs from every agent's old policy
        runner.start(
            Phase("rollout", step, k),
            lambda k=k: rollout(x, step, k, problems),  # type: ignore[misc]
            after=[before.updates[k]] if before is not None else [],
        )
        for k in x.names
    ]
    verdicts = [  # line 11: verify
        runner.start(Phase("verify", step, k), lambda k=k: verify(x, step, k, problems), after=[done])  # type: ignore[misc]
        for k, done in zip(x.names, rollouts, strict=True)
    ]
    joint = runner.start(Phase("advantage", step), lambda: advantage(x, step, problems), after=verdicts)  # 12, 15
    updates = {  # lines 16-18: update every agent on its mini-batches
        k: runner.start(Phase("update", step, k), lambda k=k: update(x, step, k), after=[joint])  # type: ignore[misc]
        for k in x.names
    }
    return StartedStep(step, updates)


def finish_step(x: Experiment, started: StartedStep) -> None:
    """Wait for a step's updates, and commit what is measured of it."""
    for update_done in started.updates.values():
        update_done.result()
    metrics(x, started.step)


def rollout(x: Experiment, step: int, k: str, problems: Sequence[Problem]) -> None:
    """Agent k samples G responses to each problem.

    Raises:
        EngineError: log-probabilities are no numbers.
    """
    if x.ledger.has(step, f"rollout.{k}"):
        return

    def sample(agent: PlacedAgent) -> SampledBatch:
        shares = len(x.names) > 1 and x.method.shares_rollouts  # others compare their ratios with these values
        with x.stopwatch(k) as watch:
            rollouts = agent.sample(problems, rollout_task(x.config, step))
            probes: dict[int, tuple[float, ...]] = {}
            if not (x.config.old_logprobs == "learner" and shares):
                places = sorted({len(rollouts) * i // NUM_PROBED for i in range(NUM_PROBED)})
                scored = agent.score([rollouts[place] for place in places])
                probes = {place: found.old_logprobs or () for place, found in zip(places, scored, strict=True)}
            reuses = x.config.old_logprobs == "checked" and _agree(rollouts, probes)
            recomputes_own = not (reuses or x.config.old_logprobs == "sampler")
            if recomputes_own and shares:
                rollouts, probes = agent.score(rollouts), {}
        cost = watch.cost(sum(len(found.token_ids) for found in rollouts))
        return SampledBatch(tuple(rollouts), cost, probes, recomputes_own=recomputes_own)

    batch = x.with_agent(k, step - 1, sample)
    logprobs = itertools.chain.from_iterable(found.old_logprobs or found.logprobs for found in batch.rollouts)
    if not all(map(math.isfinite, logprobs)):
        raise EngineError(
            f"step {step}, {k}: some log-probabilities are no numbers, so its weights are spoilt; start again "
            "with a lower optimizer.learning_rate or optimizer.max_grad_norm"
        )
    x.ledger.save_rollouts(step, k, batch)


def _agree(rollouts: Sequence[Rollout], probes: Mapping[int, Sequence[float]]) -> bool:
    """Whether the sampler's log-probabilities are those that the learner gives the probed responses."""
    pairs = [zip(rollouts[place].logprobs, learned, strict=True) for place, learned in probes.items()]
    return all(abs(one - other) <= SAME_LOGPROB for one, other in itertools.chain.from_iterable(pairs))


def verify(x: Experiment, step: int, k: str, problems: Sequence[Problem]) -> None:
    """Verify agent k's responses.

    Raises:
        VerificationError: more responses than `verifier.max_unscored_fraction`, rounded up, are unscored, or all.
    """
    if x.ledger.has(step, f"verify.{k}"):
        return
    rollouts = x.ledger.rollouts(step, k).rollouts
    golds = [problem.gold for problem in problems for _ in range(num_samples(x.config))]
    with Stopwatch() as watch:
        verdicts = x.verifier.verify([rollout.text for rollout in rollouts], golds)
    num_unscored = sum(verdict.status == "unscored" for verdict in verdicts)
    if num_unscored:
        _log.warning("step %d, %s: %d of %d responses are unscored", step, k, num_unscored, len(verdicts))
    most = x.config.verifier.max_unscored_fraction
    if num_unscored == len(verdicts) or num_unscored > math.ceil(most * len(verdicts)):
        raise VerificationError(
            f"step {step}, {k}: {num_unscored} of {len(verdicts)} responses are unscored, all of them or more than "
            f"verifier.max_unscored_fraction={most}; "
            "resume to try once more, or begin anew with a larger verifier.timeout_s or verifier.memory_mb"
        )
    x.ledger.save_verdicts(step, k, problems, VerifiedBatch(tuple(verdicts), watch.cost()))


def advantage(x: Experiment, step: int, problems: Sequence[Problem]) -> None:
    """Capabilities, baselines and advantages of all responses for all learners."""
    if x.ledger.has(step, "advantage"):
        return
    with Stopwatch() as watch:
        reward_PAG, is_scored_PAG = _rewards(x, step, len(problems))
        batch_A = batch_capability(reward_PAG, is_scored_PAG, metric=x.method.capability_metric)
        before = x.window_before(step)
        window = {
            k: [*before.get(k, []), float(batch_A[i])][-x.method.capability_window :] for i, k in enumerate(x.names)
        }
        smoothed_A = windowed_capability(torch.tensor([window[k] for k in x.names], dtype=torch.float64).T)
        bounds = x.config.capability
        ratios = capability_ratios(
            smoothed_A, floor=bounds.floor, lowest=bounds.lowest_ratio, highest=bounds.highest_ratio
        )
        if len(x.names) == 1:
            ratios = unit_ratios(1)
        try:
            joint = joint_advantages(x.method, reward_PAG, is_scored_PAG, ratios)
        except BaselineError as error:
            raise ConfigError(f"method.baseline: {error}; mend the function, or choose another one") from error
    if ratios.num_floored or ratios.num_clipped or joint.baseline.num_guarded:
        _log.info(
            "step %d: %d capabilities floored, %d ratios clipped, %d baselines guarded",
            *(step, ratios.num_floored, ratios.num_clipped, joint.baseline.num_guarded),
        )

    def by_name(value_A: torch.Tensor) -> dict[str, Any]:
        return dict(zip(x.names, value_A.tolist(), strict=True))

    state = CapabilityState(
        batch=by_name(batch_A),
        window=window,
        smoothed=by_name(smoothed_A),
        ratio={k: by_name(ratio_A) for k, ratio_A in zip(x.names, ratios.ratio_AA, strict=True)},
        num_floored=ratios.num_floored,
        num_clipped=ratios.num_clipped,
        num_guarded=joint.baseline.num_guarded,
        uniform_share=by_name(joint.baseline.is_uniform_PA.double().mean(dim=0)),
    )
    x.ledger.save_advantages(step, problems, JointBatch(joint, state, watch.cost()))


def _rewards(x: Experiment, step: int, num_problems: int) -> tuple[torch.Tensor, torch.Tensor]:
    """reward_PAG (float64, 0 where unscored) and is_scored_PAG."""
    rewards = [[verdict.reward for verdict in x.ledger.verdicts(step, k).verdicts] for k in x.names]
    shape = (len(x.names), num_problems, num_samples(x.config))
    value_APG = np.asarray(rewards, dtype=np.float64).reshape(shape)  # None becomes nan
    is_scored_APG = ~np.isnan(value_APG)
    reward_PAG = torch.from_numpy(np.where(is_scored_APG, value_APG, 0.0)).transpose(0, 1).contiguous()
    return reward_PAG, torch.from_numpy(is_scored_APG).transpose(0, 1).contiguous()


def update(x: Experiment, step: int, k: str) -> None:
    """Update agent k on its mini-batches; repeats a committed update when the agent has not seen it yet.

    Raises:
        ReplayError: a repeated update ends in other weights, and `checkpoint.accept_divergence` is off.
    """
    if x.ledger.has(step, f"update.{k}") and x.placement.has_seen(k, step):
        return
    x.with_agent(k, step - 1, lambda agent: _apply_update(x, agent, step))


def _apply_update(x: Experiment, agent: PlacedAgent, step: int) -> None:
    k = agent.name
    with x.stopwatch(k) as watch:
        batch = build_batch(x, step, k)
        applied = agent.update(
            batch.minibatches,
            x.method,
            version=step,
            num_agents=len(x.names),
            measures_cosine=measures_cosine(x.config) and step % x.config.diagnostics.every == 0,
            recomputes_own=x.ledger.rollouts(step, k).recomputes_own,
        )
    if x.ledger.has(step, f"update.{k}"):
        _judge_replay(x, step, k, applied.trace)
        return
    x.ledger.save_update(step, k, UpdateRecord(applied.outcome, applied.trace, batch.counts, watch.cost()))


def _judge_replay(x: Experiment, step: int, k: str, repeated: UpdateTrace) -> None:
    """Note how a repeated update ended; raise a ReplayError where it is another one."""
    recorded = x.ledger.update(step, k).trace
    replay = compare(recorded, repeated)
    x.ledger.add_replay(step, k, replay)
    words = f"replay of step {step}, {k}: {replay.kind}, {replay.distance:.1e} of the update's length apart"
    if replay.kind == "exact":
        _log.info("%s", words)
    elif replay.kind == "near" or x.config.checkpoint.accept_divergence:
        _log.warning("%s; training goes on from there", words)
    else:
        must_equal = recorded.setup == repeated.setup and repeated.setup.is_exact
        expected = "must be exact on the same device" if must_equal else f"at most {NEAR_SHARE} is near"
        raise ReplayError(
            f"{words} ({expected}); the rows or the optimizer's settings changed: a library was updated (go back), or "
            "lost rollouts were sampled again; or set checkpoint.accept_divergence=true"
        )


def _sources(x: Experiment, k: str) -> list[int]:
    """Agents whose responses k trains on, itself first."""
    own = x.names.index(k)
    return [own, *(j for j in range(len(x.names)) if j != own and x.method.shares_rollouts)]


def build_batch(x: Experiment, step: int, k: str) -> LearnerBatch:
    """Agent k's mini-batches of a step, from what the step store holds."""
    config, tokens = x.config, x.placement.tokenizers[k]
    problems = step_batch(x.problems, step=step, size=config.train.problems, seed=config.seed)
    sources = _sources(x, k)
    of_sources = {j: x.placement.tokenizers[x.names[j]] for j in sources}
    _, is_scored_PAG = _rewards(x, step, len(problems))
    rollouts = [x.ledger.rollouts(step, j).rollouts if i in sources else () for i, j in enumerate(x.names)]
    slots = minibatch_slots(
        num_problems=len(problems),
        num_samples=num_samples(config),
        sources=sources,
        num_minibatches=num_minibatches(config),
        order=config.minibatch.order,  # type: ignore[arg-type]
        seed_parts=(config.seed, "minibatch", step, k),
    )
    with x.text_lock:  # a tokenizer serves one thread at a time
        return learner_batch(
            learner=sources[0],
            rollouts=rollouts,
            is_scored_PAG=is_scored_PAG.numpy(),
            joint=x.ledger.advantages(step).advantages,
            slots=slots,
            retokenizers={j: x.retokenizer(of_sources[j], tokens) for j in sources[1:]},
            prompt_ids=[tokens.prompt_ids(problem) for problem in problems],
            eos_ids={j: source.eos_ids for j, source in of_sources.items()},
            drops_eos=config.retokenize.eos == "drop",
        )


def metrics(x: Experiment, step: int) -> None:
    """Commit what is measured of the step, with the one timestamp that it will always have."""
    if x.ledger.store.is_intact(step, "metrics"):
        return
    values = step_metrics(x.ledger, step, is_token_level=x.method.ratio == "token")
    closer = "set engine.dtype=float32 or engine.head_dtype=float32"
    remedy = f"set old_logprobs=learner, or {closer}" if x.config.old_logprobs == "sampler" else closer
    for k, found in values["agents"].items():
        error = found.get("sampler/ratio_error_mean", 0.0)
        if not error <= LARGEST_SAMPLER_ERROR:
            words = "step %d, %s: sampler and learner differ, mean |s - 1| is %.1e, expected at most %.0e; %s"
            _log.warning(words, step, k, error, LARGEST_SAMPLER_ERROR, remedy)
    x.ledger.store.commit(step, "metrics", {"metrics.json": values})
