"""Theorem 4.1 by simulation: against its capability baseline, an agent's own rewards average to zero.

Binary rewards; agent k solves problem q with probability ability[k] * ease[q], so that the capability ratio is the
same in every problem, as the theorem supposes. Deviations within a problem share one baseline: the unit of the standard
error is the problem.

Shapes: P problem, A agent, G response.
"""

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.advantages import Baseline, capability_baseline, guard_binary, pooled_baseline
from hacpo_core.algo.capability import capability_ratios

ABILITIES = ((0.3, 0.9), (0.2, 0.5, 0.8), (0.9, 0.1, 0.6, 0.4, 0.7))
NUM_PROBLEMS, NUM_SAMPLES = 20_000, 4


def simulated(ability: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """reward_PAG, is_scored_PAG (a tenth of the verdicts is missing, at random), and the true ratio_AA."""
    random = torch.Generator().manual_seed(0)
    shape = (NUM_PROBLEMS, len(ability), NUM_SAMPLES)
    ease_P = torch.rand(NUM_PROBLEMS, generator=random, dtype=torch.float64)
    chance_PA = ease_P[:, None] * torch.tensor(ability, dtype=torch.float64)
    reward_PAG = (torch.rand(shape, generator=random, dtype=torch.float64) < chance_PA[:, :, None]).double()
    is_scored_PAG = torch.rand(shape, generator=random) < 0.9
    is_scored_PAG[:, :, 0] = True
    return reward_PAG, is_scored_PAG, capability_ratios(torch.tensor(ability, dtype=torch.float64))


def deviations_in_standard_errors(baseline: Baseline, reward_PAG: Tensor, is_scored_PAG: Tensor) -> list[float]:
    """Mean of own R - mu of each agent, in standard errors of that mean."""
    deviation_PAG = torch.where(is_scored_PAG, reward_PAG - baseline.mean_PA[:, :, None], 0.0)
    deviation_PA = deviation_PAG.sum(dim=2) / is_scored_PAG.sum(dim=2)
    return (deviation_PA.mean(dim=0) / deviation_PA.std(dim=0) * NUM_PROBLEMS**0.5).tolist()


@pytest.mark.parametrize("ability", ABILITIES)
def test_own_rewards_average_to_the_capability_baseline_and_to_no_other(ability: tuple[float, ...]) -> None:
    reward_PAG, is_scored_PAG, ratio_AA = simulated(ability)
    strongest, weakest = ability.index(max(ability)), ability.index(min(ability))

    def deviations(baseline: Baseline) -> list[float]:
        return deviations_in_standard_errors(baseline, reward_PAG, is_scored_PAG)

    capability = capability_baseline(reward_PAG, is_scored_PAG, ratio_AA)
    assert max(map(abs, deviations(capability))) < 4.0
    pooled = deviations(pooled_baseline(reward_PAG, is_scored_PAG))
    assert pooled[strongest] > 40.0 and pooled[weakest] < -40.0
    transposed = deviations(capability_baseline(reward_PAG, is_scored_PAG, ratio_AA.T))
    assert max(map(abs, transposed)) > 40.0
    # What the official guard costs: it replaces the largest baselines alone, so the theorem no longer holds exactly.
    assert deviations(guard_binary(capability, reward_PAG, is_scored_PAG))[strongest] > 10.0
