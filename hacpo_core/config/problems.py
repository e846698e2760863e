"""Sections of the configuration about problems: training sets, benchmarks, verifier and rewards."""

from collections.abc import Mapping
from dataclasses import dataclass

from hacpo_core.config.fields import setting, unless
from hacpo_core.records import AnswerStyle, Equality

REASONING_END = "</think>"
"""mark that closes the reasoning of a response; the opening one is the same without its slash"""
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
SOURCES = {
    "file": "a file of the data folder",
    "arithmetic": "the embedded sums, for tiny models",
    "word_problems": "the embedded word problems, for small language models",
    "letters": "embedded counts of a letter in words of 3 to 6 letters, for small language models",
    "long_letters": "the same in words of 5 to 20 letters, for small language models",
}
"""of the problems of a set"""
ANSWER_FORMS = {
    "whole": "the whole text",
    "boxed": "the last \\boxed{} in it",
    "hashes": "the text after the last ####",
}
TEMPLATE = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."

_NOT_FILE = unless(".kind", "file")


@dataclass(frozen=True)
class HubConfig:
    """Source from which a problem set's file is downloaded if it is not in the data folder, and its columns there."""

    name: str = setting("", "data set, as owner/name; empty: the file is never downloaded")
    file: str = setting("", "path of the JSONL or Parquet file inside the data set")
    id_field: str | None = setting(None, "column of the row's unique id; null: the row number")
    problem_field: str = setting("problem", "column of the problem's text, or of messages")
    answer_field: str = setting("answer", "column of the correct answer")
    answer_form: str = setting("whole", "part of the answer's column that is the answer", choices=ANSWER_FORMS)
    revision: str | None = setting(None, "commit of the data set, all 40 digits, or a branch; null: the newest")


@dataclass(frozen=True)
class ProblemSetConfig:
    """A set of problems with verifiable answers: source, columns and prompt."""

    kind: str = setting("file", "source of the problems", choices=SOURCES)
    file: str | None = setting(
        None, "JSONL (.gz, too) or Parquet file, by its path in data.directory", identity=False, inert=_NOT_FILE
    )
    hub: HubConfig = setting(HubConfig, "where the file can be downloaded from", identity=False)
    count: int | None = setting(
        None,
        "required number of problems in the file, not in a hub's copy of it; null: any",
        at_least=1,
        identity=False,
    )
    id_field: str | None = setting("id", "column of the row's unique id; null: the row number")
    problem_field: str = setting("problem", "column of the problem's text, or of messages")
    answer_field: str = setting("answer", "column of the correct answer")
    answer_form: str = setting("whole", "part of the answer's column that is the answer", choices=ANSWER_FORMS)
    unit_field: str | None = setting(None, "column of the unit that a response may append to the answer; null: none")
    tolerance_field: str | None = setting(
        None, "column of the allowed absolute error, empty for exact answers; null: none"
    )
    template: str = setting(TEMPLATE, "user message; {problem} is replaced by the problem's text", contains="{problem}")
    system: str | None = setting(None, "system message; null: none")


@dataclass(frozen=True)
class TrainSetConfig(ProblemSetConfig):
    """A training set. Problems with an empty answer are dropped and counted."""

    share: float = setting(1.0, "weight of this set when a step's problems are split among the training sets", above=0)


@dataclass(frozen=True)
class DataConfig:
    """Training problems, and the folder of all data files."""

    directory: str | None = setting(
        None, "folder of the data files; null: the environment variable HACPO_DATA_DIR, else ./data", identity=False
    )
    train: list[str] = setting(
        list, "training sets: names from experiments/train_sets, YAML files, or names declared under data.sets"
    )
    sets: dict[str, TrainSetConfig] = setting(
        dict, "declarations of the training sets; fields not set here come from experiments/train_sets"
    )
    development_share: float = setting(
        0.0, "share of every training set that is held out for benchmarks of kind development", at_least=0, at_most=0.9
    )


@dataclass(frozen=True)
class BenchmarkConfig(ProblemSetConfig):
    """A benchmark: source, prompt and metric of a set of problems that agents are evaluated on."""

    kind: str = setting(
        "file", "source of the problems", choices=SOURCES | {"development": "problems held out of the training sets"}
    )
    split: str = setting("dev", "split of an embedded task's problems", choices=("dev", "test"))
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
    top_p: float = setting(1.0, "cumulative probability of nucleus sampling", above=0, at_most=1)
    max_response_tokens: int | None = setting(
        None, "response limit; null: rollout.max_response_tokens", unit="tokens", at_least=1
    )
    limit: int | None = setting(None, "use only the first problems of the set; null: all", at_least=1)


@dataclass(frozen=True)
class EvaluateConfig:
    """Benchmarks and when they run: all before training, `during` in the course of it, `final` after it."""

    every: int = setting(10, "steps between evaluations on `during`; 0: only before training", unit="steps", at_least=0)
    during: list[str] = setting(
        list, "benchmarks: names from experiments/benchmarks, YAML files, or names declared under evaluate.benchmarks"
    )
    final: list[str] = setting(list, "benchmarks, as in `during`")
    benchmarks: dict[str, BenchmarkConfig] = setting(
        dict, "declarations of the benchmarks; fields not set here come from experiments/benchmarks"
    )


@dataclass(frozen=True)
class VerifierConfig:
    """How answers are compared. sympy and math-verify run in worker processes."""

    equality: Equality = setting(
        "math_verify",
        "when two answers are equal",
        choices={
            "math_verify": "if they have the same value, by sympy and math-verify",
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
            "marked": "only text behind the last </think> counts, and nothing behind a <think>; without marks all",
            "required": "as marked, but a response without </think> has no answer, as it must be if the chat template "
            "opens the block in the prompt",
        },
    )
    num_workers: int = setting(2, "worker processes", at_least=1, at_most=1024, identity=False)
    timeout_s: float = setting(
        5.0, "wall-clock time per answer; then the worker is killed and the response is unscored", unit="s", above=0
    )
    max_unscored_fraction: float = setting(
        0.05,
        "largest share (rounded up to whole responses) of an agent's responses in a step, or to a benchmark, that may "
        "be unscored; with more, or with no verdict at all, the run stops",
        at_least=0,
        at_most=1,
    )


@dataclass(frozen=True)
class RewardConfig:
    """Rewards of responses in training. Evaluations use only the verifier."""

    functions: list[str] = setting(
        lambda: [VERIFIER],
        "reward functions. verifier: 1 if the verifier finds the answer correct; math_verify, exact_match: 1 if it is "
        "correct by that rule, whatever verifier.equality is; package.module:function of your own",
    )
    weights: list[float] | None = setting(None, "weight of each function in the mean; null: equal weights")
    timeout_s: float = setting(
        60.0,
        "wall-clock time per call of your own function; then its process is killed and the responses are unscored",
        unit="s",
        above=0,
    )
    memory_mb: int = setting(4096, "memory limit of the process of your own function", unit="MiB", at_least=256)
