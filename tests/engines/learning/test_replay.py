"""Exact, near, different: how a repeated update is judged."""

from dataclasses import replace

import pytest

from hacpo_core.config.replays import NEAR_SHARE
from hacpo_core.engines.learning.replay import Setup, UpdateTrace, compare
from hacpo_core.engines.learning.weights import DIGEST_KIND, Fingerprint

CPU = Setup(device="a processor", num_ranks=1, num_threads=1, torch="2", is_exact=True)
GPU = Setup(device="a GPU", num_ranks=1, num_threads=0, torch="2", is_exact=False)


def trace(after: tuple[float, ...], setup: Setup, *, before: tuple[float, ...] = (1.0, 1.0)) -> UpdateTrace:
    return UpdateTrace(
        Fingerprint(f"{DIGEST_KIND}{before}", before), Fingerprint(f"{DIGEST_KIND}{after}", after), setup
    )


def test_equal_digests_are_exact_wherever_they_were_computed() -> None:
    assert compare(trace((4.0, 5.0), CPU), trace((4.0, 5.0), GPU)).kind == "exact"


def test_distance_is_the_difference_of_the_updates_over_the_length_of_the_recorded_one() -> None:
    recorded = trace((4.0, 5.0), GPU)  # an update of (3, 4), length 5
    found = compare(recorded, trace((4.0, 4.5), GPU))
    assert found.kind == "near"
    assert found.distance == pytest.approx(0.1)
    moved = compare(recorded, trace((14.0, 15.0), GPU, before=(11.0, 11.0)))  # the same update from elsewhere
    assert moved.kind == "near"
    assert moved.distance == pytest.approx(0.0)


def test_update_beyond_the_share_is_another_one_on_any_device() -> None:
    recorded = trace((4.0, 5.0), GPU)
    within, beyond = 5 * NEAR_SHARE - 1e-9, 5 * NEAR_SHARE + 1e-9
    assert compare(recorded, trace((4.0 + within, 5.0), GPU)).kind == "near"
    assert compare(recorded, trace((4.0 + beyond, 5.0), GPU)).kind == "different"


def test_only_exact_passes_on_an_exact_device_of_the_same_setup() -> None:
    nearly = (4.0, 5.0 + 1e-12)
    assert compare(trace((4.0, 5.0), CPU), trace(nearly, CPU)).kind == "different"
    deterministic = replace(GPU, is_exact=True)
    assert compare(trace((4.0, 5.0), deterministic), trace(nearly, deterministic)).kind == "different"
    for other in (replace(CPU, num_ranks=2), replace(CPU, device="another"), replace(CPU, layout="padded")):
        assert compare(trace((4.0, 5.0), CPU), trace(nearly, other)).kind == "near"


def test_update_of_no_length_is_repeated_by_none_only() -> None:
    still = trace((1.0, 1.0), GPU)
    assert compare(still, trace((1.0, 1.5), GPU)).kind == "different"
    assert compare(still, replace(trace((1.5, 1.5), GPU, before=(1.5, 1.5)), setup=GPU)).kind == "near"
