"""The loop of a warm-up, alone and against a weak model, on models of 16 dimensions.

Shapes: B example, S step.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hacpo_core.columns import TokenRows
from hacpo_core.config import WarmUpConfig
from hacpo_core.errors import EngineError
from hacpo_core.warm_up.training import WarmUpFigures, draws, shuffled_epochs, train
from tests.engines.small import FAMILIES, Request, logprobs_of, small_model

REQUESTS = [Request((1, 2, 3), (5, 6, 7)), Request((2, 2), (8, 9, 5, 4, 7)), Request((4, 1, 3), (3, 7))]
ROWS = TokenRows.of([each.prompt_ids for each in REQUESTS], [each.response_ids for each in REQUESTS])
CONFIG = WarmUpConfig(kind="weak_driven", weak="w", file="f", num_steps=40, batch_size=4, learning_rate=1e-2)


def trained(
    config: WarmUpConfig = CONFIG, *, family: str = "qwen3", weak_seed: int = 1
) -> tuple[dict[str, torch.Tensor], WarmUpFigures, list[float]]:
    """Weights, figures and losses."""
    strong, weak = small_model(family), small_model(family, seed=weak_seed)
    losses: list[float] = []
    figures = train(strong, ROWS, config, weak=weak, progress=lambda step, steps, loss: losses.append(loss))
    return strong.state_dict(), figures, losses


def fused_loss(strong: PreTrainedModel, weak: PreTrainedModel, mix: float) -> float:
    """Mean loss of all solution tokens, in float64, one example at a time; log-probabilities are logits, too."""
    total, num_tokens = 0.0, 0
    for request in REQUESTS:
        fused_TV = mix * logprobs_of(strong, request) + (1 - mix) * logprobs_of(weak, request)
        target_T = torch.tensor(request.response_ids)
        total += float(torch.nn.functional.cross_entropy(fused_TV, target_T, reduction="sum"))
        num_tokens += len(target_T)
    return total / num_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_loss_falls_and_the_weak_model_stays_as_it_was(family: str) -> None:
    strong, weak = small_model(family), small_model(family, seed=1)
    before, loss = {name: value.clone() for name, value in weak.state_dict().items()}, fused_loss(strong, weak, 0.5)
    figures = train(strong, ROWS, CONFIG, weak=weak)
    assert fused_loss(strong, weak, 0.5) < loss / 2
    assert figures.last_loss < figures.first_loss
    assert all(torch.equal(value, before[name]) for name, value in weak.state_dict().items())
    assert all(parameter.grad is None for model in (strong, weak) for parameter in model.parameters())


def test_first_loss_and_entropies_are_those_of_the_models_alone() -> None:
    strong, weak = small_model(), small_model(seed=1)
    entropies = []
    for model in (strong, weak):
        rows = [logprobs_of(model, request) for request in REQUESTS]
        entropies.append(float(np.mean([-(row.exp() * row).sum(1).mean() for row in rows])))
    _, figures, _ = trained(replace(CONFIG, num_steps=1))
    assert [figures.strong_entropy, figures.weak_entropy] == pytest.approx(entropies, rel=1e-5)
    one = TokenRows.of([REQUESTS[1].prompt_ids], [REQUESTS[1].response_ids])
    found = train(small_model(), one, replace(CONFIG, num_steps=1), weak=weak)
    fused_TV = 0.5 * logprobs_of(strong, REQUESTS[1]) + 0.5 * logprobs_of(weak, REQUESTS[1])
    target_T = torch.tensor(REQUESTS[1].response_ids)
    assert found.first_loss == pytest.approx(float(torch.nn.functional.cross_entropy(fused_TV, target_T)), rel=1e-5)


def test_same_inputs_give_the_same_bits_and_another_seed_others() -> None:
    first, again, other = trained()[0], trained()[0], trained(replace(CONFIG, seed=1))[0]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_bounded_passes_give_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(replace(CONFIG, num_steps=3))
    monkeypatch.setattr("hacpo_core.warm_up.training.MICRO_BATCH_TOKENS", 1)
    cut = trained(replace(CONFIG, num_steps=3))
    assert whole[2] == pytest.approx(cut[2], rel=1e-4)
    for name, value in whole[0].items():
        torch.testing.assert_close(value, cut[0][name], rtol=1e-3, atol=1e-4)


def test_weak_model_counts_unless_the_mix_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws by the strong model's entropy alone, so that they are the same."""
    monkeypatch.setattr("hacpo_core.warm_up.training.GAIN_WEIGHT", 0.0)
    monkeypatch.setattr("hacpo_core.warm_up.training.LOSS_WEIGHT", 0.0)
    for mix, is_same in ((1.0, True), (0.5, False)):
        monkeypatch.setattr("hacpo_core.warm_up.training.MIX", mix)
        one, other = (trained(replace(CONFIG, num_steps=5), weak_seed=seed)[2] for seed in (1, 2))
        assert (one == other) is is_same


def test_draws_follow_the_weights_and_an_example_without_weight_is_never_drawn() -> None:
    drawn_SB = draws(np.array([3.0, 1.0, 0.0]), replace(CONFIG, num_steps=100, batch_size=40))
    assert drawn_SB.shape == (100, 40)
    assert np.bincount(drawn_SB.ravel(), minlength=3) / 4000 == pytest.approx([0.75, 0.25, 0.0], abs=0.03)


def test_draws_are_uniform_where_all_weights_are_0_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    drawn_SB = draws(np.zeros(2), replace(CONFIG, num_steps=100, batch_size=40))
    assert np.bincount(drawn_SB.ravel()) / 4000 == pytest.approx([0.5, 0.5], abs=0.03)
    assert "the weights of all examples are 0, so examples are drawn uniformly" in caplog.text


def test_broken_model_is_one_sentence() -> None:
    strong, weak = small_model(), small_model(seed=1)
    with torch.no_grad():
        weak.get_input_embeddings().weight[:] = torch.nan
    with pytest.raises(EngineError, match="an entropy is not finite"):
        train(strong, ROWS, CONFIG, weak=weak)
    with pytest.raises(EngineError, match=r"the loss of step \d+ is .*; lower warm_up.learning_rate"):
        train(strong, ROWS, replace(CONFIG, learning_rate=1e38), weak=small_model(seed=1))


SFT = replace(CONFIG, kind="sft", weak="")


def test_plain_warm_up_lowers_the_cross_entropy_of_the_solutions() -> None:
    model = small_model()
    expected = fused_loss(model, model, 1.0)
    whole = replace(SFT, batch_size=3)  # every step sees each example once
    figures = train(model, ROWS, whole)
    assert figures.first_loss == pytest.approx(expected, rel=1e-5)
    assert figures.last_loss < expected / 2
    assert fused_loss(model, model, 1.0) < expected / 2
    assert (figures.strong_entropy, figures.weak_entropy) == (None, None)


def test_every_example_is_seen_once_in_each_epoch() -> None:
    order_SB = shuffled_epochs(6, replace(SFT, num_steps=5, batch_size=4))
    epochs = [order_SB.ravel()[start : start + 6].tolist() for start in (0, 6, 12)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 3
    assert epochs[0] != epochs[1], "each epoch has its own order"
    assert (order_SB[:2] == shuffled_epochs(6, replace(SFT, num_steps=2, batch_size=4))).all()
