"""Random inputs on which the peers are asked for advantages and losses.

Six decimals, drawn by numpy, whose generator gives the same numbers everywhere; float64 throughout.

Shapes: P problem, A agent, G response, B sequence, T token.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SEED = 20260
DECIMALS = 6


@dataclass(frozen=True, slots=True)
class RewardCase:
    """Rewards of one step; NaN where a response has no verdict."""

    name: str
    reward_PAG: Array

    @property
    def num_tokens_PAG(self) -> Array:
        """Lengths of the responses, from 1 to 7."""
        return (1 + np.arange(self.reward_PAG.size) * 3 % 7).reshape(self.reward_PAG.shape).astype(float)


@dataclass(frozen=True, slots=True)
class LossCase:
    """One mini-batch of own responses, junk where the mask is not set.

    `clip_low` and `clip_high` bound the ratio to [1 - low, 1 + high]; `max_tokens` is the response limit;
    `correction_limit` bounds the weight for what the sampler differs from the learner in.
    """

    name: str
    clip_low: float
    clip_high: float
    max_tokens: int
    mask_BT: NDArray[np.bool_]
    logprob_BT: Array
    old_logprob_BT: Array
    reference_logprob_BT: Array
    advantage_B: Array
    sampler_logprob_BT: Array
    entropy_BT: Array
    correction_limit: float = 1.5


@dataclass(frozen=True, slots=True)
class IterationCase:
    """Responses that train a model of one layer several times in mini-batches, with AdamW.

    Attributes:
        config: of transformers' LlamaConfig.
        weights: by the parameter's name.
        prompt_ids, response_ids: token ids of each row; all prompts are of one length.
    """

    config: dict[str, int | float]
    weights: dict[str, Array]
    prompt_ids: list[list[int]]
    response_ids: list[list[int]]
    advantage_B: Array
    num_minibatches: int = 2
    num_iterations: int = 3
    learning_rate: float = 0.05
    epsilon: float = 1e-3
    """of AdamW; large, so that the rounding of a gradient near 0 decides nothing"""
    clip_low: float = 0.2
    clip_high: float = 0.28


def reward_cases() -> list[RewardCase]:
    """Binary and graded rewards, groups that rank nothing, a group that hardly does, two agents, missing verdicts."""
    generator = np.random.default_rng(SEED)
    binary = generator.integers(0, 2, (5, 1, 8)).astype(float)
    binary[1], binary[2] = 0.0, 1.0
    graded = generator.normal(0.2, 0.5, (4, 1, 6)).round(DECIMALS)
    graded[1] = 0.7
    graded[2] = 0.5 + 1e-3 * np.arange(6)
    two_agents = generator.integers(0, 2, (5, 2, 4)).astype(float)
    two_agents[1, 0], two_agents[1, 1] = 1.0, [0.0, 1.0, 0.0, 0.0]
    two_agents[2] = 1.0
    unscored = generator.normal(0.2, 0.5, (4, 1, 6)).round(DECIMALS)
    unscored[0, 0, 2] = np.nan
    unscored[1, 0, 1:] = np.nan
    unscored[2] = np.nan
    return [
        RewardCase("binary", binary),
        RewardCase("graded", graded),
        RewardCase("two_agents", two_agents),
        RewardCase("unscored", unscored),
    ]


def loss_cases() -> list[LossCase]:
    """Bounds of GRPO and of GSPO, met from both sides with both signs; the first update; a ratio beyond e^10."""
    return [
        _loss_case("grpo_bounds", num_rows=10, num_tokens=6, clip=(0.2, 0.28), drift=0.2),
        _loss_case("long_rows", num_rows=6, num_tokens=11, clip=(0.1, 0.3), drift=0.15),
        _loss_case("gspo_bounds", num_rows=15, num_tokens=5, clip=(3e-4, 4e-4), drift=3.5e-4),
        _loss_case("first_update", num_rows=4, num_tokens=5, clip=(0.2, 0.28), drift=0.0),
        _loss_case("beyond_clamp", num_rows=4, num_tokens=4, clip=(0.2, 0.28), drift=0.2, outlier=12.0),
    ]


def iteration_case() -> IterationCase:
    """Six rows, each of two mini-batches three times; every second advantage is negative."""
    generator, width, inner, num_words = _generator("iterations"), 8, 16, 11
    square, layer = (width, width), "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (num_words, width),
        **{f"{layer}.self_attn.{name}_proj.weight": square for name in "qkvo"},
        **{f"{layer}.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")},
        f"{layer}.mlp.down_proj.weight": (width, inner),
        f"{layer}.input_layernorm.weight": (width,),
        f"{layer}.post_attention_layernorm.weight": (width,),
        "model.norm.weight": (width,),
        "lm_head.weight": (num_words, width),
    }
    lengths = generator.integers(2, 6, 6, endpoint=True)
    return IterationCase(
        config={
            "vocab_size": num_words,
            "hidden_size": width,
            "intermediate_size": inner,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
        },
        weights={
            name: generator.normal(1.0 if len(shape) == 1 else 0.0, 0.4, shape).round(DECIMALS)
            for name, shape in shapes.items()
        },
        prompt_ids=generator.integers(3, num_words, (6, 3)).tolist(),
        response_ids=[generator.integers(3, num_words, length).tolist() for length in lengths],
        advantage_B=(np.resize([1.0, -1.0], 6) * generator.uniform(0.5, 2.0, 6)).round(DECIMALS),
    )


def _loss_case(
    name: str, *, num_rows: int, num_tokens: int, clip: tuple[float, float], drift: float, outlier: float = 0.0
) -> LossCase:
    """Rows of 1 to `num_tokens` tokens; log-ratio = drift of the row + noise of the token (+ outlier in row 1).

    Rows drift far, a little and not at all, and their advantages alternate in sign: ten rows hold every pair.
    """
    generator = _generator(name)
    shape = num_rows, num_tokens
    length_B = generator.integers(2, num_tokens, num_rows, endpoint=True)
    length_B[0], length_B[1] = num_tokens, 1
    old_BT = -0.5 - generator.exponential(1.0, shape)
    direction_B = np.resize([2.0, -2.0, 0.0, 1.0, -1.0], num_rows) * generator.uniform(0.8, 1.2, num_rows)
    log_ratio_BT = drift * (direction_B[:, None] + 0.5 * generator.normal(size=shape))
    log_ratio_BT[1] += outlier
    advantage_B = np.resize([1.0, -1.0], num_rows) * generator.uniform(0.2, 2.0, num_rows)
    advantage_B[-1] = 0.0
    return LossCase(
        name=name,
        clip_low=clip[0],
        clip_high=clip[1],
        max_tokens=num_tokens + 3,
        mask_BT=np.arange(num_tokens) < length_B[:, None],
        logprob_BT=(old_BT + log_ratio_BT).round(DECIMALS) if drift else old_BT.round(DECIMALS),
        old_logprob_BT=old_BT.round(DECIMALS),
        reference_logprob_BT=(old_BT + 0.4 * generator.normal(size=shape)).round(DECIMALS),
        advantage_B=advantage_B.round(DECIMALS),
        sampler_logprob_BT=(old_BT + 0.3 * _generator(f"{name} sampler").normal(size=shape)).round(DECIMALS),
        entropy_BT=_generator(f"{name} entropy").exponential(0.7, shape).round(DECIMALS),
    )


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])
