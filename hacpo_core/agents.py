"""An agent: a tokenizer with its chat template, a sampler, a learner, and the version of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from hacpo_core.config import AgentConfig, ExperimentConfig
from hacpo_core.data.prompts import render_prompt
from hacpo_core.data.retokenize import decode_response
from hacpo_core.engines.base import SampledResponse, Sampler, SampleRequest, SamplingLimits, ScoreRequest
from hacpo_core.engines.lora import add_adapters, base_head
from hacpo_core.engines.models import (
    ScoringHead,
    check_model_folder,
    check_vocabulary,
    eos_ids,
    find_model,
    load_model,
    load_tokenizer,
)
from hacpo_core.engines.torch_learner import TorchLearner
from hacpo_core.engines.transformers_sampler import TransformersSampler
from hacpo_core.engines.vllm_sampler import VllmSampler
from hacpo_core.errors import EngineError, ModelError
from hacpo_core.records import Message, Problem, Rollout
from hacpo_core.seeds import derive_seed
from hacpo_core.tiny.models import Progress, ensure_tiny_model
from hacpo_core.validation import longest_sequence, num_minibatches, num_samples


def initial_folder(
    name: str, agent: AgentConfig, *, models_dir: Path, progress: Progress | None = None, checks: bool = True
) -> Path:
    """Folder of an agent's initial model: found and checked, or made here if it is a tiny one.

    Raises:
        ModelError: there is no such folder, or it cannot become an agent.
    """
    if agent.tiny is not None:
        return ensure_tiny_model(agent.tiny, models_dir, progress=progress)
    assert agent.path is not None, "validate() lets no agent pass without path and tiny"
    folder = find_model(agent.path, agent=name)
    if checks:
        check_model_folder(folder, agent=name, has_template_override=agent.chat_template is not None)
    return folder


class Agent:
    """One language model that samples and learns.

    `version` counts the update phases that its weights have seen. `is_dirty` is True while an update phase is under
    way: after a failure the weights are then between two versions, and must be restored before anything else.
    """

    def __init__(self, name: str, config: ExperimentConfig, *, initial: Path, folder: Path, version: int) -> None:
        """Load the weights that lie in `folder` (the initial model or a checkpoint).

        With adapters the initial weights are loaded whatever the folder: a checkpoint's are merged, and its adapters
        come with the optimizer's tensors.

        Args:
            name: of the agent in the configuration.
            config: of the experiment.
            initial: folder of the initial model: tokenizer, EOS ids, reference.
            folder: folder of the weights.
            version: of those weights.
        """
        agent, engine = config.pair.agents[name], config.engine
        torch.set_num_threads(engine.num_threads)
        self.name, self.version, self.is_dirty = name, version, False
        self.config = config
        self.initial = initial

        def load(path: Path) -> PreTrainedModel:
            return load_model(path, dtype=engine.dtype, device=engine.device, trust_remote_code=agent.trust_remote_code)

        try:
            self.tokenizer = load_tokenizer(
                initial, chat_template=agent.chat_template, trust_remote_code=agent.trust_remote_code
            )
            self.eos_ids = eos_ids(initial, self.tokenizer)
            self.model = load(initial if engine.lora.rank > 0 else folder)
        except ModelError as error:
            raise ModelError(f"pair.agents.{name}: {error}") from error

        check_vocabulary(self.model, self.tokenizer, agent=name)
        reference: PreTrainedModel | ScoringHead | None = None
        if engine.lora.rank > 0:
            add_adapters(self.model, engine.lora, seed_parts=(config.seed, "lora", name))
        if config.objective.kl_coef > 0 and engine.lora.rank > 0:
            reference = base_head(self.model, is_wide=engine.head_dtype == "float32")
        elif config.objective.kl_coef > 0:
            reference = load(initial).requires_grad_(False)
        self.learner = TorchLearner(
            self.model,
            optimizer=config.optimizer,
            engine=engine,
            temperature=config.rollout.temperature,
            total_updates=config.train.num_steps * num_minibatches(config),
            reference=reference,
        )
        self._prompt_ids: dict[tuple[Message, ...], tuple[int, ...]] = {}
        self.sampler = self._new_sampler()  # last: it may start processes, and nothing may fail after that

    def _new_sampler(self) -> Sampler:
        """The sampler that the configuration names."""
        config, agent = self.config, self.config.pair.agents[self.name]
        if config.engine.sampler == "transformers":
            return TransformersSampler(
                self.model,
                eos_ids=self.eos_ids,
                pad_id=int(self.tokenizer.pad_token_id),
                batch_size=config.rollout.batch_size,
                has_wide_head=config.engine.head_dtype == "float32",
            )
        return VllmSampler(
            self.model,
            initial=self.initial,
            engine=config.engine,
            rollout=config.rollout,
            max_tokens=config.engine.vllm.max_model_tokens or longest_sequence(config),
            eos_ids=self.eos_ids,
            trust_remote_code=agent.trust_remote_code,
        )

    def rest(self) -> None:
        """Leave the device to other agents, with `engine.offloads`; the next call takes it back."""
        if self.config.engine.offloads:
            self.sampler.rest()
            self.learner.offload(weights=True)

    def close(self) -> None:
        """End what the sampler started."""
        self.sampler.close()

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        """The problem under this agent's tokenizer and chat template."""
        if problem.messages not in self._prompt_ids:
            self._prompt_ids[problem.messages] = render_prompt(self.tokenizer, problem.messages)
        return self._prompt_ids[problem.messages]

    def rollout(self, problems: Sequence[Problem], *, step: int) -> list[Rollout]:
        """Sample G responses to each problem, and score them with the training engine where that is asked for.

        Returns:
            P x G rollouts in problem-major order; a function of (seed, step, agent, problem, sample) and the weights.
        """
        torch.set_num_threads(self.config.engine.num_threads)
        rollout = self.config.rollout
        samples = range(num_samples(self.config))
        requests = [
            SampleRequest(
                self.prompt_ids(problem),
                derive_seed(self.config.seed, "rollout", step, self.name, problem.id, index),
            )
            for problem in problems
            for index in samples
        ]
        limits = SamplingLimits(rollout.temperature, rollout.top_p, rollout.max_response_tokens)
        responses = self._sample(requests, limits)
        owners = [(problem, index) for problem in problems for index in samples]
        rollouts = [
            self._rollout(problem, index, response)
            for (problem, index), response in zip(owners, responses, strict=True)
        ]
        if self.config.old_logprobs == "sampler":
            return rollouts
        old = self.learner.logprobs([ScoreRequest(rollout.prompt_ids, rollout.token_ids) for rollout in rollouts])
        return [replace(rollout, old_logprobs=logprobs) for rollout, logprobs in zip(rollouts, old, strict=True)]

    def answer(
        self, problems: Sequence[Problem], *, step: int, num_samples: int, limits: SamplingLimits
    ) -> list[Rollout]:
        """Answer each problem k times, for an evaluation.

        Returns:
            P x k rollouts in problem-major order; a function of (seed, step, agent, problem, sample) and the weights.
        """
        torch.set_num_threads(self.config.engine.num_threads)
        owners = [(problem, index) for problem in problems for index in range(num_samples)]
        requests = [
            SampleRequest(
                self.prompt_ids(problem),
                derive_seed(self.config.seed, "evaluate", step, self.name, problem.id, index),
            )
            for problem, index in owners
        ]
        responses = self._sample(requests, limits)
        return [
            self._rollout(problem, index, response)
            for (problem, index), response in zip(owners, responses, strict=True)
        ]

    def _sample(self, requests: Sequence[SampleRequest], limits: SamplingLimits) -> list[SampledResponse]:
        """Sample from the weights as they are now; the sampler's memory is free again afterwards."""
        if self.config.engine.offloads:
            self.learner.onload(optimizer=False)
            self.learner.offload()
        self.sampler.synchronise(self.version, lambda: self._compare(requests))
        responses = self.sampler.sample(requests, limits)
        self.sampler.rest()
        return responses

    def _compare(self, requests: Sequence[SampleRequest]) -> None:
        """Raise an EngineError when sampler and learner do not agree on the first tokens of a few responses."""
        rollout, vllm = self.config.rollout, self.config.engine.vllm
        prompts = list(dict.fromkeys(request.prompt_ids for request in requests))[: vllm.sync_prompts]
        probes = [
            SampleRequest(prompt, derive_seed(self.config.seed, "synchronise", self.version, self.name, index))
            for index, prompt in enumerate(prompts)
        ]
        limits = SamplingLimits(rollout.temperature, rollout.top_p, min(vllm.sync_tokens, rollout.max_response_tokens))
        responses = self.sampler.sample(probes, limits)
        scored = self.learner.logprobs(
            [ScoreRequest(probe.prompt_ids, found.token_ids) for probe, found in zip(probes, responses, strict=True)]
        )
        sampled_N = torch.tensor([logprob for response in responses for logprob in response.logprobs])
        learned_N = torch.tensor([logprob for logprobs in scored for logprob in logprobs])
        difference = float((sampled_N - learned_N).abs().max())
        if not difference <= vllm.sync_tolerance:  # nan is a difference too
            raise EngineError(
                f"agent {self.name}: after its weights of version {self.version} were handed over, {self.sampler.name} "
                f"and the learner disagree by {difference:.2e} nats, expected at most {vllm.sync_tolerance:g}; the "
                "sampler holds other weights, or engine.vllm.sync_tolerance is too fine for engine.dtype"
            )

    def _rollout(self, problem: Problem, index: int, response: SampledResponse) -> Rollout:
        return Rollout(
            problem_id=problem.id,
            agent=self.name,
            index=index,
            sampler=self.sampler.name,
            policy_version=self.version,
            prompt_ids=self.prompt_ids(problem),
            token_ids=response.token_ids,
            logprobs=response.logprobs,
            old_logprobs=None,
            text=decode_response(self.tokenizer, response.token_ids),
            finish_reason=response.finish_reason,
        )

    def require_version(self, version: int) -> None:
        """Raise an EngineError unless the weights are exactly of that version."""
        if self.is_dirty or self.version != version:
            state = "in the middle of an update" if self.is_dirty else f"at version {self.version}"
            raise EngineError(f"agent {self.name} is {state}, expected version {version}; resume the experiment")
