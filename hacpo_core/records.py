"""The small records that travel between phases: frozen, slotted, typed. Responses are columns (`responses.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length"]
VerdictStatus = Literal["correct", "wrong", "partial", "unscored"]


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

    `messages` is the prompt before any chat template; `gold` is the reference answer; `place` names the data set and
    the row.
    """

    id: str
    messages: tuple[Message, ...]
    gold: Gold
    place: str

    @property
    def answer(self) -> str:
        """The gold answer as its source gives it."""
        return self.gold.answer


class RowKey(NamedTuple):
    """Which response: everywhere, in memory, in the store, on the page.

    `sample` counts an agent's responses to one problem in one step, from 0.
    """

    step: int
    agent: str
    problem_id: str
    sample: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification says of one response.

    `reward` is in [0, 1]: 1 is "correct", 0 "wrong", anything between "partial". It is None when `status` is "unscored"
    (the verifier was killed at its time or memory limit, or crashed): it takes part in no mean and no loss.
    `extracted` is the answer that was found in the text, None where there was none. `reason` says why a response is
    unscored, else "".
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

    @classmethod
    def total(cls, costs: Iterable[PhaseCost]) -> PhaseCost:
        """The sum of several."""
        each = list(costs)
        gpu_seconds, num_tokens = sum(cost.gpu_seconds for cost in each), sum(cost.num_tokens for cost in each)
        return cls(sum(cost.seconds for cost in each), gpu_seconds, num_tokens)


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """temperature > 0 and top_p in (0, 1]; `is_greedy` takes the likeliest token and ignores both."""

    temperature: float
    top_p: float
    max_tokens: int
    is_greedy: bool = False


@dataclass(frozen=True, slots=True)
class StepSearch:
    """How responses are searched for, step by step; see `hacpo_core.engines.step_search`.

    Attributes:
        num_beams: beams that stay after each round.
        num_candidates: steps that are sampled behind each beam in a round.
        step_tokens: most tokens of a step.
        step_end: text that ends a step.
        closing_mark: text that ends the reasoning, where the agent's chat template has it; elsewhere the first complete
            box does.
    """

    num_beams: int
    num_candidates: int
    step_tokens: int
    step_end: str
    closing_mark: str
