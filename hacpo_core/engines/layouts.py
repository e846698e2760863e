"""How rows (prompt p and response r) become the tensors of forward passes.

    padded           p p p r r . .          every row a sequence of its own, padded on the right to the longest one
                     p p p r r r r
    shared_prompts   p p p r r r r r r      one sequence without padding, a prompt once for all its responses: each
                                            attends to the prompt and itself, its positions continue the prompt's

A response's first token is predicted by its prompt's last position, which in `shared_prompts` predicts several targets.
Its last token predicts nothing: `shared_prompts` leaves it out, padded rows keep it.

Shapes: B sequence, T token, N target (response tokens, row after row), R row, L place in a row, C copy of a prompt's
token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hacpo_core.engines.base import ScoreRequest
from hacpo_core.engines.products import IMAGES

LAYOUTS = ("padded", "shared_prompts")


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where rows lie in a sequence in which they share their prompts.

    `token_RL` is the token at each place of each row, the prompt first; behind a row's end it is any token. The places
    of all rows are counted one after another: `home_T` is the place that stands for a token, for a prompt's token that
    in the first of its rows; `copy_C` are the prompts' places in further rows, and `original_C` their tokens.
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
    """Rows as the tensors of one forward pass.

    `rows` are positions in the batch, in the order of their targets. Target n follows the token at
    (`sequence_N`, `column_N`). `position_BT` and `places` are None where every sequence is a row and counts from 0.
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
    requests: Sequence[ScoreRequest], *, layout: str, max_tokens: int, is_filled: bool = False
) -> Iterator[ForwardPass]:
    """All rows, each in exactly one pass; a function of the arguments alone.

    Args:
        requests: the rows, each with a token of the prompt and one of the response at least.
        layout: one of `LAYOUTS`.
        max_tokens: of one pass, as if its rows were padded to the longest one; a longer row stands alone.
        is_filled: tokens that stand for nothing end a sequence of shared_prompts, beyond `max_tokens` too, one in 16
            at most from 512 on: for models whose layers convolve, for which kernels are made for each new length.
    """
    for rows in row_groups(requests, layout=layout, max_tokens=max_tokens):
        yield _padded(requests, rows) if layout == "padded" else _shared(requests, rows, is_filled=is_filled)


def row_groups(requests: Sequence[ScoreRequest], *, layout: str, max_tokens: int) -> list[list[int]]:
    """Positions of the rows of each of `forward_passes`."""
    lengths = [len(request.prompt_ids) + len(request.response_ids) for request in requests]
    if layout == "padded":
        return micro_batches(lengths, max_tokens=max_tokens)
    longest: dict[tuple[int, ...], int] = {}
    for request, length in zip(requests, lengths, strict=True):
        longest[request.prompt_ids] = max(longest.get(request.prompt_ids, 0), length)
    problems = {prompt_ids: number for number, prompt_ids in enumerate(longest)}

    def place(row: int) -> tuple[int, int, int]:
        prompt_ids = requests[row].prompt_ids
        return -longest[prompt_ids], problems[prompt_ids], -lengths[row]

    return micro_batches(lengths, max_tokens=max_tokens, order=sorted(range(len(requests)), key=place))


def micro_batches(lengths: Sequence[int], *, max_tokens: int, order: Sequence[int] | None = None) -> list[list[int]]:
    """Positions grouped so that rows x longest stays within the budget; a longer row stands alone.

    Args:
        lengths: of the rows.
        max_tokens: the budget.
        order: in which rows are taken; None: long ones first.
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


def _padded(requests: Sequence[ScoreRequest], rows: Sequence[int]) -> ForwardPass:
    longest = max(len(requests[row].prompt_ids) + len(requests[row].response_ids) for row in rows)
    input_BT = torch.zeros(len(rows), longest, dtype=torch.long)
    sequences: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for b, row in enumerate(rows):
        request = requests[row]
        ids = request.prompt_ids + request.response_ids
        input_BT[b, : len(ids)] = _ids(ids)
        sequences += [b] * len(request.response_ids)
        columns += range(len(request.prompt_ids) - 1, len(ids) - 1)
        targets += request.response_ids
    return ForwardPass(tuple(rows), input_BT, _ids(sequences), _ids(columns), _ids(targets))


def _shared(requests: Sequence[ScoreRequest], rows: Sequence[int], *, is_filled: bool) -> ForwardPass:
    longest = max(len(requests[row].prompt_ids) + len(requests[row].response_ids) - 1 for row in rows)
    input_T: list[int] = []
    position_T: list[int] = []
    home_T: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    copies: list[int] = []
    originals: list[int] = []
    token_RL = torch.zeros(len(rows), longest, dtype=torch.long)
    starts: dict[tuple[int, ...], int] = {}
    for r, row in enumerate(rows):
        prompt_ids, response_ids = requests[row].prompt_ids, requests[row].response_ids
        length, here = len(prompt_ids), r * longest
        if prompt_ids in starts:
            copies += range(here, here + length)
            originals += range(starts[prompt_ids], starts[prompt_ids] + length)
        else:
            starts[prompt_ids] = len(input_T)
            input_T += prompt_ids
            position_T += range(length)
            home_T += range(here, here + length)
        prompt, response = starts[prompt_ids], len(input_T)
        row_length = length + len(response_ids) - 1
        end = response + row_length - length
        input_T += response_ids[:-1]
        position_T += range(length, row_length)
        home_T += range(here + length, here + row_length)
        token_RL[r, :length] = torch.arange(prompt, prompt + length)
        token_RL[r, length:row_length] = torch.arange(response, end)
        columns += [prompt + length - 1, *range(response, end)]
        targets += response_ids
    filler = [0] * (_filled_length(len(input_T)) - len(input_T)) if is_filled else []
    return ForwardPass(
        tuple(rows),
        _ids(input_T + filler)[None],
        torch.zeros(len(targets), dtype=torch.long),
        _ids(columns),
        _ids(targets),
        _ids(position_T + filler)[None],
        RowPlaces(token_RL, _ids(home_T), _ids(copies), _ids(originals)),
    )


def _filled_length(num_tokens: int) -> int:
    """The next of 16 lengths for each power of two, all of them `IMAGES` times an odd number: even ones are slower."""
    step = max(2 * IMAGES, 1 << max(0, num_tokens.bit_length() - 5))
    return -(-(num_tokens + IMAGES) // step) * step - IMAGES


def _ids(values: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))  # five times as fast as torch.tensor for thousands
