"""Layouts of rows (prompt p and response r) as the input tensors of forward passes.

    padded           p p p r r . .          every row is one sequence, padded on the right to the longest one
                     p p p r r r r
    shared_prompts   p p p r r r r r r      one sequence without padding; a prompt occurs once for all its responses.
                                            Each response attends to the prompt and itself and continues its positions

The prompt's last position predicts a response's first token; in `shared_prompts`, it predicts those of several
responses. A response's last token predicts nothing: `shared_prompts` leaves it out, padded rows keep it.

Shapes: B sequence, T token, N target (response tokens, row after row), R row, U prompt (each once), P place (position
of a row for attention, which pads rows in blocks of similar length), C copy of a prompt's token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hacpo_core.columns import TokenRows

BLOCK_SHARE = 0.75
"""a block's shortest row is at least this share of its longest one; at most a quarter of its places are padding"""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Places of rows, for attention, in a sequence in which they share their prompts.

    Places are ordered by block, and within a block by row. `blocks` has the number of rows of each block, and of places
    of each of its rows. `token_P` is the index of the token at each place, the prompt first; after a row's end, it is
    arbitrary. `home_T` is the place of each token, for a prompt's token that in the first row with this prompt.
    `copy_C` are the places of prompts in further rows, `original_C` their tokens.
    """

    blocks: tuple[tuple[int, int], ...]
    token_P: Tensor
    home_T: Tensor
    copy_C: Tensor
    original_C: Tensor

    def to(self, device: torch.device) -> RowPlaces:
        """The same on another device."""
        indices = (self.token_P, self.home_T, self.copy_C, self.original_C)
        return RowPlaces(self.blocks, *(index.to(device) for index in indices))


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
    rows: TokenRows, *, layout: str, max_tokens: int, max_places: float = 4.0, block_unit: int = 1
) -> Iterator[ForwardPass]:
    """All rows, each in exactly one pass. The result depends on the arguments only.

    Args:
        rows: each with at least one prompt token and one response token.
        layout: "padded" or "shared_prompts".
        max_tokens: budget of one pass, with the padding of padded rows; a longer row gets a pass of its own.
        max_places: of shared prompts, per token of the budget.
        block_unit: blocks of shared prompts are padded to a multiple of it.
    """
    for group in row_groups(rows, layout=layout, max_tokens=max_tokens, max_places=max_places):
        part = rows.take(group)
        yield _padded_pass(part, group) if layout == "padded" else _shared_pass(part, group, block_unit)


def row_groups(rows: TokenRows, *, layout: str, max_tokens: int, max_places: float = 4.0) -> list[list[int]]:
    """Positions of the rows of each of `forward_passes`."""
    lengths_B = rows.lengths_B
    if layout == "padded":
        return micro_batches(lengths_B.tolist(), max_tokens=max_tokens)
    # Keep the rows of a prompt together; prompts with the longest row first, ties in the rows' order.
    longest_U, first_U = np.zeros(len(rows.prompts), np.int64), np.full(len(rows.prompts), len(rows))
    np.maximum.at(longest_U, rows.prompt_B, lengths_B)
    np.minimum.at(first_U, rows.prompt_B, np.arange(len(rows)))
    order = np.lexsort((-lengths_B, first_U[rows.prompt_B], -longest_U[rows.prompt_B]))
    return _packed_groups(rows, order.tolist(), max_tokens, max_places * max_tokens)


def micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Row positions, longest first, grouped so that rows x longest stays within the budget; a longer row is alone.

    Args:
        lengths: of the rows.
        max_tokens: the budget.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _packed_groups(rows: TokenRows, order: Sequence[int], max_tokens: int, max_places: float) -> list[list[int]]:
    """Row positions in this order, grouped so that tokens, a prompt counted once, and places stay within the budget."""
    groups: list[list[int]] = []
    max_row_tokens = BLOCK_SHARE * max_places
    prompts: set[int] = set()
    num_tokens = num_row_tokens = 0
    for row in order:
        u, length = int(rows.prompt_B[row]), int(rows.lengths_B[row]) - 1
        num_added = length - len(rows.prompts[u]) if u in prompts else length
        fits = num_tokens + num_added <= max_tokens and num_row_tokens + length <= max_row_tokens
        if not groups or not fits:
            groups.append([])
            prompts, num_tokens, num_row_tokens, num_added = set(), 0, 0, length
        groups[-1].append(row)
        prompts.add(u)
        num_tokens, num_row_tokens = num_tokens + num_added, num_row_tokens + length
    return groups


def _blocks(lengths: Sequence[int]) -> list[list[int]]:
    """Row positions, longest first, in blocks of rows of similar length."""
    blocks: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if blocks and lengths[row] >= BLOCK_SHARE * lengths[blocks[-1][0]]:
            blocks[-1].append(row)
        else:
            blocks.append([row])
    return blocks


def _padded_pass(rows: TokenRows, positions: Sequence[int]) -> ForwardPass:
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


def _shared_pass(rows: TokenRows, positions: Sequence[int], block_unit: int) -> ForwardPass:
    lengths = (rows.lengths_B - 1).tolist()
    blocks = [(block, -(-lengths[block[0]] // block_unit) * block_unit) for block in _blocks(lengths)]
    place_R, num_places = np.empty(len(rows), np.int64), 0
    for block, longest in blocks:
        place_R[block] = num_places + longest * np.arange(len(block))
        num_places += longest * len(block)
    inputs, places, homes, columns, copies, originals = (list[NDArray[Any]]() for _ in range(6))
    token_P = np.zeros(num_places, np.int64)
    starts: dict[int, int] = {}
    num_tokens = 0
    for r, (u, response) in enumerate(zip(rows.prompt_B.tolist(), rows.responses, strict=True)):
        prompt = rows.prompts[u]
        length, row_length, here = len(prompt), lengths[r], int(place_R[r])
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
        token_P[here : here + length] = np.arange(first, first + length)
        token_P[here + length : here + row_length] = np.arange(begin, num_tokens)
        columns += [np.array([first + length - 1]), np.arange(begin, num_tokens)]
    return ForwardPass(
        tuple(positions),
        _ids(inputs)[None],
        torch.zeros(len(rows.responses.value_N), dtype=torch.long),
        _ids(columns),
        _ids([rows.responses.value_N]),
        _ids(places)[None],
        RowPlaces(
            tuple((len(block), longest) for block, longest in blocks),
            torch.from_numpy(token_P),
            _ids(homes),
            _ids(copies),
            _ids(originals),
        ),
    )


def _ids(parts: Sequence[NDArray[Any]]) -> Tensor:
    """int64, one part after another; rows of two dimensions stay rows."""
    return torch.from_numpy(np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64))
