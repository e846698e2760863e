"""Sets of problems with verifiable answers, from a local file or the hub; read by column names, checked row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError

from hacpo_core.config import HubConfig, ProblemSetConfig
from hacpo_core.data.boxed import boxed
from hacpo_core.data.prompts import format_messages
from hacpo_core.data.rows import DataRow, data_path, has_several_answers, read_rows, warn_once
from hacpo_core.errors import DataError
from hacpo_core.records import Gold, Message, Problem

_silent_hubs: set[str] = set()


def problem_file(field: str, config: ProblemSetConfig, directory: str | None) -> Path | None:
    """Path of a set's file: in the data folder, else downloaded; None where it has none.

    Args:
        field: where the set is declared, for messages.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR, else ./data.

    Raises:
        DataError: it is not there and cannot be downloaded; the message names the path to put it at.
    """
    if config.kind != "file":
        return None
    if config.file is None:
        return _download(field, config, None)
    path = data_path(config.file, directory)
    return path if path.is_file() else _download(field, config, path)


def read_problems(
    field: str, config: ProblemSetConfig, directory: str | None, *, drops_unanswerable: bool
) -> list[Problem]:
    """Problems of a set's file, without any prompt template.

    Args:
        field, config, directory: as of `problem_file`; a row without an id gets the last part of `field`, and its
            number.
        drops_unanswerable: drop rows whose answer is empty, which cannot be rewarded, and count them in the log; else
            they are errors.

    Raises:
        DataError: a file, a column or an answer is missing, an id occurs twice, the number of rows is not `count`, or
            nothing is left.
    """
    path = problem_file(field, config, directory)
    assert path is not None, "only sets of a file are read"
    is_local = config.file is not None and path == data_path(config.file, directory)
    columns = config if is_local else config.hub
    problems: dict[str, Problem] = {}
    num_rows = num_unanswerable = num_doubtful = 0
    for row in read_rows(path):
        num_rows += 1
        if drops_unanswerable and not row.text(columns.answer_field, numbers=True, blanks=True).strip():
            num_unanswerable += 1
            continue
        problem = _problem(row, config, columns, f"{field.rpartition('.')[2]}/{row.number}")
        if problem.id in problems:
            raise DataError(f"{row.place}: the id {problem.id!r} occurs twice; make ids unique")
        problems[problem.id] = problem
        num_doubtful += has_several_answers(row)
    if config.count is not None and num_rows != config.count:
        raise DataError(
            f"{path}: got {num_rows} problems, expected {config.count}; get the whole file, or set {field}.count"
        )
    if not problems:
        raise DataError(f"{path} holds no problem that has an answer; expected one JSON object a line")
    if num_doubtful:
        warn_once(f"{path}: the solutions of {num_doubtful} problems box several answers; the last one counts")
    if num_unanswerable:
        warn_once(f"{path}: dropped {num_unanswerable} problems whose answer is empty")
    return list(problems.values())


def asked(problems: Sequence[Problem], config: ProblemSetConfig) -> list[Problem]:
    """The problems as a set asks them: its template filled in, its system message before it."""
    return [
        replace(problem, messages=format_messages(config.template, problem.messages[-1].content, config.system))
        for problem in problems
    ]


def _problem(row: DataRow, config: ProblemSetConfig, columns: ProblemSetConfig | HubConfig, default_id: str) -> Problem:
    return Problem(
        id=row.id(columns.id_field) if columns.id_field else default_id,
        messages=(Message("user", row.text(columns.problem_field)),),
        gold=Gold(
            answer=_answer(row, columns.answer_field, columns.answer_form),
            unit=str(row.optional(config.unit_field) or ""),
            tolerance=_tolerance(row, config.tolerance_field),
            is_multiple=_truth(row, config.multiple_field),
        ),
        place=row.place,
    )


def _answer(row: DataRow, name: str, form: str) -> str:
    text = row.text(name, numbers=True, blanks=True)
    if form == "boxed":
        text = next(reversed(boxed(text)), "")
    elif form == "hashes":
        text = text.rpartition("####")[2].strip() if "####" in text else ""
    if not text.strip():
        raise DataError(f"{row.place}: field {name!r} holds no answer ({form}); fix or remove the row")
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


def _download(field: str, config: ProblemSetConfig, path: Path | None) -> Path:
    """The hub's copy of a file; `path` is where it was looked for first, None where it has no name here."""
    hub = config.hub
    columns = ", ".join(filter(None, (config.id_field, config.problem_field, config.answer_field)))
    remedy = f"put the file at {path}, with the fields {columns}"
    if path is None:
        remedy = f"put the file into the data folder and name it under {field}.file"
    if not hub.name:
        raise DataError(f"{field}.file: {path} is not there; set data.directory or HACPO_DATA_DIR, or {remedy}")
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
            f"{field}.file: {path or 'the file'} is not there and no hub answers for {hub.name}/{hub.file} "
            f"({type(error).__name__}); {remedy}"
        ) from error
