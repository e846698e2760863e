"""Intervals over seeds and the paired bootstrap.

Shapes: A agent, S seed, P problem, R resample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from hacpo_core.evaluation.metrics import LEVEL, Floats

NUM_PAIRED_RESAMPLES = 4000
_RESAMPLES_AT_ONCE = 250
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
    """A paired difference with its 95 % percentile bootstrap interval and two-sided p-value.

    `standard_error` is the standard deviation of the resamples, `seed_std` that of the difference over seeds (nan with
    one seed). `num_dropped` counts problems left out because one of their responses could not be scored.
    """

    value: float
    low: float
    high: float
    p_value: float
    num_seeds: int
    num_problems: int
    num_dropped: int
    standard_error: float = math.nan
    seed_std: float = math.nan

    def power(self, effect: float) -> float:
        """Power of a test at 5 % for a true difference of this size, if resamples are normally distributed.

        power = Phi(effect / se - z) + Phi(-effect / se - z),   z = 1.96
        """
        if not self.standard_error > 0:
            return math.nan
        distance, normal = effect / self.standard_error, NormalDist()
        z = normal.inv_cdf((1 + LEVEL) / 2)
        return normal.cdf(distance - z) + normal.cdf(-distance - z)


def p_text(p_value: float) -> str:
    """A p-value as "= 0.012" or "< 0.001", which is near the resolution of the resamples."""
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


@cache
def t_quantile(degrees: int) -> float:
    """Quantile of Student's t distribution for a two-sided 95 % interval; degrees of freedom >= 1."""
    from scipy.special import stdtrit  # importing takes 0.3 s, and most commands do not need it

    return float(stdtrit(degrees, (1 + LEVEL) / 2))


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


def of_one_seed(value: float, error: float) -> Difference:
    """The difference of one seed, with the interval that follows from its standard error over problems.

        value ± z error,   z = 1.96

    An unknown error is nan, and the interval then has no width.
    """
    half_width = 0.0 if math.isnan(error) else NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    return Difference(value, value - half_width, value + half_width, math.nan, 1, 0, 0, standard_error=error)


def paired_t(differences: Sequence[float]) -> Difference:
    """Mean difference of paired values, one per seed, with a t interval and a two-sided p-value.

        mean(d) ± t(n - 1) s / sqrt(n),   p = 2 T(n - 1)(-|mean(d)| sqrt(n) / s)

    Equal differences say nothing about their spread: p is then the sign test's, 2 / 2^n.

    Args:
        differences: at least two.
    """
    from scipy.special import stdtr

    summary, num = summarize(differences), len(differences)
    std = float(np.std(differences, ddof=1))
    error = std / math.sqrt(num)
    if error > _NOISE:
        p_value = 2 * float(stdtr(num - 1, -abs(summary.mean) / error))
    else:
        p_value = 1.0 if summary.mean == 0 else 2.0 ** (1 - num)
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    return Difference(summary.mean, low, high, p_value, num, 0, 0, error, std)


def paired_bootstrap(difference_ASP: Mapping[str, Floats], *, seed: int = 0) -> Difference:
    """Mean paired difference over agents, seeds, problems and benchmarks, with interval and p-value.

        d = mean over benchmarks of the mean over A, S, P
        interval = 2.5 % and 97.5 % quantile of d*
        p = min(1, 2 (1 + min(#{ d* <= 0 }, #{ d* >= 0 })) / (1 + R))

    Both come from the same resamples, so p < 0.05 if the interval excludes 0, up to the resolution of R resamples.
    A resample draws seeds with replacement, the same for all benchmarks, and problems of each benchmark with
    replacement, the same for all agents and seeds. Agents are not resampled: the result holds for these agents only.
    With one seed only problems are resampled, with one problem only seeds.

    Args:
        difference_ASP: by benchmark, this method's score minus the other's for the same agent, seed and problem; the
            same agents and seeds in every benchmark; nan if either is unknown.
        seed: of the random generator.

    Raises:
        ValueError: there is no benchmark, or a benchmark has no problem with a score for all agents and seeds.
    """
    mean_SP, num_dropped = {}, 0
    for name, array in difference_ASP.items():
        is_known_P = ~np.isnan(array).any(axis=(0, 1))
        num_dropped += int((~is_known_P).sum())
        mean_SP[name] = array[:, :, is_known_P].mean(axis=0)
    if not mean_SP or any(array.shape[1] == 0 for array in mean_SP.values()):
        raise ValueError(
            f"got benchmarks {list(difference_ASP)}, expected each to have a problem scored for all agents and seeds"
        )
    num_seeds = len(next(iter(mean_SP.values())))
    difference_S = np.mean([array.mean(axis=1) for array in mean_SP.values()], axis=0)
    value = float(np.mean([array.mean() for array in mean_SP.values()]))
    resample_R = _resamples(list(mean_SP.values()), np.random.default_rng(seed))
    low, high = np.quantile(resample_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    num_beyond = min(int((resample_R <= _NOISE).sum()), int((resample_R >= -_NOISE).sum()))
    return Difference(
        value=value,
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * (1 + num_beyond) / (1 + NUM_PAIRED_RESAMPLES)),
        num_seeds=num_seeds,
        num_problems=sum(array.shape[1] for array in mean_SP.values()),
        num_dropped=num_dropped,
        standard_error=float(resample_R.std()),
        seed_std=float(difference_S.std(ddof=1)) if num_seeds > 1 else math.nan,
    )


def _resamples(means_SP: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """Mean over benchmarks, seeds and problems of each resample."""
    chunks = []
    for first in range(0, NUM_PAIRED_RESAMPLES, _RESAMPLES_AT_ONCE):
        num = min(_RESAMPLES_AT_ONCE, NUM_PAIRED_RESAMPLES - first)
        share_RS = _shares(rng, num, len(means_SP[0]))
        means = [((share_RS @ array) * _shares(rng, num, array.shape[1])).sum(axis=1) for array in means_SP]
        chunks.append(np.mean(means, axis=0))
    return np.concatenate(chunks)


def _shares(rng: np.random.Generator, num_R: int, num: int) -> Floats:
    """Bootstrap weights: the share of `num` draws with replacement that falls on each of `num` items, per resample."""
    draws = rng.integers(0, num, size=(num_R, num)) + num * np.arange(num_R)[:, None]
    return np.bincount(draws.ravel(), minlength=num_R * num).reshape(num_R, num) / num
