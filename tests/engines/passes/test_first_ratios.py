"""Log-ratios of others' rows before a step's first update: each row once, per source, the same on every rank."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.passes.first_ratios import log_ratios_by_agent
from hacpo_core.methods.objectives.self_normalised import SelfNormalised
from tests.engines.ranks import on_ranks
from tests.engines.small import Row, cross_row, minibatch, scored, small_model
from tests.engines.training import HACPO, learner_of, requests, rows_of, seen, weights

SN = SelfNormalised(sequence_low=0.2, sequence_high=0.2, cross_floor=0.5, window=2)
FACTORS = {1: -1.0, 2: 0.5}
"""log-ratio around which the rows of each source lie"""
NOISE = (-0.04, -0.02, 0.0, 0.02, 0.04, 0.06, 0.08, -0.14)  # sums to 0
STEPS = {"learning_rate": 1e-2}


def distant_rows(model: PreTrainedModel) -> list[Row]:
    """Four rows of each of two other agents, far from the learner's policy by a factor for each agent."""
    rows = []
    for i, (request, logprobs) in enumerate(zip(requests(), scored(learner_of(model), requests()), strict=True)):
        source = 1 + i // 4
        log_ratio = FACTORS[source] + NOISE[i]
        mean = sum(logprobs) / len(logprobs) - log_ratio
        advantage = (1.0, -0.5, 0.0, 2.0)[i % 4]
        rows.append(
            cross_row(
                request.prompt_ids, request.response_ids, advantage, old_mean_logprob=mean, source=source, index=i
            )
        )
    return rows


EXPECTED = {"1": -1.0 + sum(NOISE[:4]) / 4, "2": 0.5 + sum(NOISE[4:]) / 4}


def update(
    learner: BaseLearner, batches: Sequence[Sequence[Row]], state: dict[str, list[float]] | None = None
) -> UpdateOutcome:
    return learner.update([minibatch(rows, SN) for rows in batches], SN, objective_state=state or {})


def test_each_source_has_its_own_center_and_bounds_see_the_ratio_without_it() -> None:
    learner, rows = learner_of(small_model(), **STEPS), distant_rows(small_model())
    outcome = update(learner, [rows])
    assert outcome.log_centers == pytest.approx(EXPECTED, abs=1e-6)
    assert outcome.objective_state == {name: [pytest.approx(mean)] for name, mean in EXPECTED.items()}
    for row in seen(outcome).rows:
        expected = FACTORS[row.source] + NOISE[row.index] - EXPECTED[str(row.source)]
        assert math.log(row.ratio) == pytest.approx(expected, abs=1e-5)
        assert (row.floor, row.ceiling, row.stopped_share) == (0.5, 1.5, 0.0)
    plain = learner_of(small_model(), **STEPS).update([minibatch(rows, HACPO)], HACPO)
    assert plain.rows.figures["stopped_share"].tolist() == [1.0] * 6, (
        "HACPO learns from none of the six rows with an advantage"
    )
    assert (plain.log_centers, plain.objective_state) == ({}, {})


def test_center_is_from_before_the_first_update_and_of_all_mini_batches() -> None:
    learner, rows = learner_of(small_model(), **STEPS), distant_rows(small_model())
    before = weights(learner.model)
    outcome = update(learner, [rows[::2], rows[1::2]], {"1": [-3.0, -2.0]})
    assert outcome.log_centers == pytest.approx({"1": (EXPECTED["1"] - 2.0) / 2, "2": EXPECTED["2"]}, abs=1e-6)
    assert (weights(learner.model) - before).abs().max() > 1e-3
    second = [row for row in seen(outcome).rows if row.update == 1]
    moved = [
        math.log(row.ratio) + outcome.log_centers[str(row.source)] - FACTORS[row.source] - NOISE[row.index]
        for row in second
    ]
    assert max(map(abs, moved)) > 1e-3, "ratios of the second mini-batch are those after the first update"


def test_row_of_several_mini_batches_counts_once() -> None:
    learner, rows = learner_of(small_model()), distant_rows(small_model())
    batches = [minibatch(part, SN) for part in (rows[:3], rows[1:4], rows[4:])]
    found = log_ratios_by_agent(batches, learner.logprobs)
    assert {name: len(values) for name, values in found.items()} == {"1": 4, "2": 4}
    assert float(found["1"].mean()) == pytest.approx(EXPECTED["1"], abs=1e-6)


def test_center_has_the_same_bits_whatever_else_is_trained() -> None:
    rows, own = distant_rows(small_model()), rows_of(num_cross=0)
    centers = []
    for skips, batches in ((True, [rows]), (False, [rows]), (True, [[*own, *rows]])):
        learner = learner_of(small_model(), engine=EngineConfig(skip_zero_advantage=skips, micro_batch_tokens=12))
        outcome = update(learner, batches)
        assert outcome.minibatches[0].num_skipped == (skips and 2 + (len(own) > 0 and len(batches[0]) > 8) * 2)
        centers.append(dict(outcome.log_centers))
    assert centers[0] == centers[1] == centers[2]


def test_factor_common_to_all_rows_of_a_source_changes_no_weight() -> None:
    rows, trained = distant_rows(small_model()), []
    for shift in (0.0, 1.5):
        learner = learner_of(small_model(), **STEPS)
        update(learner, [[replace(row, old_mean_logprob=row.old_mean_logprob + shift) for row in rows]])
        trained.append(weights(learner.model))
    assert (trained[0] - weights(small_model())).abs().max() > 1e-3
    assert (trained[0] - trained[1]).abs().max() < 1e-5


def test_far_row_moves_the_mean_by_no_more_than_the_clamp() -> None:
    learner, rows = learner_of(small_model()), distant_rows(small_model())[:1]
    far = [minibatch([replace(rows[0], old_mean_logprob=1e6)], SN)]
    assert log_ratios_by_agent(far, learner.logprobs)["1"].tolist() == [-10.0]


def test_step_without_others_rows_has_no_center_and_keeps_the_state() -> None:
    outcome = update(learner_of(small_model()), [rows_of(num_cross=0)], {"1": [-1.0]})
    assert (outcome.log_centers, outcome.objective_state) == ({}, {"1": [-1.0]})


def _on_a_rank(rows: list[Row]) -> tuple[dict[str, float], list[float]]:
    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    learner = DeepspeedLearner(
        small_model(),
        optimizer=OptimizerConfig(**STEPS),
        engine=EngineConfig(learner="deepspeed", micro_batch_tokens=12),
        temperature=1.0,
        total_updates=20,
    )
    outcome = update(learner, [rows[::2], rows[1::2]])
    trained = weights(learner.model)[::7].tolist()
    learner.close()
    return dict(outcome.log_centers), trained


@pytest.mark.slow
@pytest.mark.deepspeed
def test_ranks_have_one_center_of_all_rows() -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    rows = distant_rows(small_model())
    learner = TorchLearner(
        small_model(),
        optimizer=OptimizerConfig(**STEPS),
        engine=EngineConfig(micro_batch_tokens=12),
        temperature=1.0,
        total_updates=20,
    )
    update(learner, [rows[::2], rows[1::2]])
    (one, first), (other, second) = on_ranks(2, _on_a_rank, rows)
    assert one == other == pytest.approx(EXPECTED, abs=1e-6)
    assert first == second == pytest.approx(weights(learner.model)[::7].tolist(), abs=1e-5)
