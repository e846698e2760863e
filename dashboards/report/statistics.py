"""Means over seeds, and the difference of two methods over seeds and problems: the one statistic of all places.

Shapes: A agent, S seed, P problem.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hacpo_core.evaluation.metrics import LEVEL, Floats

ONE_SEED = "one seed"
"""in place of a verdict, where the interval is over problems alone"""
_NOISE = 1e-10  # in points: rounding error between two orders of summation


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean over seeds; `half_width` of its 95 % t interval is nan with one seed."""

    mean: float
    half_width: float
    num_seeds: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference with its 95 % interval and two-sided p-value, which is below 0.05 if that excludes 0.

    `num_dropped` counts problems left out because one of their responses could not be scored.
    """

    value: float
    low: float
    high: float
    p_value: float
    num_seeds: int
    num_problems: int
    num_dropped: int


def p_text(p_value: float) -> str:
    """A p-value as "= 0.012" or "< 0.001"."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


def verdict_word(difference: float, corrected_p: float, num_seeds: int) -> str:
    """Whether a difference is a win or a loss (its corrected p-value is below 0.05), or a tie.

    With one seed it is ONE_SEED, because nothing is known about how the difference varies with the seed.
    """
    if num_seeds < 2:
        return ONE_SEED
    if corrected_p >= 0.05:
        return "tie"
    return "win" if difference > 0 else "loss"


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for multiple tests by Holm's step-down procedure, in the given order.

        p'(i) = max over j <= i of min(1, (n - j + 1) p(j)),   p(1) <= ... <= p(n)

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    corrected_p, max_p = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        max_p = max(max_p, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected_p[place] = max_p
    return corrected_p


def t_quantile(degrees: float, p_value: float = 1 - LEVEL) -> float:
    """Distance from zero that a Student's t of these degrees of freedom (> 0) exceeds, on either side, with p_value."""
    from scipy.special import stdtrit  # importing takes 0.3 s, and most commands do not need it

    return float(-stdtrit(degrees, p_value / 2))


def summarize(values: Sequence[float]) -> Summary:
    """Mean and 95 % t interval of independent values, one per seed.

        mean ± t(n - 1) s / sqrt(n)

    Args:
        values: at least one.
    """
    mean, num = float(np.mean(values)), len(values)
    if num < 2:
        return Summary(mean, math.nan, num)
    return Summary(mean, t_quantile(num - 1) * float(np.std(values, ddof=1)) / math.sqrt(num), num)


@dataclass(frozen=True, slots=True)
class _Variances:
    """Variances of a mean difference, and degrees of freedom.

    seeds: s^2 / S of the seeds' means; problems: what problems add to it; alone: s^2 / P of the problems' means.
    """

    seeds: float
    problems: float
    alone: float
    degrees_of_seeds: float
    degrees_of_problems: float

    def half_width(self, p_value: float) -> float:
        """Half the width of the interval of this level; see `crossed_difference`."""
        of_seeds = self.degrees_of_seeds and t_quantile(self.degrees_of_seeds, p_value)
        of_problems = self.degrees_of_problems and t_quantile(self.degrees_of_problems, p_value)
        both = of_seeds**2 * self.seeds + of_problems**2 * self.problems
        return math.sqrt(max(both, of_problems**2 * self.alone))

    def p_value(self, value: float) -> float:
        """The level at which the interval of a difference ends at zero."""
        low, high = 0.0, 1.0
        for _ in range(50):  # the half width falls with the level
            middle = (low + high) / 2
            low, high = (low, middle) if self.half_width(middle) + _NOISE < abs(value) else (middle, high)
        return high


def crossed_difference(difference_ASP: Mapping[str, Floats]) -> Difference:
    """Mean paired difference of two methods; seeds and problems are both random, and crossed.

        d = mean over benchmarks of the mean over A, S, P
        half width^2 = t(S - 1)^2 MSs / SP + t(P - 1)^2 max(MSp - MSr, 0) / SP,  at least  t(P - 1)^2 MSp / SP

    MSs, MSp and MSr are the mean squares of seeds, problems and their interaction in a table of means over agents. So
    MSs / SP estimates what seeds and samples add to the variance of d, and (MSp - MSr) / SP what problems add. Each
    part has a quantile of its own, because a few seeds say little about their spread where problems say much:
    Satterthwaite's common degrees of freedom give 7 to 13 % false verdicts with two seeds. The interval is never
    narrower than one over problems alone, which is all that one seed has. The p-value is the level at which the
    interval ends at zero. With several benchmarks MSs is that of their mean, and the parts of the problems are added.
    Agents are not random: the result holds for these agents only.

    Args:
        difference_ASP: by benchmark, this method's score minus the other's for the same agent, seed and problem; the
            same agents and seeds in every benchmark; nan if either is unknown. In each benchmark, all agents and seeds
            have a score for at least one problem.

    Source: Graybill and Wang (1980), Confidence intervals on nonnegative linear combinations of variances.
    """
    means_SP = [array[:, :, ~np.isnan(array).any(axis=(0, 1))].mean(axis=0) for array in difference_ASP.values()]
    num_S, num_problems = len(means_SP[0]), sum(array.shape[1] for array in means_SP)
    difference_S = np.mean([array.mean(axis=1) for array in means_SP], axis=0)
    variances = _variances(means_SP, difference_S)
    value, width = float(difference_S.mean()), variances.half_width(1 - LEVEL)
    return Difference(
        value=value,
        low=value - width,
        high=value + width,
        p_value=variances.p_value(value),
        num_seeds=num_S,
        num_problems=num_problems,
        num_dropped=sum(array.shape[2] for array in difference_ASP.values()) - num_problems,
    )


def _variances(means_SP: Sequence[Floats], difference_S: Floats) -> _Variances:
    """The parts of the variance of the mean over benchmarks; none of seeds with one, none of problems with one each."""
    num_S, num_B = len(difference_S), len(means_SP)
    alone, added, weights = 0.0, 0.0, 0.0
    for array_SP in means_SP:
        num_P = array_SP.shape[1]
        if num_P < 2:
            continue
        mean_P = array_SP.mean(axis=0)
        of_problems = float(mean_P.var(ddof=1)) / (num_P * num_B**2)
        rest_SP = array_SP - mean_P - array_SP.mean(axis=1, keepdims=True) + mean_P.mean()
        rest = float((rest_SP**2).sum()) / (max(num_S - 1, 1) * (num_P - 1) * num_S * num_P * num_B**2)
        alone, added = alone + of_problems, added + max(of_problems - rest, 0.0)
        weights += of_problems**2 / (num_P - 1)
    return _Variances(
        seeds=float(difference_S.var(ddof=1)) / num_S if num_S > 1 else 0.0,
        problems=added,
        alone=alone,
        degrees_of_seeds=num_S - 1,
        degrees_of_problems=alone**2 / weights if weights else 0.0,
    )
