"""What a learner trains on: which responses in which mini-batch, and what a row holds.

Shapes: L learner, P problem, A agent, G response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from hacpo_core.algo.advantages import Baseline
from hacpo_core.algo.methods import JointAdvantages
from hacpo_core.batches import BatchCounts, LearnerBatch, Row, Slot, learner_batch, minibatch_slots
from hacpo_core.data.retokenize import EosRule, Retokenizer, decode_response
from hacpo_core.records import FinishReason, Rollout
from tests import tokenizers_zoo as zoo

MAKERS = {
    "character": zoo.character,
    "byte_level": zoo.byte_level,
    "word_piece": zoo.word_piece,
    "metaspace": zoo.metaspace,
    "slow": zoo.slow_character,
}


def slots_of(*, sources: Sequence[int] = (0, 1), seed_parts: Sequence[int | str] = (0, "x"), **sizes: Any) -> Any:
    given = {"num_problems": 8, "num_samples": 4, "num_minibatches": 4, "order": "mixed", **sizes}
    return minibatch_slots(sources=sources, seed_parts=seed_parts, **given)


def shares(pieces: Sequence[Sequence[Slot]]) -> list[dict[int, int]]:
    """Rows of each source in each mini-batch."""
    return [dict(Counter(source for source, _, _ in piece)) for piece in pieces]


@pytest.mark.parametrize("sources", [[0], [1, 0], [2, 0, 1]])
def test_mixed_mini_batches_hold_equal_shares_of_every_source(sources: list[int]) -> None:
    assert shares(slots_of(sources=sources)) == [dict.fromkeys(sources, 8)] * 4


@pytest.mark.parametrize(
    ("num_agents", "sizes", "num_minibatches", "rows"),
    [
        (3, {"num_problems": 128, "num_samples": 8}, 6, 512),  # 64 problems each, as in the paper, of three agents
        (2, {"num_problems": 4, "num_samples": 3}, 8, 3),
        (2, {"num_problems": 2, "num_samples": 1}, 4, 1),
    ],
)
def test_where_shares_do_not_divide_mini_batches_are_of_one_size_and_shares_differ_by_one_row(
    num_agents: int, sizes: dict[str, int], num_minibatches: int, rows: int
) -> None:
    found = shares(slots_of(sources=range(num_agents), num_minibatches=num_minibatches, **sizes))
    assert [sum(share.values()) for share in found] == [rows] * num_minibatches
    assert all(max(share.values()) - min(share.get(j, 0) for j in range(num_agents)) <= 1 for share in found)


def test_mini_batches_hold_whole_groups_where_the_numbers_allow_it() -> None:
    for piece in slots_of(num_problems=8, num_samples=4, num_minibatches=4):
        assert sorted(Counter((j, p) for j, p, _ in piece).values()) == [4] * 4
        by_source = [{p for j, p, _ in piece if j == source} for source in (0, 1)]
        assert by_source[0] == by_source[1]


def test_own_first_trains_on_own_mini_batches_before_the_others() -> None:
    assert shares(slots_of(sources=[1, 0], order="own_first")) == [{1: 16}, {1: 16}, {0: 16}, {0: 16}]


def test_own_first_mixes_the_other_sources_by_problem() -> None:
    found = slots_of(sources=[1, 0, 2], order="own_first", num_minibatches=6)
    assert shares(found) == [{1: 16}] * 2 + [{0: 8, 2: 8}] * 4
    for piece in found[2:]:
        assert {p for j, p, _ in piece if j == 0} == {p for j, p, _ in piece if j == 2}


def test_own_first_with_one_source_is_all_own() -> None:
    assert slots_of(sources=[3], order="own_first") == slots_of(sources=[3])


@pytest.mark.parametrize("order", ["mixed", "own_first"])
@pytest.mark.parametrize("sources", [[0], [1, 0], [2, 0, 1]])
@pytest.mark.parametrize(("num_problems", "num_samples", "updates_per_source"), [(8, 4, 2), (7, 3, 2), (5, 2, 3)])
def test_every_response_is_in_exactly_one_mini_batch(
    order: str, sources: list[int], num_problems: int, num_samples: int, updates_per_source: int
) -> None:
    found = slots_of(
        sources=sources,
        order=order,
        num_problems=num_problems,
        num_samples=num_samples,
        num_minibatches=updates_per_source * len(sources),
    )
    expected = [(j, p, i) for j in sorted(sources) for p in range(num_problems) for i in range(num_samples)]
    assert sorted(slot for piece in found for slot in piece) == expected


def test_content_depends_on_the_seed_parts_alone() -> None:
    parts = (7, "minibatch", 3, "qwen")
    first = slots_of(seed_parts=parts)
    np.random.default_rng(0).random(10)
    torch.manual_seed(1)
    assert slots_of(seed_parts=parts) == first
    for other in [(8, "minibatch", 3, "qwen"), (7, "minibatch", 4, "qwen"), (7, "minibatch", 3, "llama")]:
        assert slots_of(seed_parts=other) != first


def test_both_orders_follow_one_shuffle_of_the_problems() -> None:
    mixed, own_first = (slots_of(order=order) for order in ("mixed", "own_first"))
    own = [[slot for piece in pieces for slot in piece if slot[0] == 0] for pieces in (mixed, own_first)]
    assert own[0] == own[1]
    assert [p for _, p, i in own[0] if i == 0] != list(range(8))


# Two problems, two responses each; the advantage of a response says whose it is: 1000 learner + 100 p + 10 j + i.
TEXTS = {0: ["x = 3", "7", "42", "The answer"], 1: ["y = 4", "12", "x + y = 7", "12 + 30"]}
WEIGHT_LA = [[1.0, 0.5], [2.0, 1.0]]


@cache
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    return MAKERS[name]()


def eos_of(name: str) -> int:
    return int(tokenizer(name).eos_token_id)


def encoded(name: str, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(name)(text, add_special_tokens=False)["input_ids"])


def rollout(name: str, text: str, index: int, *, finish_reason: FinishReason = "stop", offset: float = 0.0) -> Rollout:
    ids = encoded(name, text) + ((eos_of(name),) if finish_reason == "stop" else ())
    return Rollout(
        problem_id=str(index // 2),
        agent=name,
        index=index % 2,
        sampler="test",
        policy_version=0,
        prompt_ids=(1, 2),
        token_ids=ids,
        logprobs=tuple(-9.0 for _ in ids),
        old_logprobs=tuple(offset - 1.0 - t for t in range(len(ids))),
        text=text,
        finish_reason=finish_reason,
    )


def joint_of_names() -> JointAdvantages:
    k, p, j, i = torch.meshgrid(*(torch.arange(2, dtype=torch.float64) for _ in range(4)), indexing="ij")
    zero_PA = torch.zeros(2, 2)
    return JointAdvantages(
        1000 * k + 100 * p + 10 * j + i,
        torch.tensor(WEIGHT_LA, dtype=torch.float64),
        Baseline(zero_PA, zero_PA, zero_PA.bool()),
    )


def batch_of(
    rollouts: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    *,
    learner: int = 0,
    eos: EosRule = "keep",
    is_scored_PAG: np.ndarray | None = None,
    max_response_tokens: int = 99,
    num_minibatches: int = 1,
) -> LearnerBatch:
    """Batch of a learner of two agents, every source shared."""
    other = 1 - learner
    retokenizer = Retokenizer(
        tokenizer(names[other]), tokenizer(names[learner]), eos=eos, max_response_tokens=max_response_tokens
    )
    eos_ids = [frozenset({eos_of(name)}) for name in names]
    return learner_batch(
        learner=learner,
        rollouts=rollouts,
        is_scored_PAG=np.ones((2, 2, 2), dtype=bool) if is_scored_PAG is None else is_scored_PAG,
        joint=joint_of_names(),
        slots=slots_of(
            sources=[learner, other], num_problems=2, num_samples=2, num_minibatches=num_minibatches, seed_parts=(3,)
        ),
        retokenizers={other: retokenizer},
        prompt_ids=[(5,), (6, 6)],
        eos_ids=dict(enumerate(eos_ids)),
        drops_eos=eos == "drop",
    )


def rollouts_of(names: Sequence[str]) -> list[list[Rollout]]:
    return [[rollout(name, text, i, offset=-j) for i, text in enumerate(TEXTS[j])] for j, name in enumerate(names)]


def rows_of(batch: LearnerBatch) -> dict[tuple[int, int, int], Row]:
    return {(row.source, row.problem, row.index): row for piece in batch.minibatches for row in piece.rows}


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
    rollouts[0][2] = replace(rollouts[0][2], token_ids=odd, old_logprobs=(-1.0, -2.0, -6.0))
    row = rows_of(batch_of(rollouts, names))[0, 1, 0]
    assert row.response_ids == odd
    assert row.old_logprobs == (-1.0, -2.0, -6.0)
    assert row.old_mean_logprob == -3.0


@pytest.mark.parametrize("source", MAKERS)
@pytest.mark.parametrize("target", MAKERS)
def test_cross_rows_hold_the_text_in_the_learners_tokens(source: str, target: str) -> None:
    names = (target, source)
    batch = batch_of(rollouts_of(names), names)
    rows = rows_of(batch)
    for i, text in enumerate(TEXTS[1]):
        row = rows[1, i // 2, i % 2]
        assert row.response_ids[-1] == eos_of(target)
        assert decode_response(tokenizer(target), row.response_ids).strip() == text
        assert row.old_logprobs is None
    assert batch.counts == replace(BatchCounts(), length_drift_mean=batch.counts.length_drift_mean)


def test_old_mean_of_a_cross_row_runs_over_the_sources_tokens() -> None:
    names = ("byte_level", "character")
    row = rows_of(batch_of(rollouts_of(names), names))[1, 0, 1]
    assert row.response_ids != encoded("character", "12")
    # "12" and EOS are three characters: -2, -3, -4
    assert row.old_mean_logprob == -3.0


def test_sampled_logprobs_stand_in_where_none_were_recomputed() -> None:
    names = ("byte_level", "character")
    rollouts = [[replace(r, old_logprobs=None) for r in own] for own in rollouts_of(names)]
    for row in rows_of(batch_of(rollouts, names)).values():
        assert row.old_mean_logprob == -9.0


def test_dropping_eos_shortens_own_and_cross_rows_and_their_old_means() -> None:
    names = ("byte_level", "character")
    rows = rows_of(batch_of(rollouts_of(names), names, eos="drop"))
    own, cross = rows[0, 1, 0], rows[1, 0, 1]
    assert own.response_ids == encoded("byte_level", "42")
    assert own.old_logprobs is not None
    assert len(own.old_logprobs) == len(own.response_ids)
    assert own.old_mean_logprob == np.mean(own.old_logprobs)
    assert decode_response(tokenizer("byte_level"), cross.response_ids) == "12"
    assert eos_of("byte_level") not in cross.response_ids
    assert cross.old_mean_logprob == -2.5  # -2 and -3; with the source's EOS -3


def test_response_cut_by_the_limit_loses_nothing_when_eos_is_dropped() -> None:
    names = ("byte_level", "character")
    rollouts = rollouts_of(names)
    rollouts[0][2] = rollout("byte_level", "42", 2, finish_reason="length")
    rollouts[1][1] = rollout("character", "12", 1, finish_reason="length", offset=-1.0)
    rows = rows_of(batch_of(rollouts, names, eos="drop"))
    assert rows[0, 1, 0].response_ids == encoded("byte_level", "42")
    assert rows[1, 0, 1].old_mean_logprob == -2.5


def test_unscored_responses_are_left_out_and_counted() -> None:
    names = ("byte_level", "character")
    is_scored_PAG = np.ones((2, 2, 2), dtype=bool)
    is_scored_PAG[0, 1, 0] = is_scored_PAG[1, 0, 1] = False
    batch = batch_of(rollouts_of(names), names, is_scored_PAG=is_scored_PAG)
    assert set(rows_of(batch)) == {(j, p, i) for p, j, i in np.argwhere(is_scored_PAG).tolist()}
    assert batch.counts.num_unscored == 2


@pytest.mark.parametrize("eos", ["keep", "drop"])
def test_response_of_eos_alone_is_trained_on_own_and_shared_alike(eos: EosRule) -> None:
    names = ("byte_level", "character")
    rollouts = rollouts_of(names)
    for j, name in enumerate(names):
        rollouts[j][0] = replace(rollout(name, "", 0), old_logprobs=(-0.75 - j,))
    batch = batch_of(rollouts, names, eos=eos)
    own, cross = rows_of(batch)[0, 0, 0], rows_of(batch)[1, 0, 0]
    assert own.response_ids == cross.response_ids == (eos_of("byte_level"),)  # the learner's
    assert (own.old_logprobs, own.old_mean_logprob, cross.old_mean_logprob) == ((-0.75,), -0.75, -1.75)
    assert batch.counts.num_empty == 0


def test_shared_response_without_text_is_left_out_and_counted() -> None:
    names = ("byte_level", "character")
    rollouts = rollouts_of(names)
    rollouts[1][0] = rollout("character", "", 0, finish_reason="length")
    batch = batch_of(rollouts, names)
    assert (1, 0, 0) not in rows_of(batch)
    assert batch.counts.num_empty == 1


def test_shared_response_beyond_the_limit_is_truncated_and_counted() -> None:
    names = ("character", "byte_level")
    batch = batch_of(rollouts_of(names), names, max_response_tokens=8)
    row = rows_of(batch)[1, 1, 0]
    assert decode_response(tokenizer("character"), row.response_ids) == "x + y = "
    assert batch.counts.num_truncated == 1


def test_control_token_that_cannot_be_written_as_text_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("byte_level", "character")
    control = encoded("byte_level", "12")[0]
    monkeypatch.setattr("hacpo_core.data.retokenize.control_ids", lambda _: frozenset({control}))
    batch = batch_of(rollouts_of(names), names)
    assert batch.counts.num_control_dropped == sum(encoded("byte_level", text).count(control) for text in TEXTS[1]) > 0
    assert control not in rows_of(batch)[1, 1, 1].response_ids


def test_length_drift_is_the_mean_relative_change_in_tokens() -> None:
    names = ("character", "byte_level")
    rollouts = rollouts_of(names)
    lengths = [(len(encoded("byte_level", text)) + 1, len(text) + 1) for text in TEXTS[1]]
    expected = np.mean([(target - source) / source for source, target in lengths])
    assert batch_of(rollouts, names).counts.length_drift_mean == pytest.approx(expected, abs=1e-15)
    assert expected != 0.0


def test_equal_tokenizers_pass_the_ids_through() -> None:
    names = ("character", "character")
    rollouts = rollouts_of(names)
    batch = batch_of(rollouts, names)
    for (j, p, i), row in rows_of(batch).items():
        assert row.response_ids == rollouts[j][2 * p + i].token_ids
    assert batch.counts.length_drift_mean == 0.0


def test_mini_batches_keep_the_order_of_their_slots() -> None:
    names = ("byte_level", "character")
    batch = batch_of(rollouts_of(names), names, num_minibatches=2)
    expected = slots_of(sources=[0, 1], num_problems=2, num_samples=2, num_minibatches=2, seed_parts=(3,))
    found = [[(row.source, row.problem, row.index) for row in piece.rows] for piece in batch.minibatches]
    assert found == expected
