"""The tokens of one response, each with the log-probability that it was sampled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from dashboards.models.listing import UnknownError
from flows.planning.plans import Plan
from hacpo_core.errors import StoreError
from hacpo_core.store.steps import StepStore, phase_name

BOUNDS = (-0.01, -0.1, -0.7, -2.3, -4.6)
"""upper bounds of the classes of log-probabilities: probabilities of about 0.99, 0.9, 0.5, 0.1 and 0.01"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A token as text, or several that spell one character; `logprob` is their sum, nats."""

    text: str
    logprob: float

    @property
    def kind(self) -> int:
        """Class of the log-probability, from 0 (almost certain) to 5."""
        return sum(self.logprob < bound for bound in BOUNDS)


def read_tokens(plan: Plan, step: int, *, agent: str, problem_id: str, sample: int) -> list[Piece]:
    """The tokens of a response of a training step.

    Raises:
        UnknownError: there is no such response, or its tokenizer is not on this machine.
    """
    store = StepStore(plan.root)
    for number in range(store.num_rounds(step, "rollout", agent)):
        phase, file = phase_name("rollout", agent, number), f"{phase_name('rollouts', agent, number)}.parquet"
        try:
            columns = ["problem_id", "sample", "token_ids", "logprobs"]
            table = store.read_table(step, phase, file, columns=columns)
        except StoreError as error:
            raise UnknownError(f"the tokens cannot be shown: {error}") from error
        rows = table[(table["problem_id"] == problem_id) & (table["sample"] == sample)]
        if len(rows):
            row = rows.iloc[0]
            return pieces(_tokenizer(plan, agent), list(map(int, row["token_ids"])), list(map(float, row["logprobs"])))
    raise UnknownError(f"step {step} has no response {sample} of {agent} to {problem_id!r}")


def pieces(tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[float]) -> list[Piece]:
    """Tokens as text; those that only together spell a character become one piece."""
    pieces_of_text, start = list[Piece](), 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
        if "\ufffd" in text and end < len(ids) and end - start < 8:
            continue
        pieces_of_text.append(Piece(text, sum(logprobs[start:end])))
        start = end
    return pieces_of_text


def _tokenizer(plan: Plan, agent: str) -> Tokenizer:
    checkpoints = sorted(plan.root.glob(f"checkpoints/*/{agent}/tokenizer.json"))
    path = plan.config.pair.agents[agent].path
    folders = [*checkpoints[-1:], *([Path(path) / "tokenizer.json"] if path is not None else [])]
    for file in folders:
        if file.is_file():
            return Tokenizer.from_file(str(file))
    raise UnknownError(f"the tokenizer of {agent} is not on this machine, so its tokens cannot be shown")
