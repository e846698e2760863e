"""Benchmarks: their problems from the embedded task, a local file, or the hub; checked row by row and counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError

from hacpo_core.boxes import boxed
from hacpo_core.config import BenchmarkConfig, HubConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.prompts import format_messages
from hacpo_core.data.rows import DataRow, data_path, has_several_answers, read_rows, warn_once
from hacpo_core.errors import DataError
from hacpo_core.records import Gold, Message, Problem

_silent_hubs: set[str] = set()


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
    path = data_path(config.file, directory)
    if path.is_file():
        return path
    return _download(name, config, path)


def load_benchmark(name: str, config: BenchmarkConfig, directory: str | None) -> Benchmark:
    """The benchmark's problems, at most `limit` of them.

    Args:
        name: of the benchmark.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR, else ./data.

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
    num_doubtful = 0
    for row in read_rows(path):
        problem = _problem(row, config, columns, f"{name}/{row.number}")
        if problem.id in seen:
            raise DataError(f"{row.place}: the id {problem.id!r} occurs twice; make ids unique")
        seen.add(problem.id)
        num_doubtful += has_several_answers(row)
        yield problem
    if config.count is not None and len(seen) != config.count:
        raise DataError(
            f"{path}: got {len(seen)} problems, expected the {config.count} of {name}; "
            f"get the whole file, or set evaluate.benchmarks.{name}.count"
        )
    if not seen:
        raise DataError(f"{path} holds no problem; expected one JSON object a line")
    if num_doubtful:
        warn_once(f"{path}: the solutions of {num_doubtful} problems box several answers; the last one counts")


def _problem(row: DataRow, config: BenchmarkConfig, columns: BenchmarkConfig | HubConfig, default_id: str) -> Problem:
    return Problem(
        id=row.id(columns.id_field) if columns.id_field else default_id,
        messages=(Message("user", row.text(columns.problem_field)),),
        gold=Gold(
            answer=_answer(row, columns.answer_field, columns.answer_form),
            unit=str(row.optional(config.unit_field) or ""),
            tolerance=_tolerance(row, config.tolerance_field),
            is_multiple=_truth(row, config.multiple_field),
        ),
        source=row.place,
    )


def _answer(row: DataRow, name: str, form: str) -> str:
    text = row.text(name, numbers=True, blanks=True)
    if form == "boxed":
        text = next(reversed(boxed(text)), "")
    elif form == "hashes":
        text = text.rpartition("####")[2].strip() if "####" in text else ""
    if not text.strip():
        raise DataError(f"{row.place}: field {name!r} holds no answer ({form}); mend or remove the row")
    return text


def _tolerance(row: DataRow, name: str | None) -> float:
    value = row.optional(name)
    try:
        tolerance = float(value or 0)
    except (TypeError, ValueError):
        tolerance = math.nan
    if not 0 <= tolerance < math.inf:
        raise DataError(f"{row.place}: field {name!r}: got {value!r}, expected an absolute error or nothing")
    return tolerance


def _truth(row: DataRow, name: str | None) -> bool:
    value = row.optional(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{row.place}: field {name!r}: got {value!r}, expected true or false")
    return bool(value)


def _download(name: str, config: BenchmarkConfig, path: Path) -> Path:
    """The hub's copy of a file; `path` is where it would be looked for first."""
    hub = config.hub
    columns = ", ".join(filter(None, (config.id_field, config.problem_field, config.answer_field)))
    remedy = f"put the file at {path}, with the fields {columns}"
    if not hub.name:
        raise DataError(f"evaluate.benchmarks.{name}.file: {path} is not there; set HACPO_DATA_DIR, or {remedy}")
    # A silent hub costs its time-out, 23 s, at each question; its cache is asked all the same.
    is_silent = constants.ENDPOINT in _silent_hubs
    try:
        return Path(
            hf_hub_download(hub.name, hub.file, repo_type="dataset", revision=hub.revision, local_files_only=is_silent)
        )
    except (OSError, ValueError) as error:
        if isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError)):
            _silent_hubs.add(constants.ENDPOINT)
        raise DataError(
            f"evaluate.benchmarks.{name}.file: {path} is not there and no hub answers for {hub.name}/{hub.file} "
            f"({type(error).__name__}); {remedy}"
        ) from error
