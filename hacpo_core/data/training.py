"""Training problems: training sets, held-out problems, and the problems of each step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from hacpo_core.config import DataConfig
from hacpo_core.data import arithmetic, letters, word_problems
from hacpo_core.data.problem_sets import read_problems, with_prompts
from hacpo_core.data.word_problems import Split
from hacpo_core.errors import DataError
from hacpo_core.records import Problem
from hacpo_core.seeds import derive_seed, generator

EMBEDDED: Mapping[str, Callable[[Split], list[Problem]]] = {
    "arithmetic": arithmetic.problems,
    "word_problems": word_problems.problems,
    **{task: partial(letters.problems, task) for task in letters.LENGTHS},
}
"""problems of each embedded task, by the kind of a problem set; called with the split"""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Problems of all training sets, the templates filled in.

    Attributes:
        sets: problems to train on, by the set's name.
        development: problems held out of all sets by `data.development_share`.
    """

    sets: Mapping[str, list[Problem]]
    development: list[Problem]

    @property
    def problems(self) -> list[Problem]:
        """All problems, held-out ones included."""
        return [*(problem for problems in self.sets.values() for problem in problems), *self.development]


def load_training(config: DataConfig) -> TrainingData:
    """All training problems. With several sets, ids begin with the set's name.

    Raises:
        DataError: a file, a column or an answer is missing, an id occurs twice, or no problem of a set is left.
    """
    sets: dict[str, list[Problem]] = {}
    development: list[Problem] = []
    for name in config.train:
        set_config = config.sets[name]
        if set_config.kind in EMBEDDED:
            problems_without_prompts = EMBEDDED[set_config.kind]("train")
        else:
            problems_without_prompts = read_problems(
                f"data.sets.{name}", set_config, config.directory, drops_unanswerable=True
            )
        problems = with_prompts(problems_without_prompts, set_config)
        if len(config.train) > 1:
            problems = [replace(problem, id=f"{name}/{problem.id}") for problem in problems]
        num_held = round(config.development_share * len(problems))
        order = generator(0, "development", name).permutation(len(problems))
        held_positions = set(order[:num_held].tolist())
        sets[name] = [problem for place, problem in enumerate(problems) if place not in held_positions]
        development += [problem for place, problem in enumerate(problems) if place in held_positions]
        if not sets[name]:
            raise DataError(f"data.sets.{name}: no problems are left to train on; lower data.development_share")
    if config.development_share > 0 and not development:
        raise DataError(
            f"data.development_share: got {config.development_share:g}, which holds out no problem; raise it"
        )
    return TrainingData(sets, development)


def step_problems(
    sets: Mapping[str, Sequence[Problem]], counts: Mapping[str, int], *, step: int, seed: int
) -> list[Problem]:
    """The problems of one step. A single set is shuffled with the experiment's seed, several with derived seeds.

    Args:
        sets: problems by the set's name.
        counts: problems per step of each set, see `hacpo_core.config.counts.train_set_counts`.
        step: 1-based.
        seed: the experiment's.
    """
    return [
        problem
        for name, size in counts.items()
        for problem in step_batch(
            sets[name], step=step, size=size, seed=seed if len(counts) == 1 else derive_seed(seed, "train set", name)
        )
    ]


def step_batch(problems: Sequence[Problem], *, step: int, size: int, seed: int) -> list[Problem]:
    """The problems of one step. They depend on (seed, step) only, so that no data position has to be saved.

    Every epoch is shuffled anew. A batch that begins at the end of an epoch is completed from the next epoch with
    problems that it does not contain yet: a repeated problem would give the same responses twice, with equal seeds.

    Args:
        problems: the training set.
        step: 1-based.
        size: problems per step; at most the size of the set.
        seed: the experiment's.
    """
    total = len(problems)
    positions = range((step - 1) * size, step * size)
    for epoch in range(
        positions[-1] // total
    ):  # fill the cache in order: each epoch's order depends on the previous one
        _epoch_order(total, epoch, size=size, seed=seed)
    return [problems[_epoch_order(total, p // total, size=size, seed=seed)[p % total]] for p in positions]


@cache
def _epoch_order(total: int, epoch: int, *, size: int, seed: int) -> list[int]:
    """Shuffled order of all problems in an epoch.

    The batch that began in the previous epoch is completed with problems that it does not contain yet.
    """
    order: list[int] = generator(seed, "epoch", epoch).permutation(total).tolist()
    num_held = epoch * total % size
    if num_held == 0:
        return order
    held_positions = set(_epoch_order(total, epoch - 1, size=size, seed=seed)[total - num_held :])
    completion = [problem for problem in order if problem not in held_positions][: size - num_held]
    completion_positions = set(completion)
    return [*completion, *(problem for problem in order if problem not in completion_positions)]
