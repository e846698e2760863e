"""HACPO's objective for distant models: cross-agent ratios relative to what is usual for the pair.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import either, setting, unless
from hacpo_core.methods.base import State, why_no_partners
from hacpo_core.methods.objective import LossRows
from hacpo_core.methods.objectives.cross_clip import CrossClip

if TYPE_CHECKING:
    from torch import Tensor

    from hacpo_core.algo.clipping import Bounds


@dataclass(frozen=True)
class SelfNormalised(CrossClip):
    """Own rows as in GSPO; other agents' rows clip(s~, f, 2 - f) sg(s~)^alpha w A, s~ = s / exp(c), f = floor + m step.

    c[k, j] is the mean log-ratio of j's rows under k before the step's first update, averaged over the last `window`
    steps, the current one included. Bounds then stop a row because it is unlikely for this pair of agents, not because
    the agents differ. With c = 0 and `cross_ceiling: one` it is `cross_clip`.

    Source: ours; docs/decisions.md#self-normalised-cross-ratios.
    """

    cross_ceiling: str = setting(
        "mirrored",
        "upper bound of cross-agent ratios with stepwise bounds",
        choices={"mirrored": "2 - f: as far above 1 as the floor f is below it", "one": "1, as in HACPO"},
        inert=either(why_no_partners, unless("method.objective.cross_bounds", "stepwise")),
    )
    window: int = setting(
        5,
        "steps over which c is averaged, the current one included; fewer at the start",
        unit="steps",
        at_least=1,
        at_most=1e6,
        inert=why_no_partners,
    )

    needs_shared_rollouts = True

    def log_centers(
        self, first_log_ratios: Callable[[], Mapping[str, NDArray[np.float64]]], state: State
    ) -> tuple[Mapping[str, float], State]:
        """The c of each agent with rows. The state holds the last means of every agent that ever had rows."""
        first = first_log_ratios()
        next_state = {agent: list(means) for agent, means in state.items()}
        for agent, log_ratio_B in first.items():
            next_state[agent] = [*next_state.get(agent, ()), float(log_ratio_B.mean())][-self.window :]
        return {agent: algo.ratios.log_center(next_state[agent]) for agent in first}, next_state

    def cross_limit(self, update: int) -> Bounds:
        """Bounds of s~ after `update` updates of the step."""
        if self.cross_bounds == "stepwise" and self.cross_ceiling == "mirrored":
            return algo.clipping.mirrored_cross_bounds(floor=self.cross_floor, step=self.cross_step, update=update)
        return super().cross_limit(update)

    def ratio(self, rows: LossRows, logprob_BT: Tensor) -> Tensor:
        """s~ of other agents' rows, s of own rows."""
        if rows.log_center_B is None:
            return super().ratio(rows, logprob_BT)
        return algo.ratios.self_normalised_ratio(
            logprob_BT,
            rows.mask_BT,
            rows.old_mean_logprob_B,
            rows.log_center_B,
            is_floored=self.log_ratio_clamp == "both",
        )
