"""Layouts of rows (prompt p and response r) as the input tensors of forward passes.

    padded           p p p r r . .          every row is one sequence, padded on the right to the longest one
                     p p p r r r r
    shared_prompts   p p p r r r r r r      one sequence without padding; a prompt occurs once for all its responses.
                                            Each response attends to the prompt and itself and continues its positions

The prompt's last position predicts a response's first token; in `shared_prompts`, it predicts those of several
responses. A response's last token predicts nothing: `shared_prompts` leaves it out, padded rows keep it.

Shapes: B sequence, T token, N target (response tokens, row after row), R row, L position in a row, C copy of a prompt's
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hacpo_core.columns import TokenRows

LAYOUTS = ("padded", "shared_prompts")


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Positions of rows in a sequence in which they share their prompts.

    `token_RL` is the index of the token at each position of each row, the prompt first; after a row's end, it is
    arbitrary. The other indices count the positions of all rows one after another: `home_T` is the position of each
    token, for a prompt's token that in the first row with this prompt. `copy_C` are the positions of prompts in further
    rows, `original_C` their tokens.
    """

    token_RL: Tensor
    home_T: Tensor
    copy_C: Tensor
    original_C: Tensor

    def to(self, device: torch.device) -> RowPlaces:
        """The same on another device."""
        return RowPlaces(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Input tensors of one forward pass.

    `rows` are positions in the batch, in the order of their targets. Target n follows the token at
    (`sequence_N`, `column_N`). `position_BT` and `places` are None in the padded layout, where positions start at 0.
    """

    rows: tuple[int, ...]
    input_BT: Tensor
    sequence_N: Tensor
    column_N: Tensor
    target_N: Tensor
    position_BT: Tensor | None = None
    places: RowPlaces | None = None

    def to(self, device: torch.device) -> ForwardPass:
        """The same on another device."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in values.items() if isinstance(value, Tensor | RowPlaces)
        }
        return replace(self, **moved)


def forward_passes(
    rows: TokenRows, *, layout: str, max_tokens: int, filled_length: Callable[[int], int] | None = None
) -> Iterator[ForwardPass]:
    """All rows, each in exactly one pass. The result depends on the arguments only.

    Args:
        rows: each with at least one prompt token and one response token.
        layout: one of `LAYOUTS`.
        max_tokens: budget of one pass, counted as if its rows were padded to the longest one; a longer row gets a pass
            of its own.
        filled_length: pad a sequence of shared_prompts to the length that this returns for its number of tokens, even
            beyond `max_tokens`; None: leave it as it is.
    """
    for group in row_groups(rows, layout=layout, max_tokens=max_tokens):
        part = rows.take(group)
        yield _padded(part, group) if layout == "padded" else _shared(part, group, filled_length)


def row_groups(rows: TokenRows, *, layout: str, max_tokens: int) -> list[list[int]]:
    """Positions of the rows of each of `forward_passes`."""
    lengths_B = rows.lengths_B
    if layout == "padded":
        return micro_batches(lengths_B.tolist(), max_tokens=max_tokens)
    # Keep the rows of a prompt together; prompts with the longest row first, ties in the rows' order.
    longest_U, first_U = np.zeros(len(rows.prompts), np.int64), np.full(len(rows.prompts), len(rows))
    np.maximum.at(longest_U, rows.prompt_B, lengths_B)
    np.minimum.at(first_U, rows.prompt_B, np.arange(len(rows)))
    order = np.lexsort((-lengths_B, first_U[rows.prompt_B], -longest_U[rows.prompt_B]))
    return micro_batches(lengths_B.tolist(), max_tokens=max_tokens, order=order.tolist())


def micro_batches(lengths: Sequence[int], *, max_tokens: int, order: Sequence[int] | None = None) -> list[list[int]]:
    """Row positions grouped so that rows x longest stays within the budget; a longer row forms its own group.

    Args:
        lengths: of the rows.
        max_tokens: the budget.
        order: in which rows are taken; None: longest first.
    """
    groups: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]) if order is None else order:
        longest = max(longest, lengths[row])
        if groups and (len(groups[-1]) + 1) * longest <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
            longest = lengths[row]
    return groups


def _padded(rows: TokenRows, positions: Sequence[int]) -> ForwardPass:
    lengths_B = rows.lengths_B
    input_BT = np.zeros((len(rows), int(lengths_B.max())), np.int64)
    columns = []
    for b, (u, response, length) in enumerate(zip(rows.prompt_B, rows.responses, lengths_B.tolist(), strict=True)):
        start = length - len(response)
        input_BT[b, :start] = rows.prompts[u]
        input_BT[b, start:length] = response
        columns.append(np.arange(start - 1, length - 1))
    sequence_N = np.repeat(np.arange(len(rows)), rows.responses.lengths)
    return ForwardPass(
        tuple(positions), _ids([input_BT]), _ids([sequence_N]), _ids(columns), _ids([rows.responses.value_N])
    )


def _shared(rows: TokenRows, positions: Sequence[int], filled_length: Callable[[int], int] | None) -> ForwardPass:
    longest = int(rows.lengths_B.max()) - 1
    inputs: list[NDArray[Any]] = []
    places: list[NDArray[Any]] = []
    homes: list[NDArray[Any]] = []
    columns: list[NDArray[Any]] = []
    copies: list[NDArray[Any]] = []
    originals: list[NDArray[Any]] = []
    token_RL = np.zeros((len(rows), longest), np.int64)
    starts: dict[int, int] = {}
    num_tokens = 0
    for r, (u, response) in enumerate(zip(rows.prompt_B.tolist(), rows.responses, strict=True)):
        prompt = rows.prompts[u]
        length, here = len(prompt), r * longest
        row_length = length + len(response) - 1
        if u in starts:
            copies.append(np.arange(here, here + length))
            originals.append(np.arange(starts[u], starts[u] + length))
        else:
            starts[u] = num_tokens
            num_tokens += length
            inputs.append(prompt)
            places.append(np.arange(length))
            homes.append(np.arange(here, here + length))
        first, begin = starts[u], num_tokens
        num_tokens += row_length - length
        inputs.append(response[:-1])
        places.append(np.arange(length, row_length))
        homes.append(np.arange(here + length, here + row_length))
        token_RL[r, :length] = np.arange(first, first + length)
        token_RL[r, length:row_length] = np.arange(begin, num_tokens)
        columns += [np.array([first + length - 1]), np.arange(begin, num_tokens)]
    filler = [] if filled_length is None else [np.zeros(filled_length(num_tokens) - num_tokens, np.int64)]
    return ForwardPass(
        tuple(positions),
        _ids([*inputs, *filler])[None],
        torch.zeros(len(rows.responses.value_N), dtype=torch.long),
        _ids(columns),
        _ids([rows.responses.value_N]),
        _ids([*places, *filler])[None],
        RowPlaces(torch.from_numpy(token_RL), _ids(homes), _ids(copies), _ids(originals)),
    )


def _ids(parts: Sequence[NDArray[Any]]) -> Tensor:
    """int64, one part after another; rows of two dimensions stay rows."""
    return torch.from_numpy(np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64))
