"""The embedded task."""

import numpy as np

from hacpo_core.data.arithmetic import (
    Expression,
    all_expressions,
    demonstrate,
    problems,
    split_expressions,
    with_spaces,
)

RNG = np.random.default_rng(0)
EXPRESSION = Expression((3, 4, 6), (-1, -1), has_parentheses=True)


def test_worked_lines_follow_the_parentheses() -> None:
    assert str(EXPRESSION) == "3-(4-6)"
    assert EXPRESSION.work() == ("4-6=-2", "3--2=5", 5)
    assert Expression((3, 4, 6), (-1, 1), has_parentheses=False).work() == ("3-4=-1", "-1+6=5", 5)


def test_every_answer_is_what_python_says() -> None:
    for problem in problems("dev"):
        assert int(problem.answer) == eval(problem.messages[0].content)


def test_each_misconception_does_what_it_is_called() -> None:
    assert demonstrate(EXPRESSION, [0, 0, 0], RNG) == "4-6=-2\n3--2=5\n\\boxed{5}"
    assert demonstrate(EXPRESSION, [1, 0, 0], RNG) == "3-4=-1\n-1-6=-7\n\\boxed{-7}"
    assert demonstrate(EXPRESSION, [0, 1, 0], RNG) == "4-6=2\n3-2=1\n\\boxed{1}"
    assert demonstrate(EXPRESSION, [0, 0, 1], RNG) == "4-6=-2\n\\boxed{-2}"


def test_splits_are_disjoint_and_cover_the_task() -> None:
    splits = [set(map(str, split_expressions(split))) for split in ("train", "dev", "test")]
    assert [len(split) for split in splits] == [1216, 256, 256]
    assert set.union(*splits) == set(map(str, all_expressions()))


def test_signs_get_a_space_on_either_side_by_chance() -> None:
    assert with_spaces("4-6=2\n", [1, 0], RNG) == "4-6 =2 \n"
    assert with_spaces("4-6=2\n", [0, 1], RNG) == "4-6= 2\n "
    gaps = with_spaces("=" * 4001, [0.8, 0.3], np.random.default_rng(0)).split("=")[1:-1]
    shares = np.bincount([len(gap) for gap in gaps]) / len(gaps)
    np.testing.assert_allclose(shares, [0.2 * 0.7, 0.8 * 0.7 + 0.2 * 0.3, 0.8 * 0.3], atol=0.02)
