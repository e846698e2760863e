"""What a learner trains on: what a row holds, and what is left out on the way.

Shapes: L learner, A agent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from hacpo_core.data.batches import Minibatch, RowReader, learner_minibatches
from hacpo_core.data.tokens.retokenize import Retokenizer, decode_response
from hacpo_core.methods.estimate import Estimate
from hacpo_core.methods.objective import Objective, RowKind
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.records import EosRule, RowKey
from tests import tokenizers_zoo as zoo
from tests.rollouts import Rollout, responses_of

# Two problems, two responses each; the advantage of a response says whose it is: 1000 learner + 100 p + 10 j + i.
TEXTS = {0: ["x = 3", "7", "42", "The answer"], 1: ["y = 4", "12", "x + y = 7", "12 + 30"]}
WEIGHT_LA = [[1.0, 0.5], [2.0, 1.0]]


def tokenizer(name: str) -> PreTrainedTokenizerBase:
    return zoo.TOKENIZERS[name]


def eos_of(name: str) -> int:
    return int(tokenizer(name).eos_token_id)


def encoded(name: str, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(name)(text, add_special_tokens=False)["input_ids"])


def rollout(name: str, text: str, index: int, *, finish_reason: str = "stop", offset: float = 0.0) -> Rollout:
    ids = encoded(name, text) + ((eos_of(name),) if finish_reason == "stop" else ())
    return Rollout(
        problem_id=str(index // 2),
        agent=name,
        index=index % 2,
        prompt_ids=(1, 2),
        token_ids=ids,
        logprobs=tuple(offset - 1.0 - t for t in range(len(ids))),
        text=text,
        finish_reason=finish_reason,
    )


def estimate_of(names: Sequence[str]) -> Estimate:
    """Advantages that say whose they are."""
    p_i = np.array([0.0, 1.0, 100.0, 101.0])
    return Estimate(
        {str(k): {str(j): 1000 * k + 10 * j + p_i for j in (0, 1)} for k in (0, 1)},
        {str(k): {str(j): np.full(4, WEIGHT_LA[k][j]) for j in (0, 1)} for k in (0, 1)},
    )


class Built(NamedTuple):
    minibatches: list[Minibatch]
    figures: dict[str, float]


def batch_of(
    rollouts: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    *,
    learner: int = 0,
    eos: EosRule = "keep",
    max_response_tokens: int = 99,
    num_minibatches: int = 1,
    objective: Objective | None = None,
) -> Built:
    """Batch of a learner of two agents, "0" and "1", every source shared."""
    other = 1 - learner
    retokenizer = Retokenizer(tokenizer(names[other]), tokenizer(names[learner]), eos=eos)
    responses = {str(j): replace(responses_of(own), agent=str(j)) for j, own in enumerate(rollouts)}
    reader = RowReader(
        learner=str(learner),
        agents=("0", "1"),
        step=1,
        responses=lambda _, agent: responses[agent],
        estimate=lambda _: estimate_of(names),
        prompt_ids=lambda problem_id: [(5,), (6, 6)][int(problem_id)],
        retokenizers={str(other): retokenizer},
        eos_ids={str(j): frozenset({eos_of(name)}) for j, name in enumerate(names)},
        teacher_advantages=None,
        drops_eos=eos == "drop",
    )
    keys = [[RowKey(1, str(j), str(p), i) for j, p, i in piece] for piece in slots(learner, other, num_minibatches)]
    return Built(*learner_minibatches(reader, keys, objective or CrossClip(), max_response_tokens=max_response_tokens))


def slots(learner: int, other: int, num_minibatches: int) -> list[list[tuple[int, int, int]]]:
    """Source, problem and sample of each row, own rows first in each mini-batch."""
    pieces = [range(2)] if num_minibatches == 1 else [range(1), range(1, 2)]
    return [[(j, p, i) for j in (learner, other) for p in piece for i in (0, 1)] for piece in pieces]


@dataclass(frozen=True)
class Row:
    """One row of a mini-batch."""

    source: int
    problem: int
    index: int
    is_own: bool
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    advantage: float
    cross_weight: float
    old_mean_logprob: float
    old_logprobs: tuple[float, ...]


def rollouts_of(names: Sequence[str]) -> list[list[Rollout]]:
    return [[rollout(name, text, i, offset=-j) for i, text in enumerate(TEXTS[j])] for j, name in enumerate(names)]


def rows_in(batch: Minibatch) -> list[Row]:
    tokens = batch.tokens
    return [
        Row(
            source=int(key.agent),
            problem=int(key.problem_id),
            index=key.sample,
            is_own=bool(batch.kind_B[b] == RowKind.OWN),
            prompt_ids=tuple(tokens.prompts[tokens.prompt_B[b]].tolist()),
            response_ids=tuple(tokens.responses[b].tolist()),
            advantage=float(batch.advantage_B[b]),
            cross_weight=float(batch.weight_B[b]),
            old_mean_logprob=float(batch.old_mean_logprob_B[b]),
            old_logprobs=tuple(batch.old_logprobs[b].tolist()),
        )
        for b, key in enumerate(batch.keys)
    ]


def rows_of(batch: Built) -> dict[tuple[int, int, int], Row]:
    return {(row.source, row.problem, row.index): row for piece in batch.minibatches for row in rows_in(piece)}


@pytest.mark.parametrize("learner", [0, 1])
def test_row_carries_the_advantage_weight_and_prompt_of_its_response(learner: int) -> None:
    names = ("byte_level", "character")
    rows = rows_of(batch_of(rollouts_of(names), names, learner=learner))
    assert len(rows) == 8
    for (j, p, i), row in rows.items():
        assert row.advantage == 1000 * learner + 100 * p + 10 * j + i
        assert row.cross_weight == (1.0 if j == learner else WEIGHT_LA[learner][j])
        assert row.is_own is (j == learner)
        assert row.prompt_ids == ((1, 2) if row.is_own else [(5,), (6, 6)][p]), "own: what it was sampled behind"


def test_own_rows_keep_their_sampled_ids_and_old_logprobs() -> None:
    names = ("word_piece", "character")
    rollouts = rollouts_of(names)
    # Ids that no tokenizer would choose again: one token per character, then a doubled EOS.
    odd = (*encoded("word_piece", "4"), *encoded("word_piece", "2"), eos_of("word_piece"))
    rollouts[0][2] = replace(rollouts[0][2], token_ids=odd, logprobs=(-1.0, -2.0, -6.0))
    row = rows_of(batch_of(rollouts, names))[0, 1, 0]
    assert row.response_ids == odd
    assert row.old_logprobs == (-1.0, -2.0, -6.0)
    assert row.old_mean_logprob == -3.0


@pytest.mark.parametrize("source", zoo.MAKERS)
@pytest.mark.parametrize("target", zoo.MAKERS)
def test_cross_rows_hold_the_text_in_the_learners_tokens(source: str, target: str) -> None:
    names = (target, source)
    batch = batch_of(rollouts_of(names), names)
    rows = rows_of(batch)
    for i, text in enumerate(TEXTS[1]):
        row = rows[1, i // 2, i % 2]
        assert row.response_ids[-1] == eos_of(target)
        assert decode_response(tokenizer(target), row.response_ids).strip() == text
        assert row.old_logprobs == ()
    assert not any(value for name, value in batch.figures.items() if name != "text/length_drift")


def test_dropping_eos_shortens_own_and_cross_rows_and_their_old_means() -> None:
    names = ("byte_level", "character")
    rows = rows_of(batch_of(rollouts_of(names), names, eos="drop"))
    own, cross = rows[0, 1, 0], rows[1, 0, 1]
    assert own.response_ids == encoded("byte_level", "42")
    assert len(own.old_logprobs) == len(own.response_ids)
    assert own.old_mean_logprob == np.mean(own.old_logprobs)
    assert decode_response(tokenizer("byte_level"), cross.response_ids) == "12"
    assert eos_of("byte_level") not in cross.response_ids
    assert cross.old_mean_logprob == -2.5  # -2 and -3; with the source's EOS -3


def test_unscored_responses_are_left_out_and_counted() -> None:
    names = ("byte_level", "character")
    rollouts = rollouts_of(names)
    rollouts[1][0], rollouts[0][3] = replace(rollouts[1][0], reward=None), replace(rollouts[0][3], reward=None)
    batch = batch_of(rollouts, names)
    all_rows = {(j, p, i) for j in (0, 1) for p in (0, 1) for i in (0, 1)}
    assert set(rows_of(batch)) == all_rows - {(1, 0, 0), (0, 1, 1)}
    assert batch.figures["update/num_unscored"] == 2
    (minibatch,) = batch.minibatches
    assert minibatch.row_weight_B.tolist() == pytest.approx([1 / 3] * 6), "means are over the three rows of each source"


def with_cut_rows(names: Sequence[str]) -> list[list[Rollout]]:
    """Own responses 0 and 1 and the partner's response 3 are cut; the advantages of the own ones are 0 and 1."""
    rollouts = rollouts_of(names)
    for j, i in ((0, 0), (0, 1), (1, 3)):
        rollouts[j][i] = rollout(names[j], TEXTS[j][i], i, finish_reason="length", offset=-j)
    return rollouts


def test_cut_rows_leave_the_loss_and_its_denominators() -> None:
    names = ("byte_level", "character")
    rollouts = with_cut_rows(names)
    assert len(rows_of(batch_of(rollouts, names))) == 8
    batch = batch_of(rollouts, names, objective=CrossClip(mask_truncated="all"))
    assert set(rows_of(batch)) == {(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0)}
    assert batch.figures["update/masked_share"] == 3 / 8
    assert batch.figures["text/num_empty"] == batch.figures["update/num_unscored"] == 0
    (minibatch,) = batch.minibatches
    assert minibatch.row_weight_B.tolist() == pytest.approx([1 / 2] * 2 + [1 / 3] * 3), "rows left of each source"
    own_lengths = minibatch.tokens.responses.lengths[:2]
    assert minibatch.num_own_tokens == own_lengths.sum()
    of_tokens = batch_of(rollouts, names, objective=TokenClip(mask_truncated="all")).minibatches[0]
    assert of_tokens.row_weight_B[:2].tolist() == pytest.approx([1 / own_lengths.sum()] * 2)


@pytest.mark.parametrize("eos", ["keep", "drop"])
def test_response_of_eos_alone_is_trained_on_own_and_shared_alike(eos: EosRule) -> None:
    names = ("byte_level", "character")
    rollouts = rollouts_of(names)
    for j, name in enumerate(names):
        rollouts[j][0] = replace(rollout(name, "", 0), logprobs=(-0.75 - j,))
    batch = batch_of(rollouts, names, eos=eos)
    own, cross = rows_of(batch)[0, 0, 0], rows_of(batch)[1, 0, 0]
    assert own.response_ids == cross.response_ids == (eos_of("byte_level"),)  # the learner's
    assert (own.old_logprobs, own.old_mean_logprob, cross.old_mean_logprob) == ((-0.75,), -0.75, -1.75)
    assert batch.figures["text/num_empty"] == 0


def test_length_drift_is_the_mean_relative_change_in_tokens() -> None:
    names = ("character", "byte_level")
    rollouts = rollouts_of(names)
    lengths = [(len(encoded("byte_level", text)) + 1, len(text) + 1) for text in TEXTS[1]]
    expected = np.mean([(target - source) / source for source, target in lengths])
    assert batch_of(rollouts, names).figures["text/length_drift"] == pytest.approx(expected, abs=1e-15)
    assert expected != 0.0


def test_mini_batches_keep_the_order_of_their_keys() -> None:
    names = ("byte_level", "character")
    batch = batch_of(rollouts_of(names), names, num_minibatches=2)
    found = [[(row.source, row.problem, row.index) for row in rows_in(piece)] for piece in batch.minibatches]
    assert found == slots(0, 1, 2)


def test_rows_of_an_earlier_step_are_old_and_carry_what_they_carried_then() -> None:
    names = ("byte_level", "character")
    own = replace(responses_of(rollouts_of(names)[0]), agent="0")
    estimates = {1: Estimate({"0": {"0": np.arange(4.0)}})}
    estimates[2] = Estimate({"0": {"0": 10 + np.arange(4.0)}})
    reader = RowReader(
        learner="0",
        agents=("0",),
        step=2,
        responses=lambda step, _: replace(own, step=step),
        estimate=lambda step: estimates[step],
        prompt_ids=lambda _: (),
        retokenizers={},
        eos_ids={"0": frozenset({eos_of(names[0])})},
        teacher_advantages=None,
        drops_eos=False,
    )
    keys = [[RowKey(2, "0", "0", 0), RowKey(1, "0", "1", 1)]]
    (batch,), _ = learner_minibatches(reader, keys, CrossClip(), max_response_tokens=9)
    assert batch.kind_B.tolist() == [RowKind.OWN, RowKind.OLD]
    assert batch.advantage_B.tolist() == [10.0, 3.0]
    assert batch.old_logprobs[1].tolist() == own.logprobs[3].tolist()


def test_empty_and_cut_shared_responses_are_counted_and_cut_ones_masked_if_so_configured() -> None:
    names = ("character", "byte_level")
    rollouts = rollouts_of(names)
    rollouts[1][0] = rollout("byte_level", "", 0, finish_reason="length")
    batch = batch_of(rollouts, names, max_response_tokens=8)
    assert (1, 0, 0) not in rows_of(batch)
    assert decode_response(tokenizer("character"), rows_of(batch)[1, 1, 0].response_ids) == "x + y = "
    assert (batch.figures["text/num_empty"], batch.figures["text/num_truncated"]) == (1, 1)
    masked = batch_of(rollouts, names, max_response_tokens=8, objective=CrossClip(mask_truncated="all"))
    assert (1, 1, 0) not in rows_of(masked) and masked.figures["update/masked_share"] == 1 / 7
    positive = batch_of(with_cut_rows(names), names, objective=CrossClip(mask_truncated="positive"))
    assert (0, 0, 0) in rows_of(positive), "its advantage is 0"
    assert {(0, 0, 1), (1, 1, 1)}.isdisjoint(rows_of(positive)) and positive.figures["update/masked_share"] == 2 / 8
