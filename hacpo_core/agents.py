"""An agent: a tokenizer with its chat template, a sampler, a learner, and the version of its weights."""

from __future__ import annotations

import itertools
import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hacpo_core.algo.methods import Method
from hacpo_core.batches import Minibatch
from hacpo_core.config import AgentConfig, ExperimentConfig
from hacpo_core.config.counts import longest_sequence, num_samples, total_updates
from hacpo_core.data.prompts import check_template_arguments, render_prompts
from hacpo_core.data.retokenize import decode_response, strip_eos
from hacpo_core.engines.allocator import keep_freed_memory
from hacpo_core.engines.base import (
    SampledResponse,
    Sampler,
    SampleRequest,
    SamplingLimits,
    ScoreRequest,
    UpdateOutcome,
)
from hacpo_core.engines.deepspeed_learner import DeepspeedLearner
from hacpo_core.engines.folders import find_model
from hacpo_core.engines.learner import BaseLearner
from hacpo_core.engines.lora import add_adapters, base_head
from hacpo_core.engines.models import (
    check_lengths,
    check_vocabulary,
    eos_ids,
    load_model,
    load_tokenizer,
    use_deterministic_kernels,
)
from hacpo_core.engines.offload import release_unused
from hacpo_core.engines.replay import UpdateTrace, this_setup
from hacpo_core.engines.scoring import ScoringHead
from hacpo_core.engines.torch_learner import TorchLearner
from hacpo_core.engines.transformers_sampler import TransformersSampler
from hacpo_core.engines.vllm_sampler import VllmSampler
from hacpo_core.engines.weights import Fingerprint
from hacpo_core.errors import EngineError, ModelError
from hacpo_core.records import Message, Problem, Rollout
from hacpo_core.seeds import derive_seed
from hacpo_core.tiny.models import Progress, ensure_tiny_model

PROBE_TOKENS = 64
"""first tokens of a response that are compared after a hand-over of weights"""
MOST_PROBE_ROUNDS = 16
"""times that each prompt is answered, where responses are short, before fewer tokens have to do"""
UNUSUAL_FACTOR = 10
"""times the tolerated mean difference, above which that of a single token is logged"""
_log = logging.getLogger(__name__)


def initial_folder(name: str, agent: AgentConfig, *, models_dir: Path, progress: Progress | None = None) -> Path:
    """Folder of an agent's initial model: found, or made here if it is a tiny one.

    Raises:
        ModelError: there is no such folder.
    """
    if agent.tiny is not None:
        return ensure_tiny_model(agent.tiny, models_dir, progress=progress)
    assert agent.path is not None, "validate() lets no agent pass without path and tiny"
    return find_model(agent.path, agent=name)


@dataclass(frozen=True, slots=True)
class SamplingTask:
    """What one call for responses asks for; the fields decide, with the weights, every response to the bit.

    `purpose` keeps the random numbers of training and of evaluations apart.
    """

    step: int
    purpose: Literal["rollout", "evaluate"]
    num_samples: int
    limits: SamplingLimits


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """What an update phase did, and what identifies it."""

    outcome: UpdateOutcome
    trace: UpdateTrace


def rollout_task(config: ExperimentConfig, step: int) -> SamplingTask:
    """The responses that a training step needs of every agent."""
    rollout = config.rollout
    limits = SamplingLimits(rollout.temperature, rollout.top_p, rollout.max_response_tokens)
    return SamplingTask(step, "rollout", num_samples(config), limits)


class AgentTokenizer:
    """What of an agent can be had without its weights: tokenizer, chat template, its arguments, and EOS ids."""

    def __init__(self, name: str, config: AgentConfig, *, initial: Path) -> None:
        """Load them from the folder of the initial model.

        Raises:
            ModelError: they cannot be loaded.
            ConfigError: the chat template does not read an argument.
        """
        self.name = name
        given = config.chat_template_kwargs
        self.template_arguments = {key: value for key, value in given.items() if value is not None}
        try:
            self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(
                initial, chat_template=config.chat_template, trust_remote_code=config.trust_remote_code
            )
            self.eos_ids = eos_ids(initial, self.tokenizer)
            check_template_arguments(self.tokenizer, self.template_arguments, agent=name)
        except ModelError as error:
            raise ModelError(f"pair.agents.{name}: {error}") from error
        self._prompt_ids: dict[tuple[Message, ...], tuple[int, ...]] = {}

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        """The problem under this tokenizer and chat template."""
        if problem.messages not in self._prompt_ids:
            self.render([problem])
        return self._prompt_ids[problem.messages]

    def render(self, problems: Sequence[Problem]) -> None:
        """Have the `prompt_ids` of all these problems at hand: sooner done at once than one by one."""
        unread = list({problem.messages: None for problem in problems if problem.messages not in self._prompt_ids})
        rendered = render_prompts(self.tokenizer, unread, arguments=self.template_arguments)
        self._prompt_ids |= zip(unread, rendered, strict=True)


class Agent:
    """One language model that samples and learns.

    `version` counts the update phases that its weights have seen. `is_dirty` is True while an update phase is under
    way: after a failure the weights are then between two versions, and must be restored before anything else.
    """

    def __init__(
        self, tokens: AgentTokenizer, config: ExperimentConfig, *, initial: Path, folder: Path, version: int
    ) -> None:
        """Load the weights that lie in `folder` (the initial model or a checkpoint).

        With adapters the initial weights are loaded whatever the folder: a checkpoint's are merged, and its adapters
        come with the optimizer's tensors.

        Args:
            tokens: the agent's tokenizer, which knows its name.
            config: of the experiment.
            initial: folder of the initial model, for the reference and for samplers that start from a folder.
            folder: folder of the weights.
            version: of those weights.
        """
        name = tokens.name
        agent, engine = config.pair.agents[name], config.engine
        torch.set_num_threads(engine.num_threads)
        if engine.device == "cpu":
            keep_freed_memory()
        elif engine.deterministic:
            use_deterministic_kernels()
        self.name, self.tokens, self.version, self.is_dirty = name, tokens, version, False
        self._fingerprint: Fingerprint | None = None
        self.config = config
        self.initial = initial

        def load(path: Path) -> PreTrainedModel:
            return load_model(path, dtype=engine.dtype, device=engine.device, trust_remote_code=agent.trust_remote_code)

        try:
            self.model = load(initial if engine.lora.rank > 0 else folder)
        except ModelError as error:
            raise ModelError(f"pair.agents.{name}: {error}") from error

        check_vocabulary(self.model, self.tokens.tokenizer, agent=name)
        check_lengths(self.model, longest_sequence(config), agent=name)
        reference: PreTrainedModel | ScoringHead | None = None
        if engine.lora.rank > 0:
            add_adapters(self.model, engine.lora, seed_parts=(config.seed, "lora", name))
        if config.objective.kl_coef > 0:
            has_own_base = engine.lora.rank > 0
            is_wide = engine.head_dtype == "float32"
            reference = base_head(self.model, is_wide=is_wide) if has_own_base else load(initial).requires_grad_(False)
        self.learner = self._new_learner(reference)
        self._release_unused()
        self.sampler = self._new_sampler()  # last: it may start processes, and nothing may fail after that

    def _new_learner(self, reference: PreTrainedModel | ScoringHead | None) -> BaseLearner:
        """The learner that the configuration names."""
        config = self.config
        kind = DeepspeedLearner if config.engine.learner == "deepspeed" else TorchLearner
        return kind(
            self.model,
            optimizer=config.optimizer,
            engine=config.engine,
            temperature=config.rollout.temperature,
            total_updates=total_updates(config),
            reference=reference,
        )

    def _new_sampler(self) -> Sampler:
        """The sampler that the configuration names."""
        config, agent = self.config, self.config.pair.agents[self.name]
        if config.engine.sampler == "transformers":
            return TransformersSampler(
                self.learner.policy,
                eos_ids=self.tokens.eos_ids,
                pad_id=int(self.tokens.tokenizer.pad_token_id),
                batch_size=config.rollout.batch_size,
                has_wide_head=config.engine.head_dtype == "float32",
            )
        return VllmSampler(
            self.learner.policy,
            initial=self.initial,
            engine=config.engine,
            rollout=config.rollout,
            max_tokens=config.engine.vllm.max_model_tokens or longest_sequence(config),
            eos_ids=self.tokens.eos_ids,
            trust_remote_code=agent.trust_remote_code,
        )

    def _release_unused(self) -> None:
        """Give back what torch's allocator keeps free: vLLM and other agents may live in other processes."""
        release_unused(torch.device(self.config.engine.device))

    def rest(self) -> None:
        """Leave the device to other agents; the next call takes it back.

        The sampler sleeps where it can, and with `engine.offloads` the learner's tensors go to host memory.
        """
        self.sampler.rest()
        if self.config.engine.offloads:
            self.learner.offload(weights=True)
        self._release_unused()

    def close(self) -> None:
        """End what the sampler and the learner started."""
        self.sampler.close()
        self.learner.close()

    def sample(self, problems: Sequence[Problem], task: SamplingTask, *, part: slice = slice(None)) -> list[Rollout]:
        """Answer each problem `task.num_samples` times.

        Args:
            problems: P problems.
            task: see there.
            part: problems of them that are answered here, while other ranks answer the others.

        Returns:
            rollouts of that part in problem-major order, without the training engine's log-probabilities.
        """
        torch.set_num_threads(self.config.engine.num_threads)
        owners = [(problem, index) for problem in problems[part] for index in range(task.num_samples)]
        self.tokens.render(problems[part])
        requests = [
            SampleRequest(
                self.tokens.prompt_ids(problem),
                derive_seed(self.config.seed, task.purpose, task.step, self.name, problem.id, index),
            )
            for problem, index in owners
        ]
        if self.config.engine.offloads:
            self.learner.onload(optimizer=False)
            self.learner.offload()
        self.learner.refresh_policy()
        self._release_unused()
        # Each rank checks a sampler of its own, on prompts of all problems.
        self.sampler.synchronise(self.version, lambda: self._compare([self.tokens.prompt_ids(p) for p in problems]))
        responses = self.sampler.sample(requests, task.limits)
        return [
            self._rollout(problem, index, response)
            for (problem, index), response in zip(owners, responses, strict=True)
        ]

    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with the training engine's log-probabilities under the current weights."""
        torch.set_num_threads(self.config.engine.num_threads)
        self.sampler.rest()  # the learner's passes need the memory
        old = self.learner.logprobs([ScoreRequest(rollout.prompt_ids, rollout.token_ids) for rollout in rollouts])
        self._release_unused()
        return [replace(rollout, old_logprobs=logprobs) for rollout, logprobs in zip(rollouts, old, strict=True)]

    def update(
        self,
        minibatches: Sequence[Minibatch],
        method: Method,
        *,
        version: int,
        num_agents: int,
        measures_cosine: bool,
        recomputes_own: bool,
    ) -> AppliedUpdate:
        """One optimizer update per mini-batch, in order; the weights are of `version` afterwards."""
        torch.set_num_threads(self.config.engine.num_threads)
        self.sampler.rest()
        before = self.fingerprint()
        self.is_dirty, self._fingerprint = True, None
        outcome = self.learner.update(
            minibatches,
            method,
            num_agents=num_agents,
            max_response_tokens=self.config.rollout.max_response_tokens,
            measures_cosine=measures_cosine,
            recomputes_own=recomputes_own,
        )
        self.version, self.is_dirty = version, False
        self._release_unused()
        setup = this_setup(torch.device(self.config.engine.device), is_deterministic=self.config.engine.deterministic)
        return AppliedUpdate(outcome, UpdateTrace(before, self.fingerprint(), setup))

    def fingerprint(self) -> Fingerprint:
        """Identity of the weights as they are; computed once for each version, by all ranks together."""
        if self._fingerprint is None:
            self._fingerprint = self.learner.fingerprint()
        return self._fingerprint

    def _compare(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Compare sampler and learner on the tokens of a few responses, other ones at every call.

        Raises:
            EngineError: their mean difference is over `engine.vllm.sync_tolerance`, or one is over `sync_bound`.
        """
        rollout, vllm = self.config.rollout, self.config.engine.vllm
        limits = SamplingLimits(rollout.temperature, rollout.top_p, min(PROBE_TOKENS, rollout.max_response_tokens))
        prompts = list(dict.fromkeys(prompts))[: math.ceil(vllm.sync_tokens / limits.max_tokens)]
        asked: list[ScoreRequest] = []
        sampled: list[float] = []
        for _ in range(MOST_PROBE_ROUNDS):
            # Random seeds: the retry of a run that stopped here must not ask for the same responses again.
            probes = [SampleRequest(prompt, secrets.randbits(63)) for prompt in prompts]
            for probe, response in zip(probes, self.sampler.sample(probes, limits), strict=True):
                asked.append(ScoreRequest(probe.prompt_ids, response.token_ids))
                sampled += response.logprobs
            if len(sampled) >= vllm.sync_tokens:
                break
        scored = itertools.chain.from_iterable(self.learner.logprobs_of_each(asked))
        difference_N = (torch.tensor(sampled) - torch.tensor(list(scored))).abs()
        mean, largest = float(difference_N.mean()), float(difference_N.max())
        words = (
            f"agent {self.name}: after its weights of version {self.version} were handed over, {self.sampler.name} and "
            f"the learner disagree by {mean:.1e} nats on average over {len(sampled)} tokens, {largest:.1e} at most"
        )
        if not (mean <= vllm.sync_tolerance and largest <= vllm.sync_bound):  # nan is a difference too
            raise EngineError(
                f"{words}; expected {vllm.sync_tolerance:g} and {vllm.sync_bound:g}: the sampler holds other weights, "
                "or engine.vllm.sync_tolerance is too fine for engine.dtype"
            )
        if largest > UNUSUAL_FACTOR * vllm.sync_tolerance:
            _log.warning("%s", words)

    def _rollout(self, problem: Problem, index: int, response: SampledResponse) -> Rollout:
        return Rollout(
            problem_id=problem.id,
            agent=self.name,
            index=index,
            sampler=self.sampler.name,
            policy_version=self.version,
            prompt_ids=self.tokens.prompt_ids(problem),
            token_ids=response.token_ids,
            logprobs=response.logprobs,
            old_logprobs=None,
            # The EOS by its id: a generation configuration may name one that the tokenizer does not hold for special.
            text=decode_response(self.tokens.tokenizer, strip_eos(response.token_ids, self.tokens.eos_ids)),
            finish_reason=response.finish_reason,
        )
