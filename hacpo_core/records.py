"""The records that travel between phases: frozen, slotted, typed.

On disk they are columns of a Parquet file (`hacpo_core.store`); in memory they are these objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
VerdictStatus = Literal["correct", "wrong", "unscored"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat prompt."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Gold:
    """A reference answer as its source gives it, and what else the source says about it.

    `unit` is what a response may write behind the answer. `tolerance` is the absolute error that is allowed, 0 where
    none is. With `is_multiple` the answer is a list of answers whose order does not matter.
    """

    answer: str
    unit: str = ""
    tolerance: float = 0.0
    is_multiple: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a verifiable answer.

    `messages` is the prompt before any chat template; `gold` is the reference answer; `source` names the data set and
    the row.
    """

    id: str
    messages: tuple[Message, ...]
    gold: Gold
    source: str

    @property
    def answer(self) -> str:
        """The gold answer as its source gives it."""
        return self.gold.answer


@dataclass(frozen=True, slots=True)
class Rollout:
    """One response that one agent sampled to one problem.

    `token_ids` and `logprobs` are the sampled tokens and their log-probabilities (nats) under the policy that sampled
    them, the end-of-sequence token included when the response stopped by itself (`finish_reason == "stop"`).
    `old_logprobs` are the same tokens' log-probabilities as the agent's own training engine computes them before any
    update of the step, or None where `logprobs` stand in for them and save that pass. `policy_version` counts the
    update phases that the policy had seen. `text` is the response without special tokens.
    """

    problem_id: str
    agent: str
    index: int
    sampler: str
    policy_version: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    old_logprobs: tuple[float, ...] | None
    text: str
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification says of one response.

    `reward` is 1.0, 0.0, or None when `status` is "unscored" (the verifier was killed at its time or memory limit, or
    crashed): an unscored response takes part in no mean and no loss. `extracted` is the answer that was found in the
    text, None where there was none. `reason` says why a response is unscored, else "".
    """

    status: VerdictStatus
    reward: float | None
    extracted: str | None
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """What a phase cost: wall seconds, seconds of GPU (0 on the CPU), and tokens that were sampled."""

    seconds: float
    gpu_seconds: float = 0.0
    num_tokens: int = 0
