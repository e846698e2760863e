"""Several iterations over the mini-batches of one rollout against TRL's own code with the same model and rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hacpo_core.methods.objectives.token_clip import TokenClip
from tests.engines.small import Request, minibatch, own_row, scored
from tests.engines.training import learner_of

CASE = json.loads((Path(__file__).parents[2] / "peers" / "fixture.json").read_text())["iterations"]
TOLERANCE = 1e-4
"""ours computes in float32, TRL in float64"""


def test_iterations_train_on_the_rows_of_trl_with_its_ratios_and_end_in_its_log_probabilities() -> None:
    model = LlamaForCausalLM(LlamaConfig(**CASE["config"])).eval()
    model.load_state_dict({name: torch.tensor(value) for name, value in CASE["weights"].items()})
    learner = learner_of(
        model, learning_rate=CASE["learning_rate"], epsilon=CASE["epsilon"], weight_decay=0.0, max_grad_norm=1e9
    )
    pairs = zip(CASE["prompt_ids"], CASE["response_ids"], strict=True)
    requests = [Request(tuple(prompt), tuple(response)) for prompt, response in pairs]
    old = scored(learner, requests)
    objective = TokenClip(
        token_low=CASE["clip_low"], token_high=CASE["clip_high"], token_aggregation="seq_mean_token_mean"
    )
    rows = [
        own_row(request.prompt_ids, request.response_ids, advantage, old_logprobs=old[i], index=i)
        for i, (request, advantage) in enumerate(zip(requests, CASE["advantage_B"], strict=True))
    ]
    peer = CASE["trl"]
    first_iteration = peer["rows"][: CASE["num_minibatches"]]
    found = learner.update(
        CASE["num_iterations"] * [minibatch([rows[i] for i in chosen], objective) for chosen in first_iteration],
        objective,
    )
    ratios: list[list[float]] = [[0.0] * len(chosen) for chosen in peer["rows"]]
    for m, key, ratio in zip(found.rows.update_B, found.rows.key_B, found.rows.figures["ratio"], strict=True):
        ratios[m][peer["rows"][m].index(key.sample)] = ratio
    np.testing.assert_allclose(ratios, peer["ratios"], rtol=TOLERANCE)
    expected = [row[: len(ids)] for row, ids in zip(peer["logprob_BT"], CASE["response_ids"], strict=True)]
    for new, before, wanted in zip(scored(learner, requests), old, expected, strict=True):
        assert new == pytest.approx(wanted, abs=TOLERANCE)
        assert new != pytest.approx(before, abs=0.1)
