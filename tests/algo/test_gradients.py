"""The objective of every method against a second implementation in plain Python, and against its finite differences.

`by_hand` takes the current log-probabilities twice: once for the ratios, once for what `sg` holds fast. With both equal
it is the objective; moving the first alone by +-1e-5 gives the gradient that autograd must return.

Shapes: B sequence, T token.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hacpo_core.methods.objective import Objective
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from tests.algo.micro_batch import MicroBatch

OWN = {"sequence_low": 0.1, "sequence_high": 0.2}
WIDE = CrossClip(**OWN)  # type: ignore[arg-type]
TOKEN = TokenClip(token_low=0.1, token_high=0.2)
METHODS: dict[str, Objective] = {
    "gspo": SequenceClip(**OWN),  # type: ignore[arg-type]
    "gspo_kl": SequenceClip(**OWN, kl_coef=0.3),  # type: ignore[arg-type]
    "grpo_token_mean": TOKEN,
    "grpo_seq_mean": replace(TOKEN, token_aggregation="seq_mean_token_mean"),
    "grpo_sum_norm": replace(TOKEN, token_aggregation="seq_mean_token_sum_norm"),
    "grpo_kl": replace(TOKEN, kl_coef=0.3),
    "naive": SequenceClip(**OWN),  # type: ignore[arg-type]
    "hacpo": WIDE,
    "hacpo_own": replace(WIDE, cross_bounds="own", cross_is_pessimistic=True, cross_exponent=0.0),
    "hacpo_alpha0": replace(WIDE, cross_exponent=0.0),
    "hacpo_alpha3": replace(WIDE, cross_exponent=3.0),
    "hacpo_no_clip": replace(WIDE, cross_bounds="none"),
    "hacpo_no_stepwise": replace(WIDE, cross_step=0.0),
    "hacpo_official": replace(WIDE, aggregation="mean_of_rows", cross_exponent=3.0, kl_coef=0.3),
}
SHARING = [name for name in METHODS if name.startswith(("hacpo", "naive"))]
UPDATE, MAX_TOKENS, STEP = 2, 9, 1e-5
LENGTHS = (3, 1, 5, 2, 4, 5, 1, 2, 3, 4, 5, 2)
# Ratios on every side of every bound (own 0.9 and 1.2, cross 0.85 and 1), and beyond the clamp at exp(-10).
RATIOS = (1.0, 0.78, 0.78, 1.3, 1.3, 0.95, 0.97, 0.7, 1.1, 1.1, 0.88, math.exp(-11))


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mini_batch(name: str) -> tuple[MicroBatch, Tensor]:
    """Twelve rows of three sources (of one source where the method shares nothing)."""
    random = torch.Generator().manual_seed(7)
    num_rows, longest = len(LENGTHS), max(LENGTHS)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=random, dtype=torch.float64)

    logprob_BT = uniform(-3.0, -0.2, num_rows, longest)
    mask_BT = torch.arange(longest)[None, :] < torch.tensor(LENGTHS)[:, None]
    source_B = torch.arange(num_rows) % 3 if name in SHARING else torch.zeros(num_rows, dtype=torch.long)
    mean_B = (logprob_BT * mask_BT).sum(dim=1) / mask_BT.sum(dim=1)
    sign_B = tensor([1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0])
    rows = MicroBatch(
        mask_BT=mask_BT,
        is_own_B=source_B == 0,
        advantage_B=sign_B * uniform(0.5, 2.0, num_rows),
        weight_B=torch.where(source_B == 0, 1.0, uniform(0.3, 3.0, num_rows)),
        old_mean_logprob_B=mean_B - tensor(RATIOS).log(),
        row_weight_B=METHODS[name].row_weights(source_B, torch.tensor(LENGTHS), max_tokens=MAX_TOKENS),
        old_logprob_BT=logprob_BT + uniform(-0.4, 0.4, num_rows, longest),
        reference_logprob_BT=logprob_BT + uniform(-0.5, 0.5, num_rows, longest),
    )
    return rows, logprob_BT


def by_hand(
    method: Objective, rows: MicroBatch, current: list[list[float]], held: list[list[float]]
) -> tuple[float, float]:
    """J_homo and J_hete with plain numbers and loops."""
    own = cross = 0.0
    for b, length in enumerate(LENGTHS):
        tokens = range(length)
        advantage, weight = rows.advantage_B[b].item(), rows.row_weight_B[b].item()

        def ratio_of(logprobs: list[float], b: int = b, length: int = length) -> float:
            log_ratio = sum(logprobs[:length]) / length - rows.old_mean_logprob_B[b].item()
            return math.exp(min(max(log_ratio, -10.0), 10.0))

        s, low, high = ratio_of(current[b]), 0.9, 1.2
        if bool(rows.is_own_B[b]):
            k3 = 0.0
            if method.kl_coef > 0:
                assert rows.reference_logprob_BT is not None
                differences = [rows.reference_logprob_BT[b, t].item() - current[b][t] for t in tokens]
                k3 = sum(min(math.exp(d) - d - 1, 10.0) for d in differences)
            if isinstance(method, TokenClip):
                assert rows.old_logprob_BT is not None
                ratios = [math.exp(current[b][t] - rows.old_logprob_BT[b, t].item()) for t in tokens]
                value = sum(min(r * advantage, min(max(r, low), high) * advantage) for r in ratios)
            else:
                value = min(s * advantage, min(max(s, low), high) * advantage)
                k3 /= length
            own += weight * (value - method.kl_coef * k3)
            continue
        discount = rows.weight_B[b].item()
        if not isinstance(method, CrossClip):
            cross += weight * discount * min(s * advantage, min(max(s, low), high) * advantage)
            continue
        floor, ceiling = min(1.0, method.cross_floor + UPDATE * method.cross_step), 1.0
        if method.cross_bounds == "own":
            floor, ceiling = low, high
        if method.cross_bounds == "none":
            floor, ceiling = 0.0, math.inf
        value = min(max(s, floor), ceiling) * advantage
        if method.cross_is_pessimistic:
            value = min(s * advantage, value)
        base = min(max(ratio_of(held[b]), floor), ceiling)
        cross += weight * value * base**method.cross_exponent * discount
    return own, cross


@pytest.mark.parametrize("name", METHODS)
def test_value_is_that_of_the_equations(name: str) -> None:
    method = METHODS[name]
    rows, logprob_BT = mini_batch(name)
    found = rows.value(method, logprob_BT, update=UPDATE)
    own, cross = by_hand(method, rows, logprob_BT.tolist(), logprob_BT.tolist())
    assert (found.own_objective.item(), found.cross_objective.item()) == pytest.approx((own, cross), rel=1e-12)
    assert (cross != 0.0) is (name in SHARING)


@pytest.mark.parametrize("name", METHODS)
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    method = METHODS[name]
    rows, logprob_BT = mini_batch(name)
    leaf_BT = logprob_BT.clone().requires_grad_()
    found = rows.value(method, leaf_BT, update=UPDATE)
    (gradient_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, leaf_BT)
    held = logprob_BT.tolist()
    expected_BT = torch.zeros_like(logprob_BT)
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            values = []
            for step in (STEP, -STEP):
                moved = [*held]
                moved[b] = [value + step * (u == t) for u, value in enumerate(held[b])]
                values.append(sum(by_hand(method, rows, moved, held)))
            expected_BT[b, t] = (values[0] - values[1]) / (2 * STEP)
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-7, atol=1e-9)
    assert gradient_BT.count_nonzero() >= 10


@pytest.mark.parametrize("name", ["hacpo", "naive", "grpo_token_mean", "gspo_kl"])
def test_parts_of_a_mini_batch_add_up_to_the_whole(name: str) -> None:
    method = METHODS[name]
    rows, logprob_BT = mini_batch(name)
    leaf_BT = logprob_BT.clone().requires_grad_()
    whole = rows.value(method, leaf_BT, update=UPDATE)
    (whole_BT,) = torch.autograd.grad(whole.own_objective + whole.cross_objective, leaf_BT)
    total, total_BT = torch.zeros((), dtype=torch.float64), torch.zeros_like(logprob_BT)
    for picked in (torch.tensor([0, 7, 11]), torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 8, 9, 10])):
        found = rows.part(picked).value(method, leaf_BT[picked], update=UPDATE)
        (part_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, leaf_BT)
        total, total_BT = total + (found.own_objective + found.cross_objective).detach(), total_BT + part_BT
    torch.testing.assert_close(total, (whole.own_objective + whole.cross_objective).detach(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(total_BT, whole_BT, rtol=1e-12, atol=1e-15)
