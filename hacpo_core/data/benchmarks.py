"""Benchmarks: their problems from the embedded task, a local file, or the hub; checked row by row and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hacpo_core.config import BenchmarkConfig, HubConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.prompts import format_messages
from hacpo_core.data.rows import Row, data_path, read_rows
from hacpo_core.errors import DataError
from hacpo_core.records import Gold, Message, Problem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark that is loaded: its name, its declaration and its problems, the template filled in."""

    name: str
    config: BenchmarkConfig
    problems: tuple[Problem, ...]


def benchmark_file(name: str, config: BenchmarkConfig, directory: str | None) -> Path | None:
    """Path of a benchmark's file: in the data folder, else downloaded; None for the embedded task.

    Raises:
        DataError: it is not there and cannot be downloaded; the message names the path to put it at.
    """
    if config.source == "arithmetic":
        return None
    assert config.file is not None, "validate() lets no file benchmark pass without a file"
    try:
        path = data_path(config.file, directory)
    except DataError as error:
        raise DataError(f"evaluate.benchmarks.{name}.file: {error}") from error
    if path.is_file():
        return path
    return _download(name, config.hub, path)


def load_benchmark(name: str, config: BenchmarkConfig, directory: str | None) -> Benchmark:
    """The benchmark's problems, at most `limit` of them.

    Args:
        name: of the benchmark.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR.

    Raises:
        DataError: a file, a field or an answer is missing, an id occurs twice, or the number of rows is not `count`.
    """
    path = benchmark_file(name, config, directory)
    if path is None:
        found = arithmetic.problems("test" if config.split == "test" else "dev")
    else:
        found = list(_read_file(name, config, path, is_local=path == data_path(config.file or "", directory)))
    problems = [
        replace(problem, messages=format_messages(config.template, problem.messages[-1].content, config.system))
        for problem in found[: config.limit]
    ]
    return Benchmark(name, config, tuple(problems))


def _read_file(name: str, config: BenchmarkConfig, path: Path, *, is_local: bool) -> Iterator[Problem]:
    columns = config if is_local else config.hub
    seen: set[str] = set()
    for row in read_rows(path):
        problem = _problem(row, config, columns, f"{name}/{row.number}")
        if problem.id in seen:
            raise DataError(f"{row.place}: the id {problem.id!r} occurs twice; make ids unique")
        seen.add(problem.id)
        yield problem
    if config.count is not None and len(seen) != config.count:
        raise DataError(
            f"{path}: got {len(seen)} problems, expected the {config.count} of {name}; "
            f"get the whole file, or set evaluate.benchmarks.{name}.count"
        )
    if not seen:
        raise DataError(f"{path} holds no problem; expected one JSON object a line")


def _problem(row: Row, config: BenchmarkConfig, columns: BenchmarkConfig | HubConfig, default_id: str) -> Problem:
    answer = row.text(columns.answer_field, numbers=True)
    if not answer.strip():
        raise DataError(f"{row.place}: field {columns.answer_field!r} holds no answer; mend or remove the row")
    return Problem(
        id=row.text(columns.id_field, numbers=True) if columns.id_field else default_id,
        messages=(Message("user", row.text(columns.problem_field)),),
        gold=Gold(answer),
        source=row.place,
    )


def _download(name: str, hub: HubConfig, path: Path) -> Path:
    raise DataError(f"evaluate.benchmarks.{name}.file: {path} is not there; put the file there")
