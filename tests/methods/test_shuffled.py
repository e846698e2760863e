"""The ordinary builder: which rows make up which mini-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hacpo_core.methods.build import History
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.methods.estimate import Estimate
from hacpo_core.responses import Responses
from tests.rollouts import Rollout, responses_of


class Slot(NamedTuple):
    """Whose response to which problem of the batch, by numbers."""

    source: int
    problem: int
    sample: int


@dataclass(frozen=True)
class Into(Shuffled):
    """As many mini-batches as one likes, also where they hold no whole groups."""

    number: int = 1

    def num_updates(self, *, num_rows: int, num_samples: int, num_sources: int) -> int:
        return self.number


def responses(agent: str, num_problems: int, num_samples: int) -> Responses:
    return responses_of(
        [
            Rollout(str(p), agent, i, (1,), (2,), (-1.0,), "", "stop")
            for p in range(num_problems)
            for i in range(num_samples)
        ]
    )


def slots_of(
    *,
    sources: Sequence[int] = (0, 1),
    num_problems: int = 8,
    num_samples: int = 4,
    num_minibatches: int = 4,
    order: str = "mixed",
    seed: int = 0,
    step: int = 1,
) -> list[list[Slot]]:
    """Mini-batches of a step in which every source answered every problem."""
    names = tuple(map(str, sources))

    def read(_: int, agent: str) -> Responses:
        return responses(agent, num_problems, num_samples)

    def nothing(_: int) -> Estimate:
        raise AssertionError("the ordinary builder looks at no advantage")

    history = History(
        step=step,
        problem_ids=tuple(map(str, range(num_problems))),
        sources=names,
        num_samples=num_samples,
        seed=seed,
        responses=read,
        estimate=nothing,
        trained_rows=lambda _: pytest.fail("no builder here reads them"),
    )
    batches, state = Into(order=order, number=num_minibatches).build(history, {})
    assert state == {}
    return [[Slot(int(key.agent), int(key.problem_id), key.sample) for key in batch] for batch in batches]


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


@pytest.mark.parametrize("number", [1, 2, 3])
def test_own_first_trains_on_both_kinds_of_rows_however_few_are_left(number: int) -> None:
    # With drops_equal_rewards, one problem of a step may be left, whose rows are fewer than one mini-batch's.
    found = slots_of(sources=[1, 0], num_problems=1, num_samples=2, order="own_first", num_minibatches=number)
    assert [{j for j, _, _ in piece} for piece in found] == [{1}, {0}] + [{0}] * (number - 2)
    assert sorted(slot for piece in found for slot in piece) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]


def test_more_mini_batches_than_rows_leave_none_empty() -> None:
    assert [len(piece) for piece in slots_of(sources=[0], num_problems=1, num_samples=2, num_minibatches=5)] == [1, 1]


def test_own_first_with_one_source_is_all_own() -> None:
    assert slots_of(sources=[3], order="own_first") == slots_of(sources=[3])


def test_rows_ordered_by_length_begin_and_end_short() -> None:
    lengths = {"0": (5, 1, 7), "1": (2, 6, 3)}

    def read(_: int, agent: str) -> Responses:
        tokens = [(1,) * length for length in lengths[agent]]
        rows = [Rollout("p", agent, i, (1,), ids, (-1.0,) * len(ids), "", "stop") for i, ids in enumerate(tokens)]
        return responses_of(rows)

    def nothing(_: int) -> Estimate:
        raise AssertionError("the ordinary builder looks at no advantage")

    history = History(1, ("p",), ("0", "1"), 3, 0, read, nothing, lambda _: pytest.fail("not read"))
    batches, _ = Into(order="length", number=3).build(history, {})
    # Sorted 1 2 3 5 6 7: every other one, 1 3 6, then the rest in reverse, 7 5 2.
    assert [[lengths[key.agent][key.sample] for key in batch] for batch in batches] == [[1, 3], [6, 7], [5, 2]]


@pytest.mark.parametrize("order", ["mixed", "own_first", "length"])
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


def test_content_depends_on_seed_step_and_learner_alone() -> None:
    first = slots_of(seed=7, step=3)
    np.random.default_rng(0).random(10)
    torch.manual_seed(1)
    assert slots_of(seed=7, step=3) == first
    for other in (slots_of(seed=8, step=3), slots_of(seed=7, step=4)):
        assert other != first
    problems = [
        [p for piece in found for j, p, i in piece if (j, i) == (0, 0)]
        for found in (first, slots_of(seed=7, step=3, sources=(1, 0)))
    ]
    assert problems[0] != problems[1], "another learner has an order of its own"


def test_mini_batch_holds_as_many_responses_as_its_problems_have() -> None:
    assert Shuffled(problems=64).num_updates(num_rows=2 * 128 * 8, num_samples=8, num_sources=1) == 4
    assert Shuffled(problems=64).num_updates(num_rows=128 * 16, num_samples=8, num_sources=1) == 4, "GSPO x 2"
    assert Shuffled(problems=64).num_updates(num_rows=5, num_samples=8, num_sources=1) == 1


def test_size_that_does_not_divide_the_rows_is_named() -> None:
    sizes = {"num_problems": 32, "num_samples": 8, "samples_per_problem": 8, "num_sources": 2}
    assert Shuffled(problems=16).why_unfit(**sizes) is None
    assert str(Shuffled(problems=7).why_unfit(**sizes)).startswith("problems: got 7, expected a divisor of the 64")
    assert str(Shuffled(problems=7).why_unfit(**sizes)).endswith("; set it to 4, for example")
    assert "the 32 problem groups" in str(Shuffled(problems=64, order="own_first").why_unfit(**sizes))


def test_both_orders_follow_one_shuffle_of_the_problems() -> None:
    mixed, own_first = (slots_of(order=order) for order in ("mixed", "own_first"))
    own = [[slot for piece in pieces for slot in piece if slot[0] == 0] for pieces in (mixed, own_first)]
    assert own[0] == own[1]
    assert [p for _, p, i in own[0] if i == 0] != list(range(8))
