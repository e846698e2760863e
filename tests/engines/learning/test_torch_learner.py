"""The learner: scores, schedule, precision, restarts, and what stops it.

Shapes: V vocabulary, T token.
"""

import math
from dataclasses import replace

import pytest
import torch

from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.learning.optimizer import learning_rate
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.errors import EngineError
from tests.engines.small import FAMILIES, logprobs_of, minibatch, scored, small_model
from tests.engines.training import (
    GSPO,
    HACPO,
    LINEAR,
    learner_of,
    optimizer_tensors,
    requests,
    rows_of,
    run,
    seen,
    weights,
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_each_sequence_alone(family: str, temperature: float) -> None:
    model = small_model(family, num_layers=2)
    learner = TorchLearner(
        model,
        optimizer=OptimizerConfig(),
        engine=EngineConfig(micro_batch_tokens=20),
        temperature=temperature,
        total_updates=1,
    )
    for request, found in zip(requests(), scored(learner, requests()), strict=True):
        logprob_TV = logprobs_of(model, request, temperature=temperature)
        expected = logprob_TV[range(len(request.response_ids)), list(request.response_ids)]
        torch.testing.assert_close(torch.tensor(found).double(), expected, rtol=0.0, atol=1e-5)


def test_learning_rate_rises_and_stays() -> None:
    config = OptimizerConfig(learning_rate=2.0, warmup_updates=4)
    rates = [learning_rate(config, update=update, total_updates=12) for update in range(7)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0]


def test_learning_rate_falls_along_a_cosine_after_its_rise() -> None:
    config = OptimizerConfig(learning_rate=2.0, warmup_updates=4, schedule="cosine")
    rates = [learning_rate(config, update=update, total_updates=12) for update in (0, 3, 4, 6, 8, 10, 12, 50)]
    # 1 + cos of 0, pi / 4, pi / 2, 3 pi / 4, pi
    expected = [0.5, 2.0, 2.0, 1.7071067811865475, 1.0, 0.2928932188134524, 0.0, 0.0]
    assert rates == pytest.approx(expected, abs=1e-15)


def test_updates_of_all_steps_count_for_the_schedule() -> None:
    learner = learner_of(small_model(), learning_rate=1e-3, warmup_updates=4)
    rows = rows_of()
    first, second = run(learner, [rows, rows]), run(learner, [rows, rows, rows])
    assert [m.learning_rate for m in first.minibatches] == [0.25e-3, 0.5e-3]
    assert [m.learning_rate for m in second.minibatches] == [0.75e-3, 1e-3, 1e-3]
    assert [m.update for m in second.minibatches] == [0, 1, 2]
    assert learner.num_updates == 5


@pytest.mark.parametrize("num_minibatches", [1, 2, 6])
def test_schedule_ends_with_the_last_step_whatever_the_number_of_updates(num_minibatches: int) -> None:
    # 20 planned updates in 10 steps; dynamic sampling adds rounds to a step, or leaves out rows
    learner = learner_of(small_model(), learning_rate=1.0, schedule="cosine")
    rows = rows_of()
    learner.num_updates = 9 * num_minibatches
    found = run(learner, [rows] * num_minibatches, planned=range(18, 20))
    rates = [m.learning_rate for m in found.minibatches]
    places = [18 + 2 * m / num_minibatches for m in range(num_minibatches)]
    assert rates == pytest.approx([(1 + math.cos(math.pi * place / 20)) / 2 for place in places], abs=1e-15)
    assert rates[-1] > 0


@pytest.mark.parametrize("scores_own", [False, True])
def test_mini_batches_that_come_again_keep_the_old_policy_of_before(scores_own: bool) -> None:
    rows = rows_of()
    halves = [minibatch(part, HACPO) for part in ([*rows[:3], rows[5]], [*rows[3:5], *rows[6:]])]
    learner = learner_of(small_model(), learning_rate=1e-2, schedule="cosine")
    found = seen(learner.update(halves * 2, HACPO, scores_own=scores_own, planned_updates=range(4)))
    assert [m.update for m in found.minibatches] == [0, 1, 2, 3]
    # 1 + cos of 0, pi / 20, 2 pi / 20, 3 pi / 20
    rates = [0.01 * (1 + math.cos(math.pi * m / 20)) / 2 for m in range(4)]
    assert [m.learning_rate for m in found.minibatches] == pytest.approx(rates, abs=1e-15)
    floors = {row.update: row.floor for row in found.rows if not row.is_own}
    assert [floors[m] for m in range(4)] == pytest.approx([0.5, 0.525, 0.55, 0.575]), "m counts on"
    ratios = {row.update: row.ratio for row in found.rows if row.is_own and row.index == 0}
    assert ratios[0] != ratios[2]
    assert not scores_own or ratios[0] == pytest.approx(1.0, abs=1e-6)


def test_long_gradient_is_scaled_down_to_the_limit() -> None:
    options = {**LINEAR, "epsilon": 1e4, "learning_rate": 1e4}
    moves, norms = [], []
    for limit in (1e9, 0.05):
        model = small_model()
        before = weights(model)
        norms.append(
            run(learner_of(model, **{**options, "max_grad_norm": limit}), [rows_of()]).minibatches[0].grad_norm
        )
        moves.append(weights(model) - before)
    assert norms[0] == norms[1] > 0.1
    assert moves[1].norm().item() == pytest.approx(0.05, rel=1e-3)
    torch.testing.assert_close(moves[1], moves[0] * 0.05 / norms[0], rtol=1e-2, atol=1e-6)


def test_bf16_model_accumulates_updates_that_plain_bf16_loses() -> None:
    rate, num_updates = 1e-6, 5
    model = small_model().bfloat16()
    before = weights(model)
    learner = learner_of(model, learning_rate=rate, weight_decay=0.0, engine=EngineConfig(dtype="bfloat16"))
    run(learner, [rows_of()] * num_updates)
    masters = {name.removeprefix("master."): t for name, t in optimizer_tensors(learner).items() if "master." in name}
    moved = torch.cat([masters[name].flatten() for name, _ in model.named_parameters()]) - before
    is_moving = moved != 0.0
    assert is_moving.float().mean() > 0.5
    assert moved.abs().max().item() == pytest.approx(rate * num_updates, rel=0.05)  # AdamW moves by the rate each time
    assert all(torch.equal(p.detach(), masters[name].bfloat16()) for name, p in model.named_parameters())

    plain = small_model().bfloat16()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(num_updates):
        for parameter in plain.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    is_wide = before.abs() > 1e-3  # there, one bf16 step is at least 3.8e-6
    assert is_wide.float().mean() > 0.9
    assert torch.equal(weights(plain)[is_wide], before[is_wide])


def test_bf16_weights_move_once_enough_small_updates_have_come_together() -> None:
    model = small_model().bfloat16()
    before = weights(model)
    row = rows_of()[0]
    learner = learner_of(model, learning_rate=1e-5, weight_decay=0.0, engine=EngineConfig(dtype="bfloat16"))
    run(learner, [[row]] * 40, replace(GSPO, sequence_low=1.0, sequence_high=1e3))
    assert (weights(model) != before).float().mean() > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_bit_for_bit_after_a_restart(dtype: torch.dtype) -> None:
    options = {"learning_rate": 1e-3, "warmup_updates": 3, "schedule": "cosine"}
    engine = EngineConfig(dtype=str(dtype).removeprefix("torch."))
    first = learner_of(small_model().to(dtype), engine=engine, **options)
    run(first, [rows_of(), rows_of(seed=1)])
    state = {name: value.clone() for name, value in first.model.state_dict().items()}
    saved = {name: value.clone() for name, value in optimizer_tensors(first).items()}
    uninterrupted = run(first, [rows_of(seed=2), rows_of(seed=3)])

    model = small_model(seed=5).to(dtype)
    model.load_state_dict(state)
    second = learner_of(model, engine=engine, **options)
    second.load_optimizer_tensors(saved, num_updates=2)
    assert run(second, [rows_of(seed=2), rows_of(seed=3)]) == uninterrupted
    assert second.fingerprint().digest == first.fingerprint().digest
    assert torch.equal(weights(model), weights(first.model))

    forgetful = learner_of(small_model(seed=5).to(dtype), engine=engine, **options)
    forgetful.model.load_state_dict(state)
    run(forgetful, [rows_of(seed=2), rows_of(seed=3)])
    assert forgetful.fingerprint().digest != first.fingerprint().digest


def test_optimizer_state_of_another_model_is_refused() -> None:
    learner = learner_of(small_model())
    with pytest.raises(EngineError, match=r"no\.such\.weight.*use its own checkpoint"):
        learner.load_optimizer_tensors({"exp_avg.no.such.weight": torch.zeros(1)}, num_updates=1)


@pytest.mark.parametrize("advantage", [math.inf, math.nan])
def test_gradient_that_is_not_finite_stops_the_run_and_leaves_the_weights(advantage: float) -> None:
    learner = learner_of(small_model())
    before = learner.fingerprint().digest
    rows = [replace(rows_of()[0], advantage=advantage)]
    with pytest.raises(EngineError, match=r"gradient norm is (nan|inf) at update 0.*learning_rate"):
        run(learner, [rows])
    assert learner.fingerprint().digest == before
    assert learner.num_updates == 0


def test_gradient_checkpointing_gives_the_same_update() -> None:
    results = []
    for checkpoints in (True, 1, False):
        model = small_model(num_layers=2)
        engine = EngineConfig(gradient_checkpointing=checkpoints)
        run(learner_of(model, engine=engine, **LINEAR), [rows_of(model=small_model(num_layers=2))])
        results.append(weights(model))
    assert torch.equal(results[0], results[2]), "it is no part of the id"
    assert torch.equal(results[1], results[2])
    assert (results[0] - weights(small_model(num_layers=2))).abs().max() > 1e-2


def test_digest_of_a_bf16_model_is_that_of_its_masters() -> None:
    learner = learner_of(small_model().bfloat16(), learning_rate=1e-7, weight_decay=0.0)
    before, narrow = learner.fingerprint().digest, weights(learner.model)
    run(learner, [rows_of()])
    is_wide = narrow.abs() > 1e-4  # there, one bf16 step is at least 3.8e-7
    assert torch.equal(weights(learner.model)[is_wide], narrow[is_wide])
    assert learner.fingerprint().digest != before
