"""How rows (prompt p and response r) become the tensors of forward passes.

    padded           p p p r r . .          every row a sequence of its own, padded on the right to the longest one
                     p p p r r r r
    packed           p p p r r p p p r r r  rows one after another: positions begin anew, a row attends to itself
    shared_prompts   p p p r r r r r        a prompt once for all its responses: each attends to the prompt and itself,
                                            its positions continue the prompt's

A response's first token is predicted by its prompt's last position, which in `shared_prompts` predicts several targets.

Shapes: B sequence, T token, N target (response tokens, row after row).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hacpo_core.engines.base import ScoreRequest

LAYOUTS = ("padded", "packed", "shared_prompts")


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Rows as the tensors of one forward pass.

    `rows` are positions in the batch, in the order of their targets. Target n follows the token at
    (`sequence_N`, `column_N`). `position_BT` is None where every sequence counts from 0; there attention is plainly
    causal. `block_BT` and `parent_BT` are None where restarting positions alone keep rows apart; otherwise a token
    attends to earlier tokens of its own block and of its parent block.
    """

    rows: tuple[int, ...]
    input_BT: Tensor
    sequence_N: Tensor
    column_N: Tensor
    target_N: Tensor
    position_BT: Tensor | None = None
    block_BT: Tensor | None = None
    parent_BT: Tensor | None = None

    def to(self, device: torch.device) -> ForwardPass:
        """The same on another device."""
        return replace(
            self,
            input_BT=self.input_BT.to(device),
            sequence_N=self.sequence_N.to(device),
            column_N=self.column_N.to(device),
            target_N=self.target_N.to(device),
            position_BT=None if self.position_BT is None else self.position_BT.to(device),
            block_BT=None if self.block_BT is None else self.block_BT.to(device),
            parent_BT=None if self.parent_BT is None else self.parent_BT.to(device),
        )

    def mask_B1TT(self) -> Tensor | None:
        """True where a token (first T) may look at another (second T); None where the model's own mask will do."""
        if self.block_BT is None or self.parent_BT is None:
            return None
        key_B1T = self.block_BT[:, None, :]
        is_visible_BTT = (self.block_BT[:, :, None] == key_B1T) | (self.parent_BT[:, :, None] == key_B1T)
        return is_visible_BTT.tril()[:, None]


def forward_passes(
    requests: Sequence[ScoreRequest], *, layout: str, max_tokens: int, pack_tokens: int
) -> Iterator[ForwardPass]:
    """All rows, each in exactly one pass; a function of the rows alone.

    Args:
        requests: the rows.
        layout: one of `LAYOUTS`.
        max_tokens: of one pass, padding included; a longer sequence stands alone.
        pack_tokens: of one packed sequence, unless a single row is longer; padded rows ignore it.
    """
    if layout == "padded":
        lengths = [len(request.prompt_ids) + len(request.response_ids) for request in requests]
        for rows in micro_batches(lengths, max_tokens=max_tokens):
            yield _padded(requests, rows)
        return
    units = _units(requests, shares_prompts=layout == "shared_prompts", pack_tokens=pack_tokens)
    capacity = max([pack_tokens, *(unit.num_tokens for unit in units)])
    packs = [[units[u] for u in pack] for pack in fill([unit.num_tokens for unit in units], capacity=capacity)]
    for group in micro_batches([sum(unit.num_tokens for unit in pack) for pack in packs], max_tokens=max_tokens):
        yield _packed(requests, [packs[position] for position in group], is_masked=layout == "shared_prompts")


def micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Positions grouped by length so that rows x longest stays within the budget; a longer row stands alone."""
    groups: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def fill(lengths: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Positions grouped so that each group's sum stays within the capacity, long ones first into the first that fits.

    Raises:
        ValueError: a length exceeds the capacity.
    """
    if max(lengths, default=0) > capacity:
        raise ValueError(f"a length of {max(lengths)} exceeds the capacity of {capacity}")
    groups: list[list[int]] = []
    room: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        length = lengths[position]
        place = next((g for g, left in enumerate(room) if left >= length), None)
        if place is None:
            groups.append([])
            room.append(capacity)
            place = len(groups) - 1
        groups[place].append(position)
        room[place] -= length
    return groups


@dataclass(frozen=True, slots=True)
class _Unit:
    """Rows that share one encoding of their prompt, and the tokens that they take together."""

    rows: tuple[int, ...]
    num_tokens: int


def _units(requests: Sequence[ScoreRequest], *, shares_prompts: bool, pack_tokens: int) -> list[_Unit]:
    # Nothing is predicted from a response's last token, so it is left out.
    tails = [len(request.response_ids) - 1 for request in requests]
    if not shares_prompts:
        return [_Unit((n,), len(request.prompt_ids) + tails[n]) for n, request in enumerate(requests)]
    bundles: dict[tuple[int, ...], list[int]] = {}
    for n, request in enumerate(requests):
        bundles.setdefault(request.prompt_ids, []).append(n)
    units = []
    for prompt_ids, rows in bundles.items():
        room = max(pack_tokens - len(prompt_ids), *(tails[n] for n in rows), 0)
        for part in fill([tails[n] for n in rows], capacity=room):
            kept = tuple(rows[place] for place in part)
            units.append(_Unit(kept, len(prompt_ids) + sum(tails[n] for n in kept)))
    return units


def _padded(requests: Sequence[ScoreRequest], rows: Sequence[int]) -> ForwardPass:
    longest = max(len(requests[row].prompt_ids) + len(requests[row].response_ids) for row in rows)
    input_BT = torch.zeros(len(rows), longest, dtype=torch.long)
    sequences: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for b, row in enumerate(rows):
        request = requests[row]
        ids = request.prompt_ids + request.response_ids
        input_BT[b, : len(ids)] = torch.tensor(ids)
        sequences += [b] * len(request.response_ids)
        columns += range(len(request.prompt_ids) - 1, len(ids) - 1)
        targets += request.response_ids
    return ForwardPass(tuple(rows), input_BT, torch.tensor(sequences), torch.tensor(columns), torch.tensor(targets))


def _packed(requests: Sequence[ScoreRequest], packs: Sequence[Sequence[_Unit]], *, is_masked: bool) -> ForwardPass:
    shape = len(packs), max(sum(unit.num_tokens for unit in pack) for pack in packs)
    # Padding lies behind everything: nothing attends to it. Its position 0 begins a row anew at every token.
    input_BT, position_BT = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    block_BT, parent_BT = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    rows: list[int] = []
    sequences: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for b, pack in enumerate(packs):
        end = block = 0
        for unit in pack:
            prompt_ids = requests[unit.rows[0]].prompt_ids
            start, length = end, len(prompt_ids)
            block += 1
            parent = block
            end = start + length
            input_BT[b, start:end] = torch.tensor(prompt_ids)
            position_BT[b, start:end] = torch.arange(length)
            block_BT[b, start:end] = parent_BT[b, start:end] = parent
            for row in unit.rows:
                response_ids = requests[row].response_ids
                here, end = end, end + len(response_ids) - 1
                block += 1
                input_BT[b, here:end] = torch.tensor(response_ids[:-1])
                position_BT[b, here:end] = torch.arange(length, length + end - here)
                block_BT[b, here:end], parent_BT[b, here:end] = block, parent
                rows.append(row)
                sequences += [b] * len(response_ids)
                columns += [start + length - 1, *range(here, end)]
                targets += response_ids
    return ForwardPass(
        tuple(rows),
        input_BT,
        torch.tensor(sequences),
        torch.tensor(columns),
        torch.tensor(targets),
        position_BT,
        block_BT if is_masked else None,
        parent_BT if is_masked else None,
    )
