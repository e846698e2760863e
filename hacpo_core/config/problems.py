"""Sections of the configuration about problems: what is trained on, what agents are evaluated on, what is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hacpo_core.config.fields import either, setting, unless, when

VERIFIER = "verifier"
"""name of the reward function that gives the verifier's verdicts"""
STYLES = {
    "boxed": "in the last \\boxed{}",
    "last_number": "the last number",
    "plain": "the whole response",
    "auto": "the last \\boxed{}, else an announced answer, else the last line, formula or number",
}
"""where an answer stands in a response"""
ANSWER_FORMS = {
    "whole": "the column is the answer",
    "boxed": "its last \\boxed{}",
    "hashes": "what follows its last ####",
}
TEMPLATE = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."

_NOT_FILE = unless(".kind", "file")
_NOT_READ = either(_NOT_FILE, when("verifier.equality", "normalised", note=", which compares letters alone"))


@dataclass(frozen=True)
class HubConfig:
    """Where a problem set's file is downloaded from when it is not in the data folder, and its columns there."""

    name: str = setting("", "data set, owner/name; empty: the file is never downloaded")
    file: str = setting("", "path of the JSONL or Parquet file inside the data set")
    revision: str = setting("main", "commit, tag or branch")
    id_field: str | None = setting(None, "column that tells rows apart; null: the number of the row")
    problem_field: str = setting("problem", "column of the problem's text")
    answer_field: str = setting("answer", "column of the right answer")
    answer_form: str = setting("whole", "how the answer stands in its column", choices=ANSWER_FORMS)


@dataclass(frozen=True)
class ProblemSetConfig:
    """A set of problems with verifiable answers: where it comes from, by which columns, and how it is asked."""

    kind: str = setting("file", "where problems come from", choices={"arithmetic": "embedded", "file": ""})
    file: str | None = setting(None, "JSONL or Parquet, by its path in data.directory", identity=False, inert=_NOT_FILE)
    hub: HubConfig = setting(HubConfig, "where the file can be downloaded from", identity=False, inert=_NOT_FILE)
    count: int | None = setting(
        None, "problems that the file must have; null: any number", at_least=1, identity=False, inert=_NOT_FILE
    )
    id_field: str | None = setting("id", "column that tells rows apart; null: the number of the row", inert=_NOT_FILE)
    problem_field: str = setting("problem", "column of the problem's text", inert=_NOT_FILE)
    answer_field: str = setting("answer", "column of the right answer", inert=_NOT_FILE)
    answer_form: str = setting("whole", "how the answer stands in its column", choices=ANSWER_FORMS, inert=_NOT_FILE)
    unit_field: str | None = setting(
        None, "column with the unit that a response may add to the answer; null: none", inert=_NOT_READ
    )
    tolerance_field: str | None = setting(
        None, "column with the absolute error that is allowed, empty where none is; null: none", inert=_NOT_READ
    )
    multiple_field: str | None = setting(
        None, "column that is true where the answer is a list whose order does not matter; null: none", inert=_NOT_READ
    )
    template: str = setting(TEMPLATE, "the user's message; {problem} is replaced")
    system: str | None = setting(None, "the system's message; null: none")


@dataclass(frozen=True)
class TrainSetConfig(ProblemSetConfig):
    """A set of problems that agents train on; a problem with an empty answer is dropped and counted."""

    share: float = setting(
        1.0,
        "share of each step's problems that come from this set, in proportion to the other sets' shares",
        above=0,
        inert=lambda _, config: "data.train names one set" if len(config.data.train) == 1 else None,
    )


def _reads_no_file(_: Any, config: Any) -> str | None:
    sets = [*config.data.sets.values(), *config.evaluate.benchmarks.values()]
    is_warmed = any(agent.weak_warmup is not None for agent in config.pair.agents.values())
    return None if is_warmed or any(each.kind == "file" for each in sets) else "nothing is read from a file"


@dataclass(frozen=True)
class DataConfig:
    """Training problems, and the folder of all data files."""

    directory: str | None = setting(
        None,
        "folder of all files of problems; null: the environment's HACPO_DATA_DIR, else ./data",
        identity=False,
        inert=_reads_no_file,
    )
    train: list[str] = setting(
        list, "training sets: names in experiments/train_sets, YAML files, or names declared under data.sets"
    )
    sets: dict[str, TrainSetConfig] = setting(
        dict, "the declarations of these, filled in from experiments/train_sets where a field is not said here"
    )
    development_share: float = setting(
        0.0,
        "share of every training set that is held out of training, for a benchmark of kind development",
        at_least=0,
        at_most=0.9,
    )
    development_seed: int = setting(
        0,
        "seed of the choice of held out problems",
        at_least=0,
        at_most=2**53,
        inert=when("data.development_share", 0),
    )


@dataclass(frozen=True)
class BenchmarkConfig(ProblemSetConfig):
    """A set of problems that agents are evaluated on: where it comes from, how it is asked, what is measured."""

    kind: str = setting(
        "file",
        "where problems come from",
        choices={"arithmetic": "embedded", "file": "", "development": "held out of the training sets"},
    )
    template: str = setting(TEMPLATE, "the user's message; {problem} is replaced", inert=when(".kind", "development"))
    system: str | None = setting(None, "the system's message; null: none", inert=when(".kind", "development"))
    split: str = setting(
        "dev", "part of the embedded problems", choices=("dev", "test"), inert=unless(".kind", "arithmetic")
    )
    style: str | None = setting(
        None, "where the answer stands in a response; null: as verifier.style says", choices=STYLES
    )
    metric: str = setting(
        "avg",
        "the figure of the result table",
        choices={
            "avg": "avg@k: mean over problems and samples",
            "best": "best@k: any of k is right",
            "bootstrap_best": "verl's best@k: best of k draws from k samples, with replacement, mean of 1,000",
        },
    )
    num_samples: int = setting(1, "k: responses per problem and agent", at_least=1, at_most=1e5)
    temperature: float = setting(0.0, "of sampling; 0: greedy", at_least=0, at_most=1e3)
    top_p: float = setting(1.0, "nucleus sampling", above=0, at_most=1, inert=when(".temperature", 0, note=", greedy"))
    max_response_tokens: int | None = setting(
        None, "response limit; null: evaluate.max_response_tokens", unit="tokens", at_least=1
    )
    limit: int | None = setting(None, "most problems, from the set's beginning; null: all", at_least=1)


def _all_have_limits(_: Any, config: Any) -> str | None:
    open_ones = [each for each in config.evaluate.benchmarks.values() if each.max_response_tokens is None]
    return None if open_ones else "no benchmark lacks a limit of its own"


@dataclass(frozen=True)
class EvaluateConfig:
    """Which benchmarks, and when: `during` and `final` before training, `during` on the way, `final` after it."""

    every: int = setting(
        10,
        "steps between evaluations on `during`; 0: none but that before training",
        unit="steps",
        at_least=0,
        inert=lambda evaluate, _: None if evaluate.during else "evaluate.during is empty",
    )
    during: list[str] = setting(
        list, "benchmarks: names in experiments/benchmarks, YAML files, or names declared under evaluate.benchmarks"
    )
    final: list[str] = setting(list, "benchmarks, as in `during`")
    max_response_tokens: int = setting(
        8196,
        "response limit of benchmarks that have none of their own",
        unit="tokens",
        at_least=1,
        inert=_all_have_limits,
    )
    shard_problems: int = setting(
        256,
        "problems whose responses are committed together; what is interrupted goes on after the last committed ones",
        at_least=1,
        identity=False,
    )
    benchmarks: dict[str, BenchmarkConfig] = setting(
        dict,
        "the declarations of all names above, filled in from experiments/benchmarks where a field is not said here",
    )


def _starts_no_worker(_: Any, config: Any) -> str | None:
    if config.verifier.equality != "normalised" or "math_verify" in config.reward.functions:
        return None
    return "verifier.equality is normalised, which starts no worker"


@dataclass(frozen=True)
class VerifierConfig:
    """When an answer is right; math-verify runs in child processes."""

    equality: str = setting(
        "math_verify",
        "when two answers are the same",
        choices={
            "math_verify": "by algebra",
            "normalised": "as the official code: the last \\boxed{} as text, after MATH's string normalisation",
        },
    )
    style: str = setting(
        "boxed", "where the answer stands in a response; equality: normalised takes boxed", choices=STYLES
    )
    num_workers: int = setting(2, "child processes", at_least=1, at_most=1024, identity=False, inert=_starts_no_worker)
    timeout_s: float = setting(
        5.0,
        "wall clock per answer; then the worker is killed and the response is unscored",
        unit="s",
        above=0,
        inert=_starts_no_worker,
    )
    memory_mb: int = setting(2048, "memory of a worker", unit="MiB", at_least=256, inert=_starts_no_worker)
    cache: bool = setting(
        True, "decide equal pairs of answer and right answer once", identity=False, inert=_starts_no_worker
    )
    max_unscored_fraction: float = setting(
        0.05,
        "an agent's step with a larger unscored share (rounded up to whole responses) or no verdict stops the run",
        at_least=0,
        at_most=1,
        inert=_starts_no_worker,
    )


def _runs_no_function(reward: Any, _: Any) -> str | None:
    own = [name for name in reward.functions if ":" in name]
    return None if own else "reward.functions names no function of your own"


@dataclass(frozen=True)
class RewardConfig:
    """What responses are rewarded for in training; evaluations go by the verifier alone."""

    functions: list[str] = setting(
        lambda: [VERIFIER],
        "what gives rewards. verifier: 1 where it finds the answer right; math_verify, exact_match: the same by that "
        "rule, whatever verifier.equality is; package.module:function of your own",
    )
    weights: list[float] | None = setting(
        None,
        "weight of each function in their mean; null: all alike",
        inert=lambda reward, _: "reward.functions names one alone" if len(reward.functions) == 1 else None,
    )
    timeout_s: float = setting(
        60.0,
        "wall clock of one call of a function of your own; then its process is killed, and the responses are unscored",
        unit="s",
        above=0,
        inert=_runs_no_function,
    )
    memory_mb: int = setting(
        4096,
        "memory of the process of a function of your own",
        unit="MiB",
        at_least=256,
        inert=_runs_no_function,
    )
