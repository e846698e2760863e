"""Training problems: one set or several, what is held out of them, and how they are dealt out step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from hacpo_core.config import DataConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.problem_sets import asked, read_problems
from hacpo_core.errors import DataError
from hacpo_core.records import Problem
from hacpo_core.seeds import derive_seed, generator


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Problems of all training sets, the templates filled in.

    Attributes:
        sets: what is trained on, by the set's name.
        development: what `data.development_share` holds out, of all sets.
    """

    sets: Mapping[str, list[Problem]]
    development: list[Problem]

    @property
    def problems(self) -> list[Problem]:
        """All of them, held out or not."""
        return [*(problem for problems in self.sets.values() for problem in problems), *self.development]


def load_training(config: DataConfig) -> TrainingData:
    """All training problems. Where there are several sets, an id begins with the set's name.

    Raises:
        DataError: a file, a column or an answer is missing, an id occurs twice, nothing is left of a set.
    """
    sets: dict[str, list[Problem]] = {}
    development: list[Problem] = []
    for name in config.train:
        declared = config.sets[name]
        if declared.kind == "arithmetic":
            unasked = arithmetic.problems("train")
        else:
            unasked = read_problems(f"data.sets.{name}", declared, config.directory, drops_unanswerable=True)
        problems = asked(unasked, declared)
        if len(config.train) > 1:
            problems = [replace(problem, id=f"{name}/{problem.id}") for problem in problems]
        num_held = round(config.development_share * len(problems))
        order = generator(config.development_seed, "development", name).permutation(len(problems))
        held = set(order[:num_held].tolist())
        sets[name] = [problem for place, problem in enumerate(problems) if place not in held]
        development += [problem for place, problem in enumerate(problems) if place in held]
        if not sets[name]:
            raise DataError(f"data.sets.{name}: no problem is left to train on; lower data.development_share")
    if config.development_share > 0 and not development:
        raise DataError(
            f"data.development_share: got {config.development_share:g}, which is no problem of these sets; raise it"
        )
    return TrainingData(sets, development)


def step_problems(
    sets: Mapping[str, Sequence[Problem]], counts: Mapping[str, int], *, step: int, seed: int
) -> list[Problem]:
    """The problems of one step, so many of each set; a set alone is dealt by the experiment's own seed.

    Args:
        sets: problems by the set's name.
        counts: problems per step of each set, see `hacpo_core.config.counts.train_set_counts`.
        step: 1-based.
        seed: of the experiment.

    Raises:
        ValueError: a set is smaller than its part of one step.
    """
    return [
        problem
        for name, size in counts.items()
        for problem in step_batch(
            sets[name], step=step, size=size, seed=seed if len(counts) == 1 else derive_seed(seed, "train set", name)
        )
    ]


def step_batch(problems: Sequence[Problem], *, step: int, size: int, seed: int) -> list[Problem]:
    """The problems of one step: a function of (seed, step), so that no data position has to be saved.

    Epochs are reshuffled; what is left at an epoch's end is completed from the next epoch, with problems that are not
    in the batch yet: the same problem twice would be the same responses twice, their seeds being equal.

    Args:
        problems: the training set.
        step: 1-based.
        size: problems per step; no more than the set holds.
        seed: of the experiment.

    Raises:
        ValueError: the set is smaller than one batch.
    """
    if size > len(problems):
        raise ValueError(f"train.problems: got {size}, but the training set holds {len(problems)}; lower it")
    total = len(problems)
    positions = range((step - 1) * size, step * size)
    for epoch in range(positions[-1] // total):  # each is made from the one before
        _epoch_order(total, epoch, size=size, seed=seed)
    return [problems[_epoch_order(total, p // total, size=size, seed=seed)[p % total]] for p in positions]


@cache
def _epoch_order(total: int, epoch: int, *, size: int, seed: int) -> list[int]:
    """Order of all problems in an epoch: shuffled, but what the batch that it completes holds already comes later."""
    order: list[int] = generator(seed, "epoch", epoch).permutation(total).tolist()
    num_held = epoch * total % size
    if num_held == 0:
        return order
    held = set(_epoch_order(total, epoch - 1, size=size, seed=seed)[total - num_held :])
    next_ones = [problem for problem in order if problem not in held][: size - num_held]
    chosen = set(next_ones)
    return [*next_ones, *(problem for problem in order if problem not in chosen)]
