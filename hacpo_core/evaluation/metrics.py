"""Metrics of an evaluation as pure functions of its rewards. Unscored responses are nan and do not count as wrong.

Shapes: P problem, K sample, R bootstrap resample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hacpo_core.seeds import generator

NUM_RESAMPLES = 2000
LEVEL = 0.95
_RESAMPLES_AT_ONCE = 64
NUM_DRAWS = 1000
DRAW_SEED = 42
"""seed of the draws of `bootstrap_best_at_k`, as in verl"""

_HALF_WIDTH = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""half the width of an interval, in standard errors"""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MetricEstimate:
    """A mean over problems with its bootstrap interval.

    All three values are nan if no problem has a value. `num_problems` is the number of problems with a value.
    """

    metric: str
    value: float
    low: float
    high: float
    num_problems: int

    @property
    def standard_error(self) -> float:
        """Of the mean over problems, from the width of the interval."""
        return (self.high - self.low) / (2 * _HALF_WIDTH)


def average_at_k(reward_PK: Floats) -> Floats:
    """Share of correct responses among a problem's scored responses.

    Args:
        reward_PK: reward, > 0 is correct; nan is unscored.

    Returns:
        value_P in [0, 1]; nan if no response is scored.
    """
    num_scored_P = _num_scored(reward_PK)
    with np.errstate(invalid="ignore"):
        return np.asarray(_num_right(reward_PK) / num_scored_P, dtype=np.float64)


def best_at_k(reward_PK: Floats) -> Floats:
    """Whether at least one of a problem's responses is correct.

    Args:
        reward_PK: reward, > 0 is correct; nan is unscored.

    Returns:
        value_P, 1 or 0; nan if a response is unscored.
    """
    return _of_complete(reward_PK, (_num_right(reward_PK) > 0).astype(np.float64))


@cache
def bootstrap_draws(num_samples: int) -> NDArray[np.int64]:
    """Responses drawn with replacement by `bootstrap_best_at_k`: indices draw_RK, R = NUM_DRAWS. Do not modify.

    Source: verl, which draws the same from numpy's global generator.
    """
    draw_RK = np.random.RandomState(DRAW_SEED).choice(num_samples, size=(NUM_DRAWS, num_samples), replace=True)
    return np.asarray(draw_RK, dtype=np.int64)


def bootstrap_best_at_k(reward_PK: Floats) -> Floats:
    """Probability that K draws with replacement include a correct response, estimated with fixed draws.

    If c of K responses are correct, it is about 1 - (1 - c / K)^K; `best_at_k` is 1 for any c > 0.

    Args:
        reward_PK: reward, > 0 is correct; nan is unscored.

    Returns:
        value_P in [0, 1]; nan if a response is unscored.
    Source: verl's best@N: 1,000 draws of N from N, with seed 42 for each problem.
    """
    draw_RK = bootstrap_draws(reward_PK.shape[1])
    share_P = np.asarray([is_right_K[draw_RK].any(axis=1).mean() for is_right_K in reward_PK > 0], dtype=np.float64)
    return _of_complete(reward_PK, share_P)


METRICS: dict[str, Callable[[Floats], Floats]] = {
    "avg": average_at_k,
    "best": best_at_k,
    "bootstrap_best": bootstrap_best_at_k,
}
"""by the value of a benchmark's `metric`"""


def pass_at(reward_PK: Floats, *, k: int) -> Floats:
    """Unbiased estimate of the probability that at least one of k responses is correct.

        1 - C(n - c, k) / C(n, k),   n >= k scored responses, c of them correct

    Args:
        reward_PK: reward, > 0 is correct; nan is unscored.
        k: number of responses, >= 1.

    Returns:
        value_P in [0, 1]; nan if fewer than k responses are scored.
    Source: Chen et al. 2021, Eq. 1.
    """
    values = [
        1.0 - math.comb(n - c, k) / math.comb(n, k) if n >= k else math.nan
        for n, c in zip(_num_scored(reward_PK).tolist(), _num_right(reward_PK).tolist(), strict=True)
    ]
    return np.asarray(values, dtype=np.float64)


def mean_with_interval(metric: str, value_P: Floats, *, seed: int) -> MetricEstimate:
    """Mean over problems and its 95 % percentile bootstrap interval, with problems drawn with replacement.

    Args:
        metric: name of the estimate.
        value_P: one value per problem; nan is left out.
        seed: of the resampling.
    """
    known_P = value_P[~np.isnan(value_P)]
    if not len(known_P):
        return MetricEstimate(metric, math.nan, math.nan, math.nan, 0)
    rng = generator(seed, "bootstrap")
    mean_R = np.concatenate(
        [
            known_P[rng.integers(0, len(known_P), size=(_RESAMPLES_AT_ONCE, len(known_P)))].mean(axis=1)
            for _ in range(math.ceil(NUM_RESAMPLES / _RESAMPLES_AT_ONCE))
        ]
    )[:NUM_RESAMPLES]
    low, high = np.quantile(mean_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return MetricEstimate(metric, float(known_P.mean()), float(low), float(high), len(known_P))


def estimates(reward_PK: Floats, *, seed: int) -> list[MetricEstimate]:
    """avg@K; for K > 1 also best@K, bootstrap_best@K, and pass@k for the powers of two below K.

    Args:
        reward_PK: reward, > 0 is correct; nan is unscored.
        seed: of the resampling.
    """
    num_samples = reward_PK.shape[1]
    kinds = list(METRICS) if num_samples > 1 else ["avg"]
    values_of = {f"{kind}@{num_samples}": METRICS[kind](reward_PK) for kind in kinds}
    k = 2
    while k < num_samples:
        values_of[f"pass@{k}"] = pass_at(reward_PK, k=k)
        k *= 2
    return [mean_with_interval(metric, value_P, seed=seed) for metric, value_P in values_of.items()]


def _of_complete(reward_PK: Floats, value_P: Floats) -> Floats:
    """The values of problems without an unscored response; nan for the others.

    A correct response would decide the best of K whatever the unscored ones are. But if such problems stayed and those
    without a correct response were left out, the mean over problems would be too high.
    """
    return np.where(np.isnan(reward_PK).any(axis=1), np.nan, value_P)


def _num_scored(reward_PK: Floats) -> NDArray[np.int64]:
    return np.asarray((~np.isnan(reward_PK)).sum(axis=1), dtype=np.int64)


def _num_right(reward_PK: Floats) -> NDArray[np.int64]:
    return np.asarray((reward_PK > 0).sum(axis=1), dtype=np.int64)
