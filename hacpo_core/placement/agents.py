"""An agent: a tokenizer with its chat template, a sampler, a learner, and the version of its weights.

Shapes: R response, N token of the responses, V vocabulary.
"""

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import (
    checkpointing,
    has_reference,
    longest_sequence,
    planned_updates,
    scores_own,
    total_updates,
)
from hacpo_core.config.threads import num_threads
from hacpo_core.data.batches import Minibatch
from hacpo_core.data.tokens.retokenize import decode_response, strip_eos
from hacpo_core.engines.deepspeed.learner import DeepspeedLearner
from hacpo_core.engines.learning.allocator import release_unused, use_expandable_segments
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.engines.learning.replay import UpdateTrace, this_setup
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.learning.weights import Fingerprint
from hacpo_core.engines.models.loading import check_vocabulary, load_model, use_deterministic_kernels
from hacpo_core.engines.models.lora import add_adapters, base_head
from hacpo_core.engines.passes.scoring import ScoringHead
from hacpo_core.engines.sampling.base import Sampled, Sampler, SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.engines.vllm.sampler import VllmSampler
from hacpo_core.errors import EngineError, ModelError, first_line
from hacpo_core.methods.base import State
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.sampling import sample_specs
from hacpo_core.records import Problem
from hacpo_core.responses import Responses
from hacpo_core.seeds import derive_seed

PROBE_TOKENS = 64
"""number of first tokens of each response that are compared after a weight transfer"""
CHECKED_TOKENS, MAX_DIFFERENCE = 256, 2.0
"""smallest number of tokens compared, and largest difference of one of them, nats"""
MAX_PROBE_ROUNDS = 16
"""most responses per prompt in this comparison; if they are too short, fewer tokens are compared"""
UNUSUAL_FACTOR = 10
"""multiple of the tolerated mean difference above which a single token's difference is logged"""
_log = logging.getLogger(__name__)


Purpose = Literal["rollout", "evaluate"]
"""purpose of responses; gives training and evaluations different random numbers"""


class Agent:
    """One language model that samples and learns.

    `version` is the number of update phases applied to its weights. `is_dirty` is True during an update phase; if it
    still is afterwards, the update failed, and the weights are between two versions. It is True, too, after the sampler
    failed. A dirty agent must be restored.
    """

    def __init__(
        self, tokens: AgentTokenizer, config: ExperimentConfig, *, initial: Path, folder: Path, version: int
    ) -> None:
        """Load the weights in `folder` (the initial model or a checkpoint).

        With adapters, the initial weights are always loaded: those of a checkpoint are merged, and its adapters are
        among the optimizer's tensors.

        Args:
            tokens: the agent's tokenizer, which has its name.
            config: the experiment's.
            initial: folder of the initial model, for the reference and the sampler.
            folder: folder of the weights.
            version: of these weights.
        """
        name = tokens.name
        engine = config.engine
        use_expandable_segments(engine)
        torch.set_num_threads(num_threads(config))
        if engine.device != "cpu" and engine.deterministic:
            use_deterministic_kernels()
        self.name, self.tokens, self.version, self.is_dirty = name, tokens, version, False
        self._fingerprint: Fingerprint | None = None
        self.config = config
        self.initial = initial

        def load(path: Path) -> PreTrainedModel:
            return load_model(path, dtype=engine.dtype, device=engine.device)

        try:
            self.model = load(initial if engine.lora.rank > 0 else folder)
        except ModelError as error:
            raise ModelError(f"pair.agents.{name}: {error}") from error

        check_vocabulary(self.model, self.tokens.tokenizer, agent=name)
        self._is_known_V = np.ones(self.model.config.get_text_config().vocab_size, dtype=bool)
        self._is_known_V[tokens.unknown_ids(len(self._is_known_V))] = False
        reference: PreTrainedModel | ScoringHead | None = None
        if engine.lora.rank > 0:
            add_adapters(self.model, engine.lora, seed_parts=(config.seed, "lora", name))
        if has_reference(config):
            has_own_base = engine.lora.rank > 0
            reference = base_head(self.model) if has_own_base else load(initial).requires_grad_(False)
        self.learner = self._new_learner(reference)
        self._release_unused()
        # last, because it may start processes, which a later failure would leave behind
        self.sampler: Sampler = self._new_sampler()

    def _new_learner(self, reference: PreTrainedModel | ScoringHead | None) -> BaseLearner:
        """The configured learner."""
        config = self.config
        kind = DeepspeedLearner if config.engine.learner == "deepspeed" else TorchLearner
        return kind(
            self.model,
            optimizer=config.optimizer,
            engine=replace(config.engine, gradient_checkpointing=checkpointing(config, self.name)),
            temperature=config.rollout.temperature,
            total_updates=total_updates(config),
            reference=reference,
        )

    def _new_sampler(self) -> Sampler:
        """The configured sampler."""
        config, model, eos_ids = self.config, self.model, self.tokens.eos_ids
        unknown_ids = np.flatnonzero(~self._is_known_V).tolist()
        if config.engine.sampler == "vllm":
            return VllmSampler(
                model,
                initial=self.initial,
                engine=config.engine,
                rollout=config.rollout,
                max_tokens=longest_sequence(config),
                eos_ids=eos_ids,
                unknown_ids=unknown_ids,
            )
        return TransformersSampler(
            model,
            eos_ids=eos_ids,
            pad_id=int(self.tokens.tokenizer.pad_token_id),
            batch_size=config.rollout.batch_size,
            unknown_ids=unknown_ids,
        )

    def _release_unused(self) -> None:
        """Release the free memory of torch's allocator, for samplers and agents in other processes."""
        release_unused(torch.device(self.config.engine.device))

    def rest(self) -> None:
        """Release device memory for other agents until the next call."""
        self.sampler.rest()
        self._release_unused()

    def close(self) -> None:
        """Stop everything that the sampler and the learner started."""
        self.sampler.close()
        self.learner.close()

    def sample(
        self, specs: Sequence[SampleSpec], *, step: int, purpose: Purpose, problems: Sequence[Problem] = ()
    ) -> Responses:
        """Sample a response for each spec. The arguments and the weights determine every response exactly.

        Args:
            specs: the responses to sample, in any order.
            step: of the training; 0 before it.
            purpose: see `Purpose`.
            problems: of all ranks, for the check after a weight transfer; empty: those of the specs.

        Returns:
            responses in the order of the specs, without the training engine's log-probabilities; the log-probabilities
            of searched responses are nan.
        """
        problems = problems or distinct_problems(specs)
        self.tokens.render(problems)
        requests = [
            SampleRequest(
                self.tokens.prompt_ids(spec.problem),
                derive_seed(self.config.seed, purpose, step, self.name, spec.problem.id, spec.sample),
                limits=spec.limits,
            )
            for spec in specs
        ]
        sampled = self._sampled(specs, requests, [self.tokens.prompt_ids(problem) for problem in problems])
        # Remove EOS by its id: generation_config may list an EOS that the tokenizer does not treat as special.
        content = [strip_eos(ids, self.tokens.eos_ids) for ids in sampled.token_ids]
        return Responses(
            step=step,
            agent=self.name,
            problem_id=tuple(spec.problem.id for spec in specs),
            sample_R=np.array([spec.sample for spec in specs], dtype=np.int64),
            tag=tuple(spec.tag for spec in specs),
            policy_version_R=np.full(len(specs), self.version),
            prompt_ids=Ragged.of([request.prompt_ids for request in requests], np.int32),
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            num_sampled_R=sampled.num_sampled_R,
            sampler_figures=sampled.figures,
            text=tuple(decode_response(self.tokens.tokenizer, ids.tolist()) for ids in content),
            finish_reason=tuple("length" if is_cut else "stop" for is_cut in sampled.is_cut_R),
        )

    def _sampled(
        self, specs: Sequence[SampleSpec], requests: Sequence[SampleRequest], prompts: Sequence[tuple[int, ...]]
    ) -> Sampled:
        """What the sampler returns with the current weights; each rank checks its own sampler on prompts of all."""
        torch.set_num_threads(num_threads(self.config))
        self._release_unused()
        try:
            self.sampler.synchronise(self.version, lambda: self.check_sampler(prompts))
            sampled = sample_specs(
                specs, requests, self.sampler, reader_of=self.tokens.step_reader, eos_ids=self.tokens.eos_ids
            )
        except EngineError:
            self.is_dirty = True  # the engine may have stopped, so that a retry needs a new one
            raise
        token_N = sampled.token_ids.value_N
        foreign_ids = token_N[(token_N >= len(self._is_known_V)) | ~self._is_known_V[token_N % len(self._is_known_V)]]
        if len(foreign_ids):
            raise EngineError(
                f"agent {self.name}: {self.sampler.name} sampled the token id {foreign_ids[0]}, expected one of the "
                "tokenizer's; use the model's own tokenizer, or engine.sampler=transformers"
            )
        return sampled

    def score(self, responses: Responses) -> Ragged:
        """The training engine's log-probabilities (float32, nats) of the responses under the current weights."""
        torch.set_num_threads(num_threads(self.config))
        self.sampler.rest()  # the learner's passes need the memory
        scored = self.learner.logprobs(TokenRows.of(list(responses.prompt_ids), responses.token_ids))
        self._release_unused()
        return scored

    def update(
        self,
        minibatches: Sequence[Minibatch],
        objective: Objective,
        *,
        version: int,
        objective_state: State | None = None,
    ) -> tuple[UpdateOutcome, UpdateTrace]:
        """One optimizer update per mini-batch, and their trace; afterwards, the weights are of `version`.

        See `BaseLearner.update`.

        Raises:
            EngineError: the GPU's memory is too small, or a gradient is not finite.
        """
        torch.set_num_threads(num_threads(self.config))
        self.sampler.rest()
        before = self.fingerprint()
        self.is_dirty, self._fingerprint = True, None
        try:
            outcome = self.learner.update(
                minibatches,
                objective,
                planned_updates=planned_updates(self.config, version),
                scores_own=scores_own(self.config),
                objective_state=objective_state,
            )
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"agent {self.name}: {first_line(error)} Set engine.gradient_checkpointing=true or lower "
                "engine.micro_batch_tokens"
            ) from error
        self.version, self.is_dirty = version, False
        self._release_unused()
        engine = self.config.engine
        setup = this_setup(
            torch.device(engine.device), is_deterministic=engine.deterministic, layout=self.learner.layout
        )
        return outcome, UpdateTrace(before, self.fingerprint(), setup)

    def gradient_cosine(self, rows: Minibatch, objective: Objective) -> float | None:
        """As `BaseLearner.gradient_cosine`."""
        torch.set_num_threads(num_threads(self.config))
        self.sampler.rest()
        return self.learner.gradient_cosine(rows, objective)

    def fingerprint(self) -> Fingerprint:
        """Identity of the current weights; computed once per version, by all ranks together."""
        if self._fingerprint is None:
            self._fingerprint = self.learner.fingerprint()
        return self._fingerprint

    def check_sampler(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Compare the log-probabilities of sampler and learner on a few responses, sampled anew in every call.

        Raises:
            EngineError: their mean difference exceeds `engine.vllm.sync_tolerance`, or one of them MAX_DIFFERENCE.
        """
        rollout, tolerance = self.config.rollout, self.config.engine.vllm.sync_tolerance
        limits = replace(rollout.limits, max_tokens=min(PROBE_TOKENS, rollout.max_response_tokens))
        prompts = list(dict.fromkeys(prompts))[: math.ceil(CHECKED_TOKENS / limits.max_tokens)]
        sampled_rows: list[tuple[tuple[int, ...], NDArray[np.int32]]] = []
        sampler_logprobs: list[float] = []
        for _ in range(MAX_PROBE_ROUNDS):
            # Random seeds, so that a run that stopped here does not compare the same responses after a retry.
            probes = [SampleRequest(prompt, secrets.randbits(63)) for prompt in prompts]
            responses = self.sampler.sample(probes, limits)
            sampled_rows += zip((probe.prompt_ids for probe in probes), responses.token_ids, strict=True)
            sampler_logprobs += responses.logprobs.value_N.tolist()
            if len(sampler_logprobs) >= CHECKED_TOKENS:
                break
        learner_logprobs = self.learner.logprobs_of_each(TokenRows.of(*zip(*sampled_rows, strict=True)))
        difference_N = np.abs(np.array(sampler_logprobs, dtype=np.float32) - learner_logprobs.value_N)
        mean, max_difference = float(difference_N.mean()), float(difference_N.max())
        message = (
            f"agent {self.name}: after the transfer of weights version {self.version}, the log-probabilities of "
            f"{self.sampler.name} and the learner differ by {mean:.1e} nats on average over "
            f"{len(sampler_logprobs)} tokens, {max_difference:.1e} at most"
        )
        if not (mean <= tolerance and max_difference <= MAX_DIFFERENCE):  # also for nan
            raise EngineError(
                f"{message}, expected at most {tolerance:g} and {MAX_DIFFERENCE:g}; the sampler has "
                f"different weights, or engine.vllm.sync_tolerance is too small for engine.dtype: raise it"
            )
        if max_difference > UNUSUAL_FACTOR * tolerance:
            _log.warning("%s", message)


def distinct_problems(specs: Sequence[SampleSpec]) -> list[Problem]:
    """The problems of the specs, each once, in their order."""
    return list({spec.problem.id: spec.problem for spec in specs}.values())


def share_of(specs: Sequence[SampleSpec], rank: int, num_ranks: int) -> list[SampleSpec]:
    """The specs of one rank: those of consecutive problems, with all their responses."""
    problem_ids = [problem.id for problem in distinct_problems(specs)]
    start, end = (len(problem_ids) * at // num_ranks for at in (rank, rank + 1))
    own_ids = set(problem_ids[start:end])
    return [spec for spec in specs if spec.problem.id in own_ids]
