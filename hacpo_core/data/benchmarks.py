"""Benchmarks, with problems from the embedded task, from a file, or held out of the training sets."""

from dataclasses import dataclass

from hacpo_core.config import BenchmarkConfig, DataConfig
from hacpo_core.data.problem_sets import read_problems, with_prompts
from hacpo_core.data.training import EMBEDDED, load_training
from hacpo_core.records import Problem


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A loaded benchmark: name, declaration and problems with their prompts."""

    name: str
    config: BenchmarkConfig
    problems: tuple[Problem, ...]


def load_benchmark(name: str, config: BenchmarkConfig, data: DataConfig) -> Benchmark:
    """The benchmark's problems, at most `limit` of them.

    Args:
        name: of the benchmark.
        config: its declaration.
        data: folder of files, and the training sets.

    Raises:
        DataError: a file, a field or an answer is missing, an id occurs twice, or the number of rows is not `count`.
    """
    if config.kind == "development":
        problems = load_training(data).development
    elif config.kind in EMBEDDED:
        problems = with_prompts(EMBEDDED[config.kind]("test" if config.split == "test" else "dev"), config)
    else:
        field = f"evaluate.benchmarks.{name}"
        problems = with_prompts(read_problems(field, config, data.directory, drops_unanswerable=False), config)
    return Benchmark(name, config, tuple(problems[: config.limit]))
