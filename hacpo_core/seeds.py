"""Random numbers that depend only on their purpose, never on earlier draws."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def derive_seed(*parts: int | str) -> int:
    """A 64-bit seed that depends on every part and on their order.

    Args:
        parts: for example (seed, "rollout", step, agent, problem id, sample index).

    Returns:
        an integer in [0, 2**64).
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator seeded by `derive_seed`."""
    return np.random.Generator(np.random.Philox(derive_seed(*parts)))


def uniforms(seeds: list[int], length: int) -> NDArray[np.float64]:
    """One stream of uniform numbers in [0, 1) per seed.

    Returns:
        uniform_BT, float64: row b depends only on seeds[b], so that it is the same in any batch.
    """
    return np.stack([np.random.Generator(np.random.Philox(seed)).random(length) for seed in seeds])
