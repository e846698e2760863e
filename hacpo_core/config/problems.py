"""Sections of the configuration about problems: training sets, benchmarks, verifier and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hacpo_core.config.fields import either, setting, unless, when
from hacpo_core.records import AnswerStyle, Equality

VERIFIER = "verifier"
"""name of the reward function that returns the verifier's verdicts"""
SHIPPED_REWARDS: Mapping[str, Equality | None] = {
    VERIFIER: None,
    "math_verify": "math_verify",
    "exact_match": "normalised",
}
"""rule of equality of each shipped reward function: 1 for a correct answer, else 0; None: that of the verifier"""
STYLES: Mapping[AnswerStyle, str] = {
    "boxed": "the last \\boxed{}",
    "last_number": "the last number",
    "plain": "the whole response",
    "auto": "the last \\boxed{}, else an announced answer, else the last line, formula or number",
}
"""which part of a response is its answer"""
ANSWER_FORMS = {
    "whole": "the whole text",
    "boxed": "the last \\boxed{} in it",
    "hashes": "the text after the last ####",
}
TEMPLATE = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."

_NOT_FILE = unless(".kind", "file")
_NOT_READ = either(_NOT_FILE, when("verifier.equality", "normalised", note=", which compares text only"))


@dataclass(frozen=True)
class HubConfig:
    """Source from which a problem set's file is downloaded if it is not in the data folder, and its columns there."""

    name: str = setting("", "data set, as owner/name; empty: the file is never downloaded")
    file: str = setting("", "path of the JSONL or Parquet file inside the data set")
    revision: str = setting("main", "commit, tag or branch")
    id_field: str | None = setting(None, "column of the row's unique id; null: the row number")
    problem_field: str = setting("problem", "column of the problem's text")
    answer_field: str = setting("answer", "column of the correct answer")
    answer_form: str = setting("whole", "part of the answer's column that is the answer", choices=ANSWER_FORMS)


@dataclass(frozen=True)
class ProblemSetConfig:
    """A set of problems with verifiable answers: source, columns and prompt."""

    kind: str = setting(
        "file",
        "source of the problems",
        choices={
            "file": "a file of the data folder",
            "arithmetic": "the embedded sums, for tiny models",
            "word_problems": "the embedded word problems, for small language models",
        },
    )
    file: str | None = setting(
        None, "JSONL or Parquet file, by its path in data.directory", identity=False, inert=_NOT_FILE
    )
    hub: HubConfig = setting(HubConfig, "where the file can be downloaded from", identity=False, inert=_NOT_FILE)
    count: int | None = setting(
        None, "required number of problems in the file; null: any", at_least=1, identity=False, inert=_NOT_FILE
    )
    id_field: str | None = setting("id", "column of the row's unique id; null: the row number", inert=_NOT_FILE)
    problem_field: str = setting("problem", "column of the problem's text", inert=_NOT_FILE)
    answer_field: str = setting("answer", "column of the correct answer", inert=_NOT_FILE)
    answer_form: str = setting(
        "whole", "part of the answer's column that is the answer", choices=ANSWER_FORMS, inert=_NOT_FILE
    )
    unit_field: str | None = setting(
        None, "column of the unit that a response may append to the answer; null: none", inert=_NOT_READ
    )
    tolerance_field: str | None = setting(
        None, "column of the allowed absolute error, empty for exact answers; null: none", inert=_NOT_READ
    )
    template: str = setting(TEMPLATE, "user message; {problem} is replaced by the problem's text")
    system: str | None = setting(None, "system message; null: none")


@dataclass(frozen=True)
class TrainSetConfig(ProblemSetConfig):
    """A training set. Problems with an empty answer are dropped and counted."""

    share: float = setting(
        1.0,
        "weight of this set when a step's problems are split among the training sets",
        above=0,
        inert=lambda _, config: "data.train names one set" if len(config.data.train) == 1 else None,
    )


def _why_no_file(_: Any, config: Any) -> str | None:
    sets = [*config.data.sets.values(), *config.evaluate.benchmarks.values()]
    warm_ups = [agent.warm_up for agent in config.pair.agents.values()]
    reads_solutions = any(warm_up is not None and warm_up.source == "file" for warm_up in warm_ups)
    reads_problems = any(problem_set.kind == "file" for problem_set in sets)
    return None if reads_solutions or reads_problems else "nothing is read from a file"


@dataclass(frozen=True)
class DataConfig:
    """Training problems, and the folder of all data files."""

    directory: str | None = setting(
        None,
        "folder of the data files; null: the environment variable HACPO_DATA_DIR, else ./data",
        identity=False,
        inert=_why_no_file,
    )
    train: list[str] = setting(
        list, "training sets: names from experiments/train_sets, YAML files, or names declared under data.sets"
    )
    sets: dict[str, TrainSetConfig] = setting(
        dict, "declarations of the training sets; fields not set here come from experiments/train_sets"
    )
    development_share: float = setting(
        0.0,
        "share of every training set that is held out for benchmarks of kind development",
        at_least=0,
        at_most=0.9,
    )
    development_seed: int = setting(
        0,
        "seed that selects the held-out problems",
        at_least=0,
        at_most=2**53,
        inert=when("data.development_share", 0),
    )


@dataclass(frozen=True)
class BenchmarkConfig(ProblemSetConfig):
    """A benchmark: source, prompt and metric of a set of problems that agents are evaluated on."""

    kind: str = setting(
        "file",
        "source of the problems",
        choices={
            "file": "a file of the data folder",
            "arithmetic": "the embedded sums, for tiny models",
            "word_problems": "the embedded word problems, for small language models",
            "development": "problems held out of the training sets",
        },
    )
    template: str = setting(
        TEMPLATE, "user message; {problem} is replaced by the problem's text", inert=when(".kind", "development")
    )
    system: str | None = setting(None, "system message; null: none", inert=when(".kind", "development"))
    split: str = setting(
        "dev",
        "split of an embedded task's problems",
        choices=("dev", "test"),
        inert=unless(".kind", "arithmetic", "word_problems"),
    )
    style: AnswerStyle | None = setting(
        None, "which part of a response is its answer; null: as verifier.style", choices=STYLES
    )
    metric: str = setting(
        "avg",
        "metric shown in the result table",
        choices={
            "avg": "avg@k: mean over problems and responses",
            "best": "best@k: at least one of k is correct",
            "bootstrap_best": "verl's best@k: best of k draws with replacement from k responses, mean of 1,000",
        },
    )
    num_samples: int = setting(1, "k: responses per problem and agent", at_least=1, at_most=1e5)
    temperature: float = setting(0.0, "sampling temperature; 0: greedy", at_least=0, at_most=1e3)
    top_p: float = setting(
        1.0,
        "cumulative probability of nucleus sampling",
        above=0,
        at_most=1,
        inert=when(".temperature", 0, note=", greedy"),
    )
    max_response_tokens: int | None = setting(
        None, "response limit; null: evaluate.max_response_tokens", unit="tokens", at_least=1
    )
    limit: int | None = setting(None, "use only the first problems of the set; null: all", at_least=1)
    reference_field: str | None = setting(
        None,
        "column of a reference solution, whose bits per byte under each agent are reported beside the accuracy; of an "
        "embedded task, solution; null: not measured",
        is_option=True,
    )


def _why_no_default_limit(_: Any, config: Any) -> str | None:
    unlimited_benchmarks = [
        benchmark for benchmark in config.evaluate.benchmarks.values() if benchmark.max_response_tokens is None
    ]
    return None if unlimited_benchmarks else "every benchmark has its own limit"


@dataclass(frozen=True)
class EvaluateConfig:
    """Benchmarks and when they run: all before training, `during` in the course of it, `final` after it."""

    every: int = setting(
        10,
        "steps between evaluations on `during`; 0: only before training",
        unit="steps",
        at_least=0,
        inert=lambda evaluate, _: None if evaluate.during else "evaluate.during is empty",
    )
    during: list[str] = setting(
        list, "benchmarks: names from experiments/benchmarks, YAML files, or names declared under evaluate.benchmarks"
    )
    final: list[str] = setting(list, "benchmarks, as in `during`")
    max_response_tokens: int = setting(
        8196,
        "response limit of benchmarks without their own",
        unit="tokens",
        at_least=1,
        inert=_why_no_default_limit,
    )
    shard_problems: int = setting(
        256,
        "problems whose responses are committed together; an interrupted evaluation resumes after the last commit",
        at_least=1,
        identity=False,
    )
    benchmarks: dict[str, BenchmarkConfig] = setting(
        dict,
        "declarations of the benchmarks; fields not set here come from experiments/benchmarks",
    )


def _why_no_worker(_: Any, config: Any) -> str | None:
    if "math_verify" in {config.verifier.equality, *map(SHIPPED_REWARDS.get, config.reward.functions)}:
        return None
    return "verifier.equality is normalised, which uses no workers"


def _why_no_function(reward: Any, _: Any) -> str | None:
    user_functions = [name for name in reward.functions if ":" in name]
    return None if user_functions else "reward.functions has no function of your own"


def _why_none_unscored(verifier: Any, config: Any) -> str | None:
    return _why_no_worker(verifier, config) if _why_no_function(config.reward, config) else None


@dataclass(frozen=True)
class VerifierConfig:
    """How answers are compared. math-verify runs in worker processes."""

    equality: Equality = setting(
        "math_verify",
        "when two answers are equal",
        choices={
            "math_verify": "if math-verify finds them mathematically equal",
            "normalised": "official code: if the last \\boxed{} is the same text after MATH's string normalisation",
        },
    )
    style: AnswerStyle = setting(
        "boxed", "which part of a response is its answer; equality: normalised requires boxed", choices=STYLES
    )
    answer_after_reasoning: str = setting(
        "none",
        "whether an answer inside the reasoning block of a response counts, also in evaluations",
        choices={
            "none": "it does: marks of reasoning have no meaning",
            "marked": "only text behind the last closing mark counts, and nothing behind an opening one; without marks "
            "all of the text does",
            "required": "as marked, but a response without a closing mark has no answer, as it must be if the chat "
            "template opens the block in the prompt",
        },
        is_option=True,
    )
    reasoning_end: str = setting(
        "</think>",
        "mark that closes the reasoning; the opening one is the same without its slash",
        inert=when(".answer_after_reasoning", "none"),
    )
    num_workers: int = setting(2, "worker processes", at_least=1, at_most=1024, identity=False, inert=_why_no_worker)
    timeout_s: float = setting(
        5.0,
        "wall-clock time per answer; then the worker is killed and the response is unscored",
        unit="s",
        above=0,
        inert=_why_no_worker,
    )
    memory_mb: int = setting(2048, "memory limit of a worker", unit="MiB", at_least=256, inert=_why_no_worker)
    cache: bool = setting(
        True,
        "verify each pair of answer and correct answer only once",
        identity=False,
        inert=_why_no_worker,
    )
    max_unscored_fraction: float = setting(
        0.05,
        "largest share (rounded up to whole responses) of an agent's responses in a step, or to a benchmark, that may "
        "be unscored; with more, or with no verdict at all, the run stops",
        at_least=0,
        at_most=1,
        inert=_why_none_unscored,
    )


@dataclass(frozen=True)
class RewardConfig:
    """Rewards of responses in training. Evaluations use only the verifier."""

    functions: list[str] = setting(
        lambda: [VERIFIER],
        "reward functions. verifier: 1 if the verifier finds the answer correct; math_verify, exact_match: 1 if it is "
        "correct by that rule, whatever verifier.equality is; package.module:function of your own",
    )
    weights: list[float] | None = setting(
        None,
        "weight of each function in the mean; null: equal weights",
        inert=lambda reward, _: "reward.functions has only one function" if len(reward.functions) == 1 else None,
    )
    timeout_s: float = setting(
        60.0,
        "wall-clock time per call of your own function; then its process is killed and the responses are unscored",
        unit="s",
        above=0,
        inert=_why_no_function,
    )
    memory_mb: int = setting(
        4096,
        "memory limit of the process of your own function",
        unit="MiB",
        at_least=256,
        inert=_why_no_function,
    )
