"""Rows of different lengths in one flat array, and token rows built from them.

Shapes: R row, N value (of all rows, one row after another), B row of a table, U prompt (each once).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Positions = Sequence[int] | NDArray[Any]
Table = TypeVar("Table")
"""a dataclass some of whose fields are columns: tuples, arrays, `Ragged`, `TokenRows`"""


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Row r is `value_N[edge[r]:edge[r + 1]]`.

    Attributes:
        value_N: all rows' values.
        edge: int64, number of rows + 1 entries, from 0 to N.
    """

    value_N: NDArray[Any]
    edge: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Any], dtype: DTypeLike) -> Ragged:
        """From arrays or sequences of numbers, one per row."""
        parts = [np.asarray(row, dtype=dtype) for row in rows]
        return cls.from_lengths(np.concatenate([np.empty(0, dtype), *parts]), [len(part) for part in parts])

    @classmethod
    def from_lengths(cls, value_N: NDArray[Any], lengths: Positions) -> Ragged:
        """From all values and the lengths of the rows."""
        return cls(value_N, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts (at least one), concatenated."""
        values = np.concatenate([part.value_N for part in parts])
        return cls.from_lengths(values, np.concatenate([part.lengths for part in parts]))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.edge) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        """A row's values, as a view."""
        return self.value_N[self.edge[row] : self.edge[row + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Rows in order."""
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of values of each row."""
        return np.diff(self.edge)

    def take(self, rows: Positions) -> Ragged:
        """Some rows, in that order."""
        at = np.asarray(rows, np.int64)
        return self._slices(self.edge[at], self.edge[at + 1])

    def cut(self, lengths: Positions) -> Ragged:
        """The first `lengths[r]` values of each row, or all if it has fewer."""
        start, end = self.edge[:-1], self.edge[1:]
        return self._slices(start, np.minimum(start + np.asarray(lengths, np.int64), end))

    def _slices(self, start_R: NDArray[np.int64], end_R: NDArray[np.int64]) -> Ragged:
        values = [self.value_N[start:end] for start, end in zip(start_R.tolist(), end_R.tolist(), strict=True)]
        return Ragged.from_lengths(np.concatenate([self.value_N[:0], *values]), end_R - start_R)

    def means(self) -> NDArray[np.float64]:
        """Mean of each row, in float64; no row may be empty."""
        return np.add.reduceat(self.value_N.astype(np.float64), self.edge[:-1]) / self.lengths


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Prompts and responses in one agent's tokens. B row, U distinct prompt.

    Attributes:
        prompts: int32, each prompt once.
        prompt_B: index of each row's prompt.
        responses: int32.
    """

    prompts: Ragged
    prompt_B: NDArray[np.int64]
    responses: Ragged

    @classmethod
    def of(cls, prompts: Sequence[Any], responses: Ragged | Sequence[Any]) -> TokenRows:
        """From a prompt and a response per row; equal prompts are stored once."""
        number: dict[bytes, int] = {}
        different: list[NDArray[np.int32]] = []
        prompt_B = np.empty(len(prompts), np.int64)
        for row, prompt in enumerate(np.asarray(prompt, np.int32) for prompt in prompts):
            place = prompt_B[row] = number.setdefault(prompt.tobytes(), len(number))
            if place == len(different):
                different.append(prompt)
        if not isinstance(responses, Ragged):
            responses = Ragged.of(responses, np.int32)
        return cls(Ragged.of(different, np.int32), prompt_B, responses)

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """The rows of all parts (at least one), concatenated."""
        prompts = [part.prompts[u] for part in parts for u in part.prompt_B]
        return cls.of(prompts, Ragged.joined([part.responses for part in parts]))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.prompt_B)

    @property
    def lengths_B(self) -> NDArray[np.int64]:
        """Number of tokens of each row, prompt and response."""
        return self.prompts.lengths[self.prompt_B] + self.responses.lengths

    def take(self, rows: Positions) -> TokenRows:
        """Some rows, in that order."""
        return TokenRows(self.prompts, self.prompt_B[np.asarray(rows, np.int64)], self.responses.take(rows))

    def compacted(self) -> TokenRows:
        """The same rows without prompts of no row; prompts in the order of their first rows."""
        _, first_U, place_B = np.unique(self.prompt_B, return_index=True, return_inverse=True)
        order_U = np.argsort(first_U)
        number_U = np.empty_like(order_U)
        number_U[order_U] = np.arange(len(order_U))
        return TokenRows(self.prompts.take(self.prompt_B[np.sort(first_U)]), number_U[place_B], self.responses)


def take_rows(table: Table, rows: Positions) -> Table:
    """Some rows of a table, in that order; fields that are no columns stay as they are."""
    at = np.asarray(rows, np.int64)

    def take(column: Any) -> Any:
        if isinstance(column, tuple):
            return tuple(column[row] for row in at.tolist())
        if isinstance(column, Ragged | TokenRows):
            return column.take(at)
        return column[at] if isinstance(column, np.ndarray) else column

    return replace(table, **{f.name: take(getattr(table, f.name)) for f in fields(table)})  # type: ignore[type-var, arg-type]


def join_rows(parts: Sequence[Table]) -> Table:
    """The rows of all parts (at least one), concatenated; fields that are no columns are the first part's."""

    def join(columns: Sequence[Any]) -> Any:
        first = columns[0]
        if isinstance(first, tuple):
            return tuple(value for column in columns for value in column)
        if isinstance(first, Ragged | TokenRows):
            return first.joined(columns)
        return np.concatenate(columns) if isinstance(first, np.ndarray) else first

    return replace(parts[0], **{f.name: join([getattr(part, f.name) for part in parts]) for f in fields(parts[0])})  # type: ignore[type-var, arg-type]
