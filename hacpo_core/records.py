"""Small records that are passed between phases. Responses are stored as columns, see `responses.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

VerdictStatus = Literal["correct", "wrong", "partial", "unscored"]
AnswerStyle = Literal["boxed", "last_number", "plain", "auto"]
"""which part of a response is its answer"""
Equality = Literal["math_verify", "normalised"]
"""when two answers are equal"""
EosRule = Literal["keep", "drop", "as_text"]
"""what becomes of a response's end-of-sequence token in another tokenizer"""
WarmUpProgress = Callable[[int, int, float], None]
"""called during a warm-up with (step, steps, loss)"""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat prompt."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Gold:
    """A reference answer as given by its source, with its properties.

    `unit` is a unit that a response may append. `tolerance` is the allowed absolute error.
    """

    answer: str
    unit: str = ""
    tolerance: float = 0.0


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
        """The reference answer as given by its source."""
        return self.gold.answer


class RowKey(NamedTuple):
    """Key of a response, the same in memory, in the store and in the dashboard.

    `sample` is the number of the response among an agent's responses to one problem in one step, from 0.
    """

    step: int
    agent: str
    problem_id: str
    sample: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying one response.

    `reward` is in [0, 1]: 1 is "correct", 0 "wrong", anything between "partial". It is None if `status` is "unscored"
    (the verifier was killed at its time or memory limit, or crashed); such a response counts in no mean and no loss.
    `extracted` is the answer found in the text, None if there was none. `reason` is why a response is unscored, else
    "". `parts` are the rewards of several reward functions, of which `reward` is the mean; empty with one function, and
    if the response is unscored.
    """

    status: VerdictStatus
    reward: float | None
    extracted: str | None
    seconds: float
    reason: str = ""
    parts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Cost of a phase: wall-clock seconds, GPU-seconds (0 on the CPU), and sampled tokens."""

    seconds: float
    gpu_seconds: float = 0.0
    num_tokens: int = 0

    @classmethod
    def total(cls, costs: Iterable[PhaseCost]) -> PhaseCost:
        """The sum of several costs."""
        summands = list(costs)
        return cls(
            sum((cost.seconds for cost in summands), 0.0),
            sum((cost.gpu_seconds for cost in summands), 0.0),
            sum(cost.num_tokens for cost in summands),
        )


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """How tokens are sampled from the policy, softmax(logits / temperature).

    Attributes:
        temperature: > 0.
        top_p: in (0, 1]; only the smallest set of tokens with this share of the probability is sampled.
        max_tokens: of the response.
        is_greedy: take the most likely token and ignore all but `max_tokens`.
    """

    temperature: float
    top_p: float
    max_tokens: int
    is_greedy: bool = False


@dataclass(frozen=True, slots=True)
class StepSearch:
    """Settings of a step-by-step beam search for responses; see `hacpo_core.engines.sampling.step_search`.

    Attributes:
        num_beams: beams kept after each round.
        num_candidates: next steps sampled for each beam in a round.
        step_tokens: largest number of tokens of a step.
        step_end: text that ends a step.
        closing_mark: text that ends the reasoning, if the agent's chat template contains it; otherwise, the first
            complete box ends it.
    """

    num_beams: int
    num_candidates: int
    step_tokens: int
    step_end: str
    closing_mark: str


def max_figures(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The maximum of each figure over the parts that have it."""
    return {name: max(part[name] for part in parts if name in part) for name in dict.fromkeys(chain(*parts))}
