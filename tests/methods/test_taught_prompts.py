"""What a teacher reads before it scores a response: the group's right and wrong answers (MOPD), or a user's prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from flows.runs.opening import open_experiment
from hacpo_core.config.counts import longest_sequence, longest_taught
from hacpo_core.config.identity import experiment_id
from hacpo_core.errors import ConfigError, MethodError
from hacpo_core.methods.base import ScoredStep
from hacpo_core.methods.checks import checked_teacher_problems
from hacpo_core.methods.estimators.distilled import Distilled
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.agents import Agent
from hacpo_core.records import Gold, Message, Problem
from hacpo_core.responses import SEARCHED, Responses
from hacpo_core.store.steps import StepStore
from tests.methods.test_distilled import SHORT, LlamaTeaches
from tests.rollouts import Rollout, responses_of

ASKED = f"method.estimate.name={__name__}:"
LLAMA_TEACHES = f"method.estimate.name={LlamaTeaches.__module__}:LlamaTeaches"


def row(place: int, text: str, num_tokens: int, reward: float | None, *, problem: str = "p", tag: str = "") -> Rollout:
    tokens, logprobs = (1,) * num_tokens, (-1.0,) * num_tokens
    return Rollout(problem, "a", place, (1,), tokens, logprobs, None, text, "stop", tag, reward)


ROWS = [
    row(0, "right, long", 5, 1.0),
    row(1, "right\n", 2, 1.0),
    row(2, "half", 3, 0.5),
    row(3, "wrong", 3, 0.0),
    row(4, "unscored", 1, None),
    row(5, " ", 1, 1.0),
    row(6, "right", 2, 1.0),
    row(7, "searched", 1, 0.0, tag=SEARCHED),
    row(0, "alone", 2, 0.0, problem="q"),
]
STEP = ScoredStep(1, ("p", "q"), {"a": responses_of(ROWS), "b": responses_of([row(0, "b's", 1, 1.0)])}, 0)
PROBLEMS = {
    name: Problem(name, (Message("system", "s"), Message("user", f"{name}?")), Gold("3"), "here") for name in ("p", "q")
}
PLAIN = [PROBLEMS[rollout.problem_id] for rollout in ROWS]
TEACHING = Distilled(shows_answers=True, right_text="+ {response}", wrong_text="- {response} {x}")


def contents(estimator: Distilled) -> list[str]:
    """The users' messages; the rest of each problem must be as it was."""
    problems = checked_teacher_problems(estimator, STEP, "a", "b", PLAIN)
    for problem, plain in zip(problems, PLAIN, strict=True):
        last = replace(problem.messages[-1], content=plain.messages[-1].content)
        assert replace(problem, messages=(*problem.messages[:-1], last)) == plain
    return [problem.messages[-1].content for problem in problems]


def test_shortest_right_and_wrong_response_of_the_group_are_shown_but_never_the_one_that_is_scored() -> None:
    right, half = "+ right", "- half {x}"
    assert contents(TEACHING) == [
        f"p?\n\n{right}\n\n{half}",
        f"p?\n\n+ right, long\n\n{half}",  # the seventh has the same text
        f"p?\n\n{right}\n\n- wrong {{x}}",
        f"p?\n\n{right}\n\n{half}",
        f"p?\n\n{right}\n\n{half}",
        f"p?\n\n{right}\n\n{half}",
        f"p?\n\n+ right, long\n\n{half}",
        f"p?\n\n{right}\n\n{half}",
        "q?",
    ]


def test_kind_without_another_response_is_left_out() -> None:
    lenient = contents(replace(TEACHING, success_from=0.5))
    assert lenient[0] == "p?\n\n+ right\n\n- wrong {x}"
    assert lenient[3] == "p?\n\n+ right", "it is the only wrong one"
    assert contents(Distilled()) == [f"{problem.id}?" for problem in PLAIN]


def test_longer_prompts_count_for_positions_but_not_for_sampling() -> None:
    words = ["rollout.max_prompt_tokens=40", "rollout.max_response_tokens=30", "method.estimate.max_shown_tokens=500"]
    shown, plain = compose("tiny", "mopd", overrides=words), compose("tiny", "distil", overrides=words[:2])
    assert (longest_taught(shown), longest_taught(plain)) == (530, 0)
    assert longest_sequence(shown) == longest_sequence(plain)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "method.estimate.right_text=Look!",
            r"method.estimate.right_text: got 'Look!', expected a text with \{response\}",
        ),
        ("method.estimate.wrong_text=''", r"method.estimate.wrong_text: got '', expected a text with \{response\}"),
        ("method.estimate.max_shown_tokens=0", "max_shown_tokens: got 0, expected a value in"),
        (f"{ASKED}NegativeLimit", "NegativeLimit has max_teacher_prompt_tokens=-1, expected a number of tokens of at"),
    ],
)
def test_wrong_wording_or_limit_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("tiny", "mopd", overrides=[word])


@pytest.mark.slow
def test_fields_of_shown_answers_cannot_be_set_without_them_and_are_no_part_of_the_id() -> None:
    for word in ("max_shown_tokens=9", "success_from=0.5", "right_text='{response}'", "wrong_text='{response}'"):
        with pytest.raises(ConfigError, match="cannot take effect: method.estimate.shows_answers is False"):
            compose("tiny", "distil", overrides=[f"method.estimate.{word}"])
    words = ([], ["method.estimate.max_shown_tokens=9"], ["method.estimate.right_text='{response}'"])
    assert len({experiment_id(compose("tiny", "mopd", overrides=each), {}) for each in words}) == 3


@dataclass(frozen=True)
class NegativeLimit(Distilled):
    """Nonsense."""

    max_teacher_prompt_tokens = -1


@dataclass(frozen=True)
class Returning(Distilled):
    """Returns what a test gives it."""

    returned: Any = None

    def teacher_problems(
        self, scored: ScoredStep, learner: str, teacher: str, problems: Sequence[Problem]
    ) -> Sequence[Problem]:
        returned: Sequence[Problem] = self.returned(problems) if callable(self.returned) else self.returned
        return returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "TypeError: 'NoneType' object is not iterable"),
        (["p"] * 9, "AttributeError: 'str' object has no attribute 'id'"),
        (lambda plain: plain[1:], "returned 8 problems, expected 9, one for each response in its order"),
        (lambda plain: plain[::-1], "got problem 'q' for a response to 'p'; keep the id and change messages alone"),
        (lambda plain: [replace(plain[0], messages=()), *plain[1:]], "got no messages of 'p', expected at least one"),
        (
            lambda plain: [replace(plain[0], messages=("x",)), *plain[1:]],
            "AttributeError: 'str' object has no attribute 'role'",
        ),
        (lambda plain: 1 / 0, r"ZeroDivisionError: division by zero .*; fix the class"),
        (
            lambda plain: [replace(plain[0], messages=plain[0].messages[:1]), *plain[1:]],
            "got other messages of 'p' with max_teacher_prompt_tokens=None, expected a number of tokens, which plans",
        ),
    ],
)
def test_nonsense_of_a_users_estimator_is_refused_in_one_sentence(returned: Any, message: str) -> None:
    estimator = Returning(name="mine", returned=returned)
    with pytest.raises(MethodError, match=message) as caught:
        checked_teacher_problems(estimator, STEP, "a", "b", PLAIN)
    assert str(caught.value).startswith("method.estimate (mine), step 1: teacher_problems of a: ")


def differences(planned: Plan) -> list[np.ndarray[Any, Any]]:
    table = StepStore(planned.root).read_table(1, "teach.qwen", "taught.qwen.parquet")
    return [np.asarray(each) for each in table["difference"]]


@pytest.mark.slow
def test_shown_answers_change_what_the_teacher_says_and_both_fall_backs_are_counted(
    small_plan: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = (LLAMA_TEACHES, *SHORT, "train.num_steps=1", "train.problems=16", "rollout.num_samples=2")
    texts = [f"method.estimate.{kind}_text='{kind[0]}{{response}}'" for kind in ("right", "wrong")]
    plain = small_plan("distil", *words, runs_dir=tmp_path / "plain")
    run_experiment(plain, DirectRunner())
    with open_experiment(plain) as (x, _):
        responses = x.ledger.verdicts(1, "qwen").value
        problems = [x.problem(problem_id) for problem_id in responses.problem_id]
        estimator = Distilled(shows_answers=True, right_text="r{response}", wrong_text="w{response}")
        scored = ScoredStep(1, (), {"qwen": responses}, 0)
        others = estimator.teacher_problems(scored, "qwen", "llama", problems)
        lengths = [len(x.placement.tokenizers["llama"].prompt_ids(problem)) for problem in others]
        assert x.ledger.taught(1, "qwen").prompt == ()
    limit = int(np.median([n for n, a, b in zip(lengths, others, problems, strict=True) if a != b]))
    caplog.clear()
    shown = small_plan("mopd", *words, *texts, f"method.estimate.max_shown_tokens={limit}", runs_dir=tmp_path / "shown")
    run_experiment(shown, DirectRunner())
    expected = [
        "plain" if other == problem else "shown" if length <= limit else "too long"
        for other, problem, length in zip(others, problems, lengths, strict=True)
    ]
    with open_experiment(shown) as (x, _):
        kinds = x.ledger.taught(1, "qwen").prompt  # read from the store
    is_scored = [not np.isnan(each).all() for each in differences(plain)]
    assert list(kinds) == [kind if each else "" for kind, each in zip(expected, is_scored, strict=True)]
    assert {"shown", "too long", "plain"} <= set(kinds)
    figures = StepStore(shown.root).metrics(1)["agents"]
    assert figures["qwen"]["teacher/shown_share"] == kinds.count("shown") / sum(is_scored)
    assert figures["qwen"]["teacher/too_long_share"] == kinds.count("too long") / sum(is_scored)
    assert "teacher/shown_share" not in figures["llama"], "it has no teacher"
    assert "teacher/shown_share" not in StepStore(plain.root).metrics(1)["agents"]["qwen"]
    distances = [
        float(np.nanmax(np.abs(a - b)))
        for a, b, each in zip(differences(plain), differences(shown), is_scored, strict=True)
        if each
    ]
    kinds_scored = [kind for kind in kinds if kind]
    assert max(d for d, kind in zip(distances, kinds_scored, strict=True) if kind != "shown") < 1e-4
    assert min(d for d, kind in zip(distances, kinds_scored, strict=True) if kind == "shown") > 1e-3
    updates = [StepStore(each.root).read_value(1, "update.qwen", "update.qwen.json") for each in (plain, shown)]
    before, after = ([each["trace"][when]["digest"] for each in updates] for when in ("before", "after"))
    assert before[0] == before[1] and after[0] != after[1], "the same models, other weights after the update"


@dataclass(frozen=True)
class TellsTheAnswer(LlamaTeaches):
    """The teacher reads the reference answer."""

    max_teacher_prompt_tokens = 200

    def teacher_problems(
        self, scored: ScoredStep, learner: str, teacher: str, problems: Sequence[Problem]
    ) -> Sequence[Problem]:
        assert (learner, teacher) == ("qwen", "llama")
        return [replace(each, messages=(*each.messages, Message("user", f"= {each.answer}"))) for each in problems]


@pytest.mark.slow
def test_users_estimator_decides_what_the_teacher_reads(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompts: list[list[tuple[int, ...]]] = []
    inner = Agent.score

    def score(self: Agent, responses: Responses, *, by_reference: bool = False) -> Any:
        if self.name == "llama" and responses.agent == "qwen":
            prompts.append([tuple(map(int, ids)) for ids in responses.prompt_ids])
        return inner(self, responses, by_reference=by_reference)

    monkeypatch.setattr(Agent, "score", score)
    planned = small_plan("distil", f"{ASKED}TellsTheAnswer", *SHORT, "train.num_steps=1")
    run_experiment(planned, DirectRunner())
    with open_experiment(planned) as (x, _):
        batch, responses = x.ledger.taught(1, "qwen"), x.ledger.rollouts(1, "qwen").value
        tokens = x.placement.tokenizers["llama"]
        told = [
            tokens.prompt_ids(replace(problem, messages=(*problem.messages, Message("user", "= 3"))))
            for problem in (x.problem(problem_id) for problem_id in responses.problem_id)
        ]
    assert prompts == [[ids for ids, kind in zip(told, batch.prompt, strict=True) if kind]]
    assert set(batch.prompt) <= {"shown", ""}
    assert StepStore(planned.root).metrics(1)["agents"]["qwen"]["teacher/shown_share"] == 1.0
    assert "may have 240 tokens, but the model has 128 positions; lower rollout.max_response_tokens and" in caplog.text
