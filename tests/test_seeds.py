"""Randomness is a function of its purpose."""

import numpy as np

from hacpo_core.seeds import derive_seed, uniforms


def test_seed_depends_on_every_part_their_order_and_their_type() -> None:
    seeds = {derive_seed(1, "rollout", 2), derive_seed(1, 2, "rollout"), derive_seed("1", "rollout", 2), derive_seed(1)}
    assert len(seeds) == 4
    assert derive_seed(1, "rollout", 2) == derive_seed(1, "rollout", 2)


def test_row_of_uniforms_does_not_depend_on_its_batch_or_on_the_length_drawn() -> None:
    together, alone = uniforms([5, 6, 7], 10), uniforms([6], 4)
    assert np.array_equal(together[1, :4], alone[0])
    assert (together >= 0).all()
    assert (together < 1).all()
