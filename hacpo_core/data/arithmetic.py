"""The embedded arithmetic task: sums and differences of three digits, worked out in lines, with a boxed answer.

There are 1,728 problems, `a±b±c` and `a±(b±c)` with operands from 1 to 6. Demonstrations contain deliberate
misconceptions, which give the warmed-up model an uncertainty that reinforcement learning can then remove.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hacpo_core.data.word_problems import Split, embedded_problem, part_of
from hacpo_core.records import Problem
from hacpo_core.seeds import derive_seed

MAX_OPERAND = 6


@dataclass(frozen=True, slots=True)
class Expression:
    """a first_sign b second_sign c, optionally with parentheses around the last two operands; signs are +1 or -1."""

    operands: tuple[int, int, int]
    signs: tuple[int, int]
    has_parentheses: bool

    def __str__(self) -> str:
        a, b, c = self.operands
        first, second = ("+" if sign > 0 else "-" for sign in self.signs)
        return f"{a}{first}({b}{second}{c})" if self.has_parentheses else f"{a}{first}{b}{second}{c}"

    def work(self, *, keeps_signs: bool = True) -> tuple[str, str, int]:
        """The two worked lines and the result. Without `keeps_signs`, every result loses its minus sign."""
        a, b, c = self.operands
        first, second = self.signs
        if self.has_parentheses:
            inner = Operation(b, second, c, keeps_signs)
            outer = Operation(a, first, inner.result, keeps_signs)
        else:
            inner = Operation(a, first, b, keeps_signs)
            outer = Operation(inner.result, second, c, keeps_signs)
        return str(inner), str(outer), outer.result


@dataclass(frozen=True, slots=True)
class Operation:
    """One worked line."""

    left: int
    sign: int
    right: int
    keeps_sign: bool

    @property
    def result(self) -> int:
        """Result of the line, without its sign unless `keeps_sign`."""
        exact = self.left + self.sign * self.right
        return exact if self.keeps_sign else abs(exact)

    def __str__(self) -> str:
        return f"{self.left}{'+' if self.sign > 0 else '-'}{self.right}={self.result}"


def all_expressions() -> list[Expression]:
    """Every expression of the task, in a fixed order."""
    digits = range(1, MAX_OPERAND + 1)
    return [
        Expression((a, b, c), (first, second), has_parentheses)
        for a, b, c in itertools.product(digits, repeat=3)
        for first, second in itertools.product((1, -1), repeat=2)
        for has_parentheses in (False, True)
    ]


@cache
def _shuffled() -> tuple[Expression, ...]:
    return tuple(sorted(all_expressions(), key=lambda expression: derive_seed("arithmetic", str(expression))))


def split_expressions(split: Split) -> Sequence[Expression]:
    """Expressions of one split, in a fixed shuffled order: 256 for "test", 256 for "dev", 1,216 for "train"."""
    return part_of(_shuffled(), split)


def problems(split: Split) -> list[Problem]:
    """The split as problems, without any prompt template."""
    return [
        embedded_problem("arithmetic", str(expression), expression.work()[2], split)
        for expression in split_expressions(split)
    ]


def demonstrate(expression: Expression, misconceptions: Sequence[float], rng: np.random.Generator) -> str:
    """A worked answer that contains each misconception with the given probability.

    Args:
        expression: what to work out.
        misconceptions: probabilities of ignoring parentheses, dropping the minus sign of results, and forgetting the
            last operand.
        rng: random generator; always advanced by three draws.

    Returns:
        two worked lines (one when the last operand is forgotten) and the boxed answer.
    """
    ignores_parentheses, drops_minus, forgets_last = (rng.random(3) < np.asarray(misconceptions)).tolist()
    if ignores_parentheses and expression.has_parentheses:
        expression = Expression(expression.operands, expression.signs, has_parentheses=False)
    first, second, result = expression.work(keeps_signs=not drops_minus)
    lines = [first, second]
    if forgets_last:
        lines, result = [first], int(first.split("=")[1])
    return "\n".join([*lines, f"\\boxed{{{result}}}"])


def with_spaces(text: str, spaces: Sequence[float], rng: np.random.Generator) -> str:
    """A worked answer in which each equals sign and each end of a line gets a space before or behind it by chance.

    Args:
        text: without spaces.
        spaces: probabilities of a space before and of one behind.
        rng: random generator; advanced by two draws for each of these signs.
    """

    def spaced(sign: re.Match[str]) -> str:
        before, behind = (" " if drawn else "" for drawn in rng.random(2) < np.asarray(spaces))
        return f"{before}{sign[0]}{behind}"

    return re.sub(r"[=\n]", spaced, text)
