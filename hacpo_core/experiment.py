"""The objects that the phases of one experiment share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hacpo_core.config import ExperimentConfig, MethodConfig
from hacpo_core.config.counts import num_gpus, num_ranks, train_set_counts
from hacpo_core.data.tokens.control_tokens import TEXT_LOCK
from hacpo_core.data.tokens.retokenize import Retokenizer
from hacpo_core.data.training import step_problems
from hacpo_core.methods.state import decode
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.base import Placement
from hacpo_core.placement.checkpoints import Checkpoint
from hacpo_core.records import Problem
from hacpo_core.stopwatch import Stopwatch
from hacpo_core.store.ledger import Ledger
from hacpo_core.verify.pool import VerifierPool
from hacpo_core.verify.rewards import Rewards


@dataclass(slots=True)
class Experiment:
    """Everything that the phases of one experiment share. The caller builds it; `hacpo_core` never does."""

    id: str
    config: ExperimentConfig
    train_sets: Mapping[str, Sequence[Problem]]
    placement: Placement
    ledger: Ledger
    verifier: VerifierPool
    rewards: Rewards
    opened_at: Checkpoint | None = None
    _retokenizers: dict[tuple[str, str], Retokenizer] = field(default_factory=dict)
    _by_id: dict[str, Problem] = field(default_factory=dict)

    @property
    def method(self) -> MethodConfig:
        """The method's parts."""
        return self.config.method

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents' names, in order."""
        return self.ledger.agents

    @property
    def first_version(self) -> int:
        """Weights version at which the run begins: the checkpoint's step, or 0 without a checkpoint."""
        return self.opened_at.step if self.opened_at is not None else 0

    def problems(self, step: int) -> list[Problem]:
        """The problems of a step."""
        return step_problems(self.train_sets, train_set_counts(self.config), step=step, seed=self.config.seed)

    def problem(self, problem_id: str) -> Problem:
        """The training problem with this id."""
        if not self._by_id:
            self._by_id = {problem.id: problem for problems in self.train_sets.values() for problem in problems}
        return self._by_id[problem_id]

    def sources(self, learner: str) -> tuple[str, ...]:
        """Agents whose rows a learner may train on, itself first."""
        return (learner, *(j for j in self.agents if j != learner and self.method.shares_rollouts))

    def state_before(self, step: int, phase: str) -> dict[str, Any]:
        """State that a phase's part starts the step with: the one it returned in the previous step, {} in step 1.

        Args:
            step: the step that begins.
            phase: rollout.<agent>, advantage, update.<agent>, or objective.<agent>, see `Ledger.state`.
        """
        if step == 1:
            return {}
        if self.opened_at is not None and self.opened_at.step == step - 1:
            return decode(self.opened_at.states[phase])
        return decode(self.ledger.state(step - 1, phase))

    def retokenizer(self, source: AgentTokenizer, target: AgentTokenizer) -> Retokenizer:
        """Converts the source's responses to the target's tokens. Cached, because comparing tokenizers is slow."""
        key = source.name, target.name
        with TEXT_LOCK:
            if key not in self._retokenizers:
                self._retokenizers[key] = Retokenizer(
                    source.tokenizer,
                    target.tokenizer,
                    eos=self.config.retokenize.eos,
                    source_eos_ids=source.eos_ids,
                    target_end_id=target.end_id,
                    has_same_arguments=source.template_arguments == target.template_arguments,
                )
            return self._retokenizers[key]

    def stopwatch(self, agent: str) -> Stopwatch:
        """A stopwatch that counts the GPUs of this agent."""
        return Stopwatch(num_ranks(self.config, agent) * num_gpus(self.config))
