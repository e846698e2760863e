"""Rows of a JSONL (also gzipped) or Parquet file, read one at a time, with their position for error messages."""

import gzip
import json
import logging
import math
import os
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hacpo_core.errors import DataError, first_line
from hacpo_core.records import Message

_BATCH_ROWS = 256
_MISSING = object()
_DECIMAL = re.compile(r"[0-9.]+(?:[eE][-+]?[0-9]+)?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row; `place` is its file and line or row number, `columns` are the names of all columns, for messages.

    A column inside another one is named with dots, such as reward_model.ground_truth, unless a column has that name.
    """

    number: int
    place: str
    values: dict[str, Any]
    columns: tuple[str, ...]

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
            raise DataError(f"{self.place}: field {name!r} is missing; the row has {', '.join(self.columns) or 'none'}")
        return value

    def text(self, name: str, *, numbers: bool = False, blanks: bool = False) -> str:
        """Text of a column. With `numbers`, it may be a number, which is converted, or a list of one text.

        With `blanks`, it may be empty or null.

        Raises:
            DataError: the column is missing, empty, of another type or not valid Unicode, or the number is not finite.
        """
        value = self._value(name)
        if numbers and isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]
        if numbers and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            if isinstance(value, int):
                return str(value)
            if not math.isfinite(value):
                raise DataError(f"{self.place}: field {name!r}: got {value}, expected text or a finite number")
            if value == int(value) and -1e15 < value < 1e15:
                return str(int(value))  # 70000.0 beside a null
            return str(value) if isinstance(value, float) else format(value.normalize(), "f")
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

    def messages(self, name: str) -> tuple[Message, ...]:
        """Messages of a column: its text as the user's, or a list of an optional system's and the user's (as verl's).

        Raises:
            DataError: as for `text`, or the list is another.
        """
        value = self._value(name)
        if not isinstance(value, list):
            return (Message("user", self.text(name)),)
        parts = [DataRow(self.number, self.place, each, tuple(each)) for each in value if isinstance(each, dict)]
        messages = tuple(Message(part.text("role"), part.text("content")) for part in parts)
        if len(parts) < len(value) or [message.role for message in messages] not in (["user"], ["system", "user"]):
            raise DataError(
                f"{self.place}: field {name!r}: got {_brief(value)}, expected text, or messages of a user, of a system "
                "and a user; fix or remove the row"
            )
        return messages

    def tolerance(self, name: str) -> float:
        """Absolute error of a column, >= 0; 0 if it is empty.

        Raises:
            DataError: there is no such column, or it holds something else.
        """
        value = self._value(name)
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        tolerance = 0.0 if value is None or value == "" else math.nan
        if is_number or (isinstance(value, str) and _DECIMAL.fullmatch(value.strip())):
            with suppress(ValueError, OverflowError):
                tolerance = float(value)
        if not 0 <= tolerance < math.inf:
            raise DataError(
                f"{self.place}: field {name!r}: got {_brief(value)}, expected an absolute error or no value"
            )
        return tolerance


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


def read_rows(path: Path, names: Collection[str]) -> Iterator[DataRow]:
    """Rows of a `.parquet` file, or of any other file as JSON, one object per line, with `.gz` compressed.

    Args:
        path: of the file.
        names: columns that are read of a Parquet file; the others are not converted.

    Raises:
        DataError: the file is broken; the message names the file, the line and the remedy.
    """
    return _parquet_rows(path, names) if path.suffix.lower() == ".parquet" else _json_rows(path)


def _parquet_rows(path: Path, names: Collection[str]) -> Iterator[DataRow]:
    try:
        with pq.ParquetFile(path) as file:
            all_names = tuple(file.schema_arrow.names)
            read = [name for name in names if name in all_names or name.partition(".")[0] in all_names]
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=read or list(all_names[:1])):
                columns = {name: _values(batch[name], f"{path}, row", name, number) for name in batch.schema.names}
                for at in range(batch.num_rows):
                    number += 1
                    values = {name: column[at] for name, column in columns.items()}
                    yield DataRow(number, f"{path}, row {number}", values, all_names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}); download it again") from error


def _values(column: pa.Array, place: str, name: str, num_before: int) -> list[Any]:
    """The values of a column of some rows; Python has no value for broken UTF-8, or a time beyond the year 9999."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        for number, value in enumerate(column, start=num_before + 1):
            try:
                value.as_py()
            except (ValueError, OverflowError) as error:
                raise DataError(
                    f"{place} {number}: field {name!r}: got a value of type {column.type} that cannot be read "
                    f"({first_line(error)}), expected text or a number; fix or remove the row"
                ) from error
        raise


def _json_rows(path: Path) -> Iterator[DataRow]:
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place, encoding = f"{path}, line {number}", "utf-8-sig" if number == 1 else "utf-8"
                    values = _json_object(line, place, encoding)
                    yield DataRow(number, place, values, tuple(values))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a readable gzip file ({error}); download it again") from error


def _json_object(line: bytes, place: str, encoding: str) -> dict[str, Any]:
    try:
        values = json.loads(line.decode(encoding))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 ({error}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: not JSON ({error}), expected one object per line; fix or remove the line, or convert the file "
            "to JSONL or Parquet"
        ) from error
    if not isinstance(values, dict):
        raise DataError(f"{place}: got {type(values).__name__}, expected a JSON object")
    return values
