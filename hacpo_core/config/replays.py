"""How far repeated updates may drift from the recorded ones, and how many may follow a checkpoint."""

from hacpo_core.config.schema import ExperimentConfig
from hacpo_core.errors import ConfigError

NEAR_SHARE = 0.25
"""a replay is near if it differs from the update by at most this share of the update's norm; see docs/decisions.md"""
FIRST_DISTANCE, GROWTH = 0.037, 0.0077
"""distance of the first replayed step after a checkpoint, and what each further one adds; measured on an H200"""
MAX_REPLAYED_STEPS = 12
"""most steps whose distance stays below half of NEAR_SHARE: 0.037 + 11 x 0.0077 = 0.122"""


def expected_distance(num_steps: int) -> float:
    """Distance of the last of this number of replayed steps on a GPU, as a share of the update's norm."""
    return FIRST_DISTANCE + (num_steps - 1) * GROWTH


def check_checkpoints(config: ExperimentConfig) -> None:
    """Raise ConfigError if a resumed run would replay more steps on a GPU than stay safely near."""
    if config.engine.device == "cpu" or config.engine.deterministic or config.checkpoint.accept_divergence:
        return
    every, limit = config.checkpoint.every, MAX_REPLAYED_STEPS
    if min(every, config.train.num_steps) > limit:
        raise ConfigError(
            f"checkpoint.every: got {every}, expected at most {limit} on a GPU, where each replayed step is further "
            f"from the recorded one and a resumed run stops once it is off by {NEAR_SHARE} of the update's norm, "
            f"after some thirty; set it to {limit}, or engine.deterministic=true, or checkpoint.accept_divergence=true"
        )
