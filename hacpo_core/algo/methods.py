"""A method as a declaration, and the two functions that read it: joint advantages and the objective.

GRPO, GSPO, GSPO x 2, Naive, HACPO and every ablation are values of `Method`; nothing here asks for a method's name.

Shapes: P problem, A agent, G response, L learner, B sequence (row of a micro-batch), T token.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from hacpo_core.algo.advantages import (
    Baseline,
    BaselineFunction,
    CrossBaseline,
    capability_baseline,
    carried_advantages,
    guard_binary,
    own_baseline,
    pooled_baseline,
)
from hacpo_core.algo.capability import CapabilityMetric, CapabilityRatios
from hacpo_core.algo.clipping import UNBOUNDED, Bounds, clipped_surrogate, cross_bounds, is_stopped, own_bounds
from hacpo_core.algo.objectives import CrossPower, SourceAggregation, TokenAggregation, cross_surrogate, kl_to_reference
from hacpo_core.algo.ratios import masked_mean, sequence_ratio, token_ratio

BASELINES: dict[str, BaselineFunction] = {
    "own": own_baseline,
    "pooled": pooled_baseline,
    "capability": capability_baseline,
}


class BaselineError(ValueError):
    """Somebody's baseline function cannot be found, or does not return a baseline."""


@dataclass(frozen=True, slots=True)
class Method:
    """Everything that tells one algorithm from another.

    Attributes:
        name: for people; never read by the algorithm.
        ratio: importance ratio per "token" (GRPO) or per "sequence" (GSPO, HACPO).
        shares_rollouts: whether learners train on other agents' responses.
        baseline: "own", "pooled", "capability", or "package.module:function" with the same signature.
        cross_baseline: whose baseline a cross-agent response is compared with (Eq. 10 or Eq. 50).
        cross_weight: "capability" multiplies cross-agent advantages by w[j, k] (Eq. 10), "one" does not.
        cross_exponent: alpha of Eq. 12, >= 0.
        cross_power: what alpha is the power of: the "ratio" itself, or the "clipped" one.
        cross_bounds: "stepwise" (Eq. 14), "own" (the bounds of own responses), or "none".
        cross_is_pessimistic: take the minimum of clipped and unclipped for cross-agent responses too.
        cross_floor: 1 - delta of Eq. 13, in [0, 1].
        cross_step: delta_step of Eq. 14, >= 0.
        own_low, own_high: own responses' ratio is kept in [1 - low, 1 + high].
        aggregation: over sources; token_aggregation: over tokens.
        binary_guard: replace capability baselines above 1 by the agent's own mean, where no reward is above 1.
        capability_metric, capability_window: Eq. 9, K >= 1.
        kl_coef: weight of the KL to the reference on own rows, >= 0.
        rollout_factor: responses per problem as a multiple of `rollout.num_samples`.
    """

    name: str
    ratio: Literal["token", "sequence"] = "sequence"
    shares_rollouts: bool = True
    baseline: str = "capability"
    cross_baseline: CrossBaseline = "source"
    cross_weight: Literal["capability", "one"] = "capability"
    cross_exponent: float = 1.0
    cross_power: CrossPower = "ratio"
    cross_bounds: Literal["stepwise", "own", "none"] = "stepwise"
    cross_is_pessimistic: bool = False
    cross_floor: float = 0.8
    cross_step: float = 0.025
    own_low: float = 3e-4
    own_high: float = 4e-4
    aggregation: SourceAggregation = "sum_of_means"
    token_aggregation: TokenAggregation = "token_mean"
    binary_guard: bool = True
    capability_metric: CapabilityMetric = "reward_mean"
    capability_window: int = 5
    kl_coef: float = 0.0
    rollout_factor: int = 1


@dataclass(frozen=True, slots=True)
class JointAdvantages:
    """`advantage_LPAG[k, p, j, i]`: what response i of agent j carries for learner k; `weight_LA[k, j]`: its weight.

    The weight is w[j, k] of Eq. 10 for j != k and 1 for own responses. Unscored responses carry 0.
    """

    advantage_LPAG: Tensor
    weight_LA: Tensor
    baseline: Baseline


@dataclass(frozen=True, slots=True)
class Rows:
    """One micro-batch, with everything that the objective needs besides the current log-probabilities.

    `row_weight_B` comes from the whole mini-batch (`objectives.row_weights`). `old_logprob_BT` and
    `reference_logprob_BT` are needed on own rows only, and only by token ratios and the KL term.
    """

    mask_BT: Tensor
    is_own_B: Tensor
    advantage_B: Tensor
    cross_weight_B: Tensor
    old_mean_logprob_B: Tensor
    row_weight_B: Tensor
    old_logprob_BT: Tensor | None = None
    reference_logprob_BT: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a tensor of another shape, which would be broadcast."""
        for name in (field.name for field in fields(self)):
            value, dims = getattr(self, name), 2 if name.endswith("_BT") else 1
            if value is not None and value.shape != self.mask_BT.shape[:dims]:
                raise ValueError(f"{name}: got {tuple(value.shape)}, expected {tuple(self.mask_BT.shape[:dims])}")


@dataclass(frozen=True, slots=True)
class Objective:
    """Value of the objective on a micro-batch, and per row what is logged.

    `own` and `cross` are J_homo and J_hete (scalars with gradient, the KL penalty inside `own`); `ratio_B` the
    sequence ratio, `stopped_share_B` the share of the row whose gradient a bound took away, `kl_B` the mean KL in nats.
    """

    own: Tensor
    cross: Tensor
    ratio_B: Tensor
    stopped_share_B: Tensor
    kl_B: Tensor


def find_baseline(name: str) -> BaselineFunction:
    """The baseline function of that name.

    Raises:
        BaselineError: neither a built-in name nor an importable "package.module:function".
    """
    if name in BASELINES:
        return BASELINES[name]
    module, _, function = name.partition(":")
    try:
        found: BaselineFunction = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(BASELINES)
        message = f"unknown baseline: got {name!r}, expected {known} or an importable module:function ({error})"
        raise BaselineError(message) from error
    if not callable(found):
        raise BaselineError(f"{name} is no function; expected an importable module:function")
    return found


def joint_advantages(
    method: Method, reward_PAG: Tensor, is_scored_PAG: Tensor, ratios: CapabilityRatios
) -> JointAdvantages:
    """Advantages of all responses for all learners.

    Args:
        method: the declaration.
        reward_PAG: reward, finite where scored; float64.
        is_scored_PAG: True where the response has a verdict.
        ratios: capability ratios of the step.

    Returns:
        advantages and weights; finite for any finite rewards.

    Raises:
        BaselineError: the baseline is somebody's function, and what it returned is none.
    Source: HACPO Eq. 5-7, 10, 50.
    """
    clean_PAG = torch.where(is_scored_PAG, reward_PAG, 0.0)
    scale_P11 = _power_of_two_scale(clean_PAG)
    scaled_PAG = clean_PAG / scale_P11
    baseline = find_baseline(method.baseline)(scaled_PAG, is_scored_PAG, ratios.ratio_AA)
    _check_returned(method.baseline, baseline, is_scored_PAG.shape[:2])
    is_binary = bool((clean_PAG <= 1.0).all() & (scale_P11 == 1.0).all())
    if method.binary_guard and method.baseline == "capability" and is_binary:
        baseline = guard_binary(baseline, clean_PAG, is_scored_PAG)
    advantage_LPAG = carried_advantages(scaled_PAG, is_scored_PAG, baseline, cross_baseline=method.cross_baseline)
    weight_LA = ratios.ratio_AA.T.clone() if method.cross_weight == "capability" else torch.ones_like(ratios.ratio_AA)
    scale_P1, largest = scale_P11[:, :, 0], torch.finfo(reward_PAG.dtype).max
    in_units_of_reward = replace(
        baseline,
        mean_PA=(baseline.mean_PA * scale_P1).clamp(-largest, largest),
        std_PA=(baseline.std_PA * scale_P1).clamp(max=largest),
    )
    return JointAdvantages(advantage_LPAG, weight_LA.fill_diagonal_(1.0), in_units_of_reward)


def _check_returned(name: str, found: object, shape: torch.Size) -> None:
    """Somebody's function may return anything, and what has one row would be broadcast."""
    if not isinstance(found, Baseline):
        raise BaselineError(f"baseline {name}: returned {type(found).__name__}, expected a Baseline")
    for part in ("mean_PA", "std_PA", "is_uniform_PA"):
        value = getattr(found, part)
        if not isinstance(value, Tensor) or value.shape != shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise BaselineError(
                f"baseline {name}: {part} is {got}, expected a tensor of problems x agents {tuple(shape)}"
            )
        if not value.isfinite().all():
            raise BaselineError(f"baseline {name}: {part} has values that are no finite numbers")


def _power_of_two_scale(reward_PAG: Tensor) -> Tensor:
    """scale_P11: 1 for ordinary rewards; where squares would overflow, an exact power of two to divide by."""
    largest_P11 = reward_PAG.abs().amax(dim=(1, 2), keepdim=True)
    exponent_P11 = torch.frexp(largest_P11).exponent.clamp(max=1023)
    return torch.where(largest_P11 < 1e100, 1.0, torch.ldexp(torch.ones_like(largest_P11), exponent_P11))


def method_bounds(method: Method, *, update: int) -> tuple[Bounds, Bounds]:
    """Bounds of own and of cross-agent ratios after `update` updates of the step."""
    own = own_bounds(low=method.own_low, high=method.own_high)
    if method.cross_bounds == "stepwise":
        return own, cross_bounds(floor=method.cross_floor, step=method.cross_step, update=update)
    return own, own if method.cross_bounds == "own" else UNBOUNDED


def objective(method: Method, rows: Rows, logprob_BT: Tensor, *, update: int) -> Objective:
    """The objective of a micro-batch, to be maximised.

        J = sum over rows of row_weight * surrogate(row)  -  kl_coef * KL on own rows

    Args:
        method: the declaration.
        rows: the micro-batch.
        logprob_BT: log-probabilities (nats) under the learner's current policy, with gradient.
        update: m, number of updates that the learner has made in this step.
    Source: HACPO Eq. 47-53; GRPO; GSPO.
    """
    own_limit, cross_limit = method_bounds(method, update=update)
    ratio_B = sequence_ratio(logprob_BT, rows.mask_BT, rows.old_mean_logprob_B)
    if method.ratio == "token":
        assert rows.old_logprob_BT is not None and bool(rows.is_own_B.all()), "token ratios exist on own rows only"
        token_ratio_BT = token_ratio(logprob_BT, rows.old_logprob_BT)
        advantage_B1 = rows.advantage_B[:, None]
        token_BT = clipped_surrogate(token_ratio_BT, advantage_B1, own_limit, is_pessimistic=True)
        own_B = (token_BT * rows.mask_BT).sum(dim=1)
        stopped_BT = is_stopped(token_ratio_BT, advantage_B1, own_limit, is_pessimistic=True)
        own_stopped_B = masked_mean(stopped_BT.to(logprob_BT.dtype), rows.mask_BT)
    else:
        own_B = clipped_surrogate(ratio_B, rows.advantage_B, own_limit, is_pessimistic=True)
        own_stopped_B = is_stopped(ratio_B, rows.advantage_B, own_limit, is_pessimistic=True).to(logprob_BT.dtype)
    is_pessimistic = method.cross_is_pessimistic
    cross_B = cross_surrogate(
        ratio_B,
        rows.advantage_B,
        rows.cross_weight_B,
        exponent=method.cross_exponent,
        bounds=cross_limit,
        power=method.cross_power,
        is_pessimistic=is_pessimistic,
    )
    cross_stopped_B = is_stopped(ratio_B, rows.advantage_B, cross_limit, is_pessimistic=is_pessimistic)
    kl_B, kl_term_B = torch.zeros_like(ratio_B), torch.zeros_like(ratio_B)
    if method.kl_coef > 0:
        assert rows.reference_logprob_BT is not None, "a KL term needs the reference's log-probabilities"
        kl_BT = kl_to_reference(logprob_BT, rows.reference_logprob_BT) * rows.mask_BT
        kl_B = masked_mean(kl_BT, rows.mask_BT)
        kl_term_B = method.kl_coef * (kl_BT.sum(dim=1) if method.ratio == "token" else kl_B)
    weight_B = rows.row_weight_B.to(logprob_BT.dtype)
    return Objective(
        own=(torch.where(rows.is_own_B, own_B - kl_term_B, 0.0) * weight_B).sum(),
        cross=(torch.where(rows.is_own_B, 0.0, cross_B) * weight_B).sum(),
        ratio_B=ratio_B.detach(),
        stopped_share_B=torch.where(rows.is_own_B, own_stopped_B, cross_stopped_B.to(logprob_BT.dtype)),
        kl_B=kl_B.detach(),
    )
