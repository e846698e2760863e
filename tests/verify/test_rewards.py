"""Rewards of one's own: mixed, bounded, killed when they hang, and never a silent zero."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from flows.planning.compose import compose
from flows.runs.opening import rewards_of
from hacpo_core.errors import ConfigError, MethodError, VerificationError
from hacpo_core.records import Gold, Message, Problem, RowKey, Verdict
from hacpo_core.verify.pool import VerifierPool
from hacpo_core.verify.process import Reply, Worker
from hacpo_core.verify.rewards import Rewards, UserReward, VerifierReward

PROBLEM = Problem("p", (Message("user", "1/2 of 7?"),), Gold("3.5"), "s")


class Fixed:
    """Says what it was told."""

    def __init__(self, *verdicts: Verdict) -> None:
        self._verdicts = list(verdicts)

    def judge(self, problems: object, responses: object, keys: object) -> list[Verdict]:
        return self._verdicts

    def close(self) -> None:
        """Nothing was started."""


@pytest.fixture
def by_order() -> Iterator[UserReward]:
    """A function that does what responses say."""
    reward = UserReward("tests.verify.by_order:by_order", timeout_s=2.0, memory_mb=4096)
    yield reward
    reward.close()


def judged(reward: UserReward | Rewards | VerifierReward, responses: Sequence[str]) -> list[Verdict]:
    keys = [RowKey(3, "qwen", "p", sample) for sample in range(len(responses))]
    return reward.judge([PROBLEM] * len(responses), responses, keys)


def rewards(reward: UserReward, *responses: str) -> list[float | None]:
    return [verdict.reward for verdict in judged(reward, responses)]


def test_user_function_is_called_in_a_process_of_its_own(by_order: UserReward) -> None:
    assert rewards(by_order, "a", "none", "b") == [0.25, None, 0.25]
    assert rewards(by_order) == []
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]  # of any test
    children = [child for child in living if "tests.verify.by_order:by_order" in child.cmdline()]
    assert len(children) == 1
    assert children[0].pid != os.getpid()
    by_order.close()
    assert not children[0].is_running()


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("raise", "KeyError: 'no such rule'"),
        ("die", "its process died"),
        pytest.param("sleep", "timeout after 2 s", marks=pytest.mark.slow),
    ],
)
def test_response_that_cannot_be_judged_is_unscored_alone(order: str, reason: str, by_order: UserReward) -> None:
    responses = ["a"] * 5 + [order] + ["b"] * 3
    verdicts = judged(by_order, responses)
    assert [verdict.reward for verdict in verdicts] == [0.25] * 5 + [None] + [0.25] * 3
    assert (verdicts[5].status, verdicts[5].reason) == ("unscored", reason)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("nan", r"got nan for step 3, qwen, problem 'p', sample 0, expected a number in \[0, 1\], or None"),
        ("two", "got 2.0 for step 3, qwen, problem 'p', sample 0"),
        ("words", "got 'good' for step 3, qwen, problem 'p', sample 0"),
        ("one more", "returned 2 rewards for 1 responses, expected one each"),
    ],
)
def test_what_is_no_reward_is_an_error_that_names_the_row(order: str, message: str, by_order: UserReward) -> None:
    with pytest.raises(MethodError, match=f"reward tests.verify.by_order:by_order: {message}"):
        rewards(by_order, order)


def counted_calls(monkeypatch: pytest.MonkeyPatch, *, fails: Callable[[str], bool] | None = None) -> list[int]:
    """Sizes of the batches of all calls from now on; calls with a response for which `fails` holds time out at once."""
    calls: list[int] = []
    inner = Worker.call

    def counted(self: Worker, *arguments: Any, timeout_s: float) -> Reply:
        calls.append(len(arguments[1]))
        if fails is not None and any(map(fails, arguments[1])):
            return Reply(None, "timeout", timeout_s)
        return inner(self, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(Worker, "call", counted)
    return calls


def test_function_that_hangs_costs_a_batch_at_most_five_time_limits(
    by_order: UserReward, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = counted_calls(monkeypatch, fails=lambda text: text == "sleep")
    verdicts = judged(by_order, ["a", "sleep"] * 32)  # halving would have cost 63 limits
    assert calls == [64, *[1] * 8]
    assert [verdict.reward for verdict in verdicts[:8]] == [0.25, None] * 4
    assert {verdict.reason for verdict in verdicts[8:]} == {
        "timeout after 2 s for 4 other responses of its batch; not called"
    }
    assert "timeout after 2 s for 4 responses of a batch; the 56 behind them are unscored without a call" in caplog.text
    calls.clear()
    assert [verdict.status for verdict in judged(by_order, ["sleep"] * 1024)] == ["unscored"] * 1024
    assert calls == [1024, 1, 1, 1, 1]
    calls.clear()
    judged(by_order, ["sleep"] * 1024)
    assert calls == [1024], "the function itself is at fault"
    assert rewards(by_order, "a", "b", "sleep", "c") == [None] * 4, (
        "which is asked about whole batches alone, until one ends"
    )
    assert rewards(by_order, "a", "b") == [0.25, 0.25]
    assert rewards(by_order, "a", "b", "sleep", "c") == [0.25, 0.25, None, 0.25]


def test_function_that_fails_on_everything_is_given_up_after_a_few_single_responses(
    by_order: UserReward, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted_calls(monkeypatch)
    verdicts = judged(by_order, ["raise"] * 64)
    assert {verdict.status for verdict in verdicts} == {"unscored"}
    # four responses one by one; then no part of the rest is tried
    assert calls == [64, 32, 16, 8, 4, 2, 1, 1, 2, 1, 1]
    assert "the function itself fails" in verdicts[-1].reason
    assert rewards(by_order, "a", "b") == [0.25, 0.25], "and is asked again, next time"


@pytest.mark.slow
def test_numbers_of_numpy_and_torch_are_rewards() -> None:
    reward = UserReward("tests.plugins:arrays", timeout_s=30.0, memory_mb=4096)
    assert rewards(reward, "a", "b") == [0.5, 0.5]
    reward.close()


def test_function_that_is_not_there_is_one_clear_error() -> None:
    reward = UserReward("tests.verify.by_order:nobody", timeout_s=2.0, memory_mb=4096)
    with pytest.raises(
        VerificationError, match=r"tests.verify.by_order:nobody cannot be called: AttributeError.*; name a func"
    ):
        rewards(reward, "a")
    reward.close()


def test_weighted_mean_of_several_and_unscored_where_one_cannot_judge() -> None:
    right, wrong = Verdict("correct", 1.0, "3", 0.5), Verdict("wrong", 0.0, None, 0.25)
    part, unknown = Verdict("partial", 0.5, None, 0.0), Verdict("unscored", None, None, 0.0, "timeout")
    found = judged(Rewards([Fixed(right, right, wrong), Fixed(part, unknown, wrong)], [3.0, 1.0]), "abc")
    assert found == [
        Verdict("partial", 0.875, "3", 0.5, parts=(1.0, 0.5)),
        Verdict("unscored", None, "3", 0.5, "timeout"),
        Verdict("wrong", 0.0, None, 0.5, parts=(0.0, 0.0)),
    ]


@pytest.mark.slow
def test_rules_of_equality_can_be_named_whatever_the_verifiers_is() -> None:
    config = compose("tiny", "hacpo", overrides=["reward.functions=[math_verify,exact_match]"])
    with VerifierPool(num_workers=1, timeout_s=30.0, memory_mb=2048, style="boxed") as pool:
        with rewards_of(config, pool) as mixed:
            responses = ["\\boxed{7/2}", "\\boxed{3.5}", "\\boxed{4}"]
            assert [verdict.reward for verdict in judged(mixed, responses)] == [0.5, 1.0, 0.0]
        assert judged(VerifierReward(pool), ["\\boxed{7/2}"])[0].status == "correct", "it was only borrowed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.functions=[]"], "reward.functions: got none"),
        (
            ["reward.functions=[algebra]"],
            "reward.functions: got 'algebra', expected verifier, math_verify, exact_match",
        ),
        (["reward.functions=[exactmatch]"], r"of your own; did you mean exact_match\?"),
        (["reward.functions=[verifier,a:b]", "reward.weights=[1]"], "reward.weights: got 1 for 2 functions"),
        (["reward.functions=[verifier,a:b]", "reward.weights=[1,-1]"], r"reward.weights: got \[1.0, -1.0\], expected"),
    ],
)
def test_reward_that_cannot_be_is_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("tiny", "hacpo", overrides=words)
