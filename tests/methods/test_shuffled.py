"""The ordinary builder: which rows make up which mini-batch."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hacpo_core.methods.build import History
from hacpo_core.methods.builders.shuffled import Shuffled
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


def history_of(
    of_agents: Mapping[str, Responses], problem_ids: tuple[str, ...], num_samples: int, *, seed: int = 0, step: int = 1
) -> History:
    """A step whose advantages and trained rows the ordinary builder does not look at."""
    fails = lambda _: pytest.fail("the ordinary builder reads none")  # noqa: E731
    names = tuple(of_agents)
    return History(step, problem_ids, names, num_samples, seed, lambda _, agent: of_agents[agent], fails, fails)


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

    of_agents = {agent: responses(agent, num_problems, num_samples) for agent in names}
    history = history_of(of_agents, tuple(map(str, range(num_problems))), num_samples, seed=seed, step=step)
    batches, state = Into(order=order, number=num_minibatches).build(history, {})
    assert state == {}
    return [[Slot(int(key.agent), int(key.problem_id), key.sample) for key in batch] for batch in batches]


def shares(pieces: Sequence[Sequence[Slot]]) -> list[dict[int, int]]:
    """Rows of each source in each mini-batch."""
    return [dict(Counter(source for source, _, _ in piece)) for piece in pieces]


@pytest.mark.parametrize("sources", [[0], [1, 0], [2, 0, 1]])
def test_mixed_mini_batches_hold_equal_shares_of_every_source(sources: list[int]) -> None:
    assert shares(slots_of(sources=sources)) == [dict.fromkeys(sources, 8)] * 4


def test_mini_batches_hold_whole_groups_where_the_numbers_allow_it() -> None:
    for piece in slots_of(num_problems=8, num_samples=4, num_minibatches=4):
        assert sorted(Counter((j, p) for j, p, _ in piece).values()) == [4] * 4
        by_source = [{p for j, p, _ in piece if j == source} for source in (0, 1)]
        assert by_source[0] == by_source[1]


def test_own_first_mixes_the_other_sources_by_problem() -> None:
    found = slots_of(sources=[1, 0, 2], order="own_first", num_minibatches=6)
    assert shares(found) == [{1: 16}] * 2 + [{0: 8, 2: 8}] * 4
    for piece in found[2:]:
        assert {p for j, p, _ in piece if j == 0} == {p for j, p, _ in piece if j == 2}


def test_rows_ordered_by_length_begin_and_end_short() -> None:
    lengths = {"0": (5, 1, 7), "1": (2, 6, 3)}

    of_agents = {
        agent: responses_of(
            [Rollout("p", agent, i, (1,), (1,) * n, (-1.0,) * n, "", "stop") for i, n in enumerate(of_agent)]
        )
        for agent, of_agent in lengths.items()
    }
    history = history_of(of_agents, ("p",), 3)
    batches, _ = Into(order="length", number=3).build(history, {})
    # Sorted 1 2 3 5 6 7: every other one, 1 3 6, then the rest in reverse, 7 5 2.
    assert [[lengths[key.agent][key.sample] for key in batch] for batch in batches] == [[1, 3], [6, 7], [5, 2]]


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


def test_shares_that_do_not_divide_differ_by_one_row() -> None:
    for num_agents, num_problems, num_samples, number in ((3, 128, 8, 6), (2, 4, 3, 8), (2, 2, 1, 4)):
        found = shares(
            slots_of(
                sources=range(num_agents), num_problems=num_problems, num_samples=num_samples, num_minibatches=number
            )
        )
        rows = num_agents * num_problems * num_samples // number
        assert [sum(share.values()) for share in found] == [rows] * number
        assert all(max(share.values()) - min(share.get(j, 0) for j in range(num_agents)) <= 1 for share in found)


def test_own_first_trains_on_both_kinds_of_rows_however_few_are_left() -> None:
    # With drops_equal_rewards, one problem of a step may be left, whose rows are fewer than one mini-batch's.
    for number in (1, 2, 3):
        found = slots_of(sources=[1, 0], num_problems=1, num_samples=2, order="own_first", num_minibatches=number)
        assert [{j for j, _, _ in piece} for piece in found] == [{1}, {0}] + [{0}] * (number - 2)


def test_every_response_is_in_exactly_one_mini_batch() -> None:
    for order, sources, sizes in itertools.product(
        ("mixed", "own_first", "length"), ([0], [1, 0], [2, 0, 1]), ((8, 4, 2), (7, 3, 2), (5, 2, 3))
    ):
        problems, samples, updates = sizes
        number = updates * len(sources)
        found = slots_of(
            sources=sources, order=order, num_problems=problems, num_samples=samples, num_minibatches=number
        )
        expected = list(itertools.product(sorted(sources), range(problems), range(samples)))
        assert sorted(tuple(slot) for piece in found for slot in piece) == expected, (order, sources, sizes)
