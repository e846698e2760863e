"""Problem sets with verifiable answers, from a local file or the Hugging Face hub, checked row by row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError

from hacpo_core.config import HubConfig, ProblemSetConfig
from hacpo_core.data.boxed import boxed
from hacpo_core.data.prompts import format_messages
from hacpo_core.data.rows import DataRow, data_path, read_rows, warn_once
from hacpo_core.errors import DataError
from hacpo_core.records import Gold, Message, Problem

UNREACHABLE_HUBS: set[str] = set()
"""addresses of hubs that did not answer in this process, which are not asked again"""


def problem_file(field: str, config: ProblemSetConfig, directory: str | None) -> Path | None:
    """Path of a set's file: in the data folder, else downloaded; None for a set without a file.

    Args:
        field: field that declares the set, for messages.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR, else ./data.

    Raises:
        DataError: the file does not exist and cannot be downloaded; the message says where to put it.
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
        field, config, directory: as for `problem_file`; a row without an id gets the last part of `field` and its
            number as id.
        drops_unanswerable: drop rows with an empty answer, which cannot be rewarded, and log their number; False: they
            are errors.

    Raises:
        DataError: a file, a column or an answer is missing, an id occurs twice, the number of rows is not `count`, or
            no problem is left.
    """
    path = problem_file(field, config, directory)
    assert path is not None, "only sets with a file are read"
    is_local = config.file is not None and path == data_path(config.file, directory)
    columns, section = (config, field) if is_local else (config.hub, f"{field}.hub")
    problems: dict[str, Problem] = {}
    num_rows = num_unanswerable = 0
    names = (columns.id_field, columns.problem_field, columns.answer_field, config.unit_field, config.tolerance_field)
    for row in read_rows(path, list(filter(None, names))):
        num_rows += 1
        _check_columns(row, columns, section)
        if drops_unanswerable and not _answer(row, columns, blanks=True).strip():
            num_unanswerable += 1
            continue
        problem = _problem(row, config, columns, f"{field.rpartition('.')[2]}/{row.number}")
        if problem.id in problems:
            raise DataError(f"{row.place}: the id {problem.id!r} occurs twice; make ids unique")
        problems[problem.id] = problem
    is_counted = is_local or config.file is None  # a hub's copy of a local file may have another number of rows
    if is_counted and config.count is not None and num_rows != config.count:
        raise DataError(
            f"{path}: got {num_rows} problems, expected {config.count}; get the complete file, or set {field}.count"
        )
    if not problems:
        raise DataError(f"{path}: got no problem with an answer, expected one JSON object per line; fix the file")
    if num_unanswerable:
        warn_once(f"{path}: dropped {num_unanswerable} problems with an empty answer")
    return list(problems.values())


def with_prompts(problems: Sequence[Problem], config: ProblemSetConfig) -> list[Problem]:
    """The problems with the set's prompts: template filled in, in front the set's system message, else the row's."""

    def messages(problem: Problem) -> tuple[Message, ...]:
        *before, user = problem.messages
        system = before[0].content if before and config.system is None else config.system
        return format_messages(config.template, user.content, system)

    return [replace(problem, messages=messages(problem)) for problem in problems]


def _problem(row: DataRow, config: ProblemSetConfig, columns: ProblemSetConfig | HubConfig, default_id: str) -> Problem:
    return Problem(
        id=row.text(columns.id_field, numbers=True) if columns.id_field else default_id,
        messages=row.messages(columns.problem_field),
        gold=Gold(
            answer=_answer(row, columns),
            unit=row.text(config.unit_field, blanks=True) if config.unit_field else "",
            tolerance=row.tolerance(config.tolerance_field) if config.tolerance_field else 0.0,
        ),
        place=row.place,
    )


def _check_columns(row: DataRow, columns: ProblemSetConfig | HubConfig, section: str) -> None:
    """Raise DataError if the row has no column of that name; `section` holds the fields that name columns."""
    for field in ("id_field", "problem_field", "answer_field"):
        name = getattr(columns, field)
        if name is not None and not row.has(name):
            others = "another column, or to null to number the rows" if field == "id_field" else "another column"
            raise DataError(
                f"{row.place}: field {name!r} is missing; the row has {', '.join(row.columns) or 'none'}; fix the row, "
                f"or set {section}.{field} to {others}"
            )


def _answer(row: DataRow, columns: ProblemSetConfig | HubConfig, *, blanks: bool = False) -> str:
    """The row's answer; with `blanks`, it may be empty, but for the form "hashes", whose rows all have one."""
    name, form = columns.answer_field, columns.answer_form
    text = row.text(name, numbers=True, blanks=True)
    if form == "boxed":
        text = next(reversed(boxed(text)), "")
    elif form == "hashes":
        text = text.rpartition("####")[2].strip().partition("\n")[0].strip() if "####" in text else ""
    if not (blanks or text.strip()):
        raise DataError(f"{row.place}: field {name!r} has no answer ({form}); fix or remove the row")
    return text


def _download(field: str, config: ProblemSetConfig, path: Path | None) -> Path:
    """The hub's copy of a file. `path` is the local path that does not exist; None if the set names no local file."""
    hub = config.hub
    columns = ", ".join(filter(None, (config.id_field, config.problem_field, config.answer_field)))
    remedy = f"put the file at {path}, with the fields {columns}"
    if path is None:
        remedy = f"put the file into the data folder and set {field}.file to its name"
    if field.startswith("evaluate."):
        remedy += ", or leave it out (evaluate.during and evaluate.final; hacpo evaluate: --benchmarks)"
    if not hub.name:
        raise DataError(f"{field}.file: {path} does not exist; set data.directory or HACPO_DATA_DIR, or {remedy}")
    # Each request to an unreachable hub takes 23 s to time out, so after the first one only the local cache is used.
    is_silent = constants.ENDPOINT in UNREACHABLE_HUBS
    try:
        return Path(
            hf_hub_download(hub.name, hub.file, repo_type="dataset", revision=hub.revision, local_files_only=is_silent)
        )
    except (OSError, ValueError) as error:
        if isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError)):
            UNREACHABLE_HUBS.add(constants.ENDPOINT)
        raise DataError(
            f"{field}.file: {path or 'the file'} does not exist and {hub.name}/{hub.file} cannot be downloaded "
            f"({type(error).__name__}); {remedy}, or run `hacpo prefetch` where there is a network"
        ) from error
