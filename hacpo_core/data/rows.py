"""Rows of a JSONL or Parquet file, read one at a time, with their position for error messages."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hacpo_core.errors import DataError

_BATCH_ROWS = 256
_MISSING = object()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row; `place` is its file and line or row number, for messages.

    A column inside another one is named with dots, such as reward_model.ground_truth, unless a column has that name.
    """

    number: int
    place: str
    values: dict[str, Any]

    def has(self, name: str) -> bool:
        """Whether the row has this column, which may be empty."""
        return self._find(name) is not _MISSING

    def _find(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        value: Any = self.values
        for part in name.split("."):
            value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
        return value

    def _value(self, name: str) -> Any:
        value = self._find(name)
        if value is _MISSING:
            raise DataError(f"{self.place}: field {name!r} is missing; the row has {', '.join(self.values) or 'none'}")
        return value

    def text(self, name: str, *, numbers: bool = False, blanks: bool = False) -> str:
        """Text of a column. With `numbers`, it may be a number, which is converted; with `blanks`, empty or null.

        Raises:
            DataError: the column is missing, empty, of another type or not valid Unicode, or the number is not finite.
        """
        value = self._value(name)
        if numbers and isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise DataError(f"{self.place}: field {name!r}: got {value}, expected text or a finite number")
            return str(int(value) if value == int(value) and abs(value) < 1e15 else value)  # 70000.0 beside a null
        if value is None and blanks:
            return ""
        if not isinstance(value, str):
            remedy = "fix or remove the row"
            if isinstance(value, dict) and value:
                remedy = f"name one of its fields, such as {name}.{next(iter(value))}"
            expected = "text or a number" if numbers else "text"
            raise DataError(f"{self.place}: field {name!r}: got {_brief(value)}, expected {expected}; {remedy}")
        if not blanks and not value.strip():
            raise DataError(f"{self.place}: field {name!r} is empty; fix or remove the row")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # half of a pair, "\ud83d" in JSON: it could not be stored
            part = value[max(0, error.start - 20) : error.end]
            raise DataError(
                f"{self.place}: field {name!r}: {part!r} is not valid Unicode; fix or remove the row"
            ) from error
        return value

    def optional(self, name: str | None) -> Any:
        """Value of a column that may be empty; None if it is empty or if `name` is None.

        Raises:
            DataError: there is no such column.
        """
        if name is None:
            return None
        value = self._value(name)
        return None if value == "" else value


def _brief(value: Any) -> str:
    """Kind and beginning of a value that is not text."""
    kind = "the list " if isinstance(value, list) else "the mapping " if isinstance(value, dict) else ""
    text = "null" if value is None else repr(value)
    return f"{kind}{text if len(text) <= 60 else f'{text[:57]}...'}"


@cache
def warn_once(message: str) -> None:
    """Log a warning about a file once per process, however often the file is read."""
    _log.warning(message)


def data_path(name: str, directory: str | None) -> Path:
    """Path of a data file, which need not exist: in the directory, HACPO_DATA_DIR or ./data, unless it is absolute."""
    return Path(directory or os.environ.get("HACPO_DATA_DIR") or "data") / name


def read_rows(path: Path) -> Iterator[DataRow]:
    """Rows of a `.parquet` file, or of any other file as JSON, one object per line.

    Raises:
        DataError: the file is broken; the message names the file, the line and the remedy.
    """
    return _parquet_rows(path) if path.suffix.lower() == ".parquet" else _json_rows(path)


def _parquet_rows(path: Path) -> Iterator[DataRow]:
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield DataRow(number, f"{path}, row {number}", values)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}); download it again") from error


def _json_rows(path: Path) -> Iterator[DataRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: not UTF-8 ({error}); save the file as UTF-8") from error
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{place}: not JSON ({error}), expected one object per line; fix or remove the line, or convert "
                    "the file to JSONL or Parquet"
                ) from error
            if not isinstance(values, dict):
                raise DataError(f"{place}: got {type(values).__name__}, expected a JSON object")
            yield DataRow(number, place, values)
