"""Own ratios start from the passes that train: in bfloat16 other batches score by more than GSPO's clip apart."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from hacpo_core.columns import TokenRows
from hacpo_core.config import EngineConfig, OptimizerConfig, TinyModelConfig
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.passes.logprobs import TokenScores
from hacpo_core.engines.passes.scoring import Head
from hacpo_core.tiny.models import build_model
from tests.engines.ranks import on_ranks
from tests.engines.small import TOKENIZER, VOCAB_SIZE, Request, Row, cross_row, own_row, scored, small_model
from tests.engines.training import GRPO, HACPO, Seen, learner_of, run

CLIP = {"sequence_low": 3e-4, "sequence_high": 4e-4}
BF16 = EngineConfig(dtype="bfloat16", micro_batch_tokens=256)
STILL = {"learning_rate": 1e-30, "weight_decay": 0.0}


def narrow_model() -> PreTrainedModel:
    """Wide and deep enough for bfloat16 to tell batches of other shapes apart."""
    config = TinyModelConfig(hidden_size=128, num_layers=4, num_heads=4, num_kv_heads=2)
    model = build_model(config, TOKENIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model.eval().to(torch.bfloat16)


def requests(number: int = 32) -> list[Request]:
    random = torch.Generator().manual_seed(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (length,), generator=random).tolist())

    return [Request(ids(6 + i % 4), ids(10 + 3 * i % 50)) for i in range(number)]


def rows_scored_by(learner: BaseLearner) -> list[Row]:
    """Own rows, every fourth without advantage, with the scores that they get when all are scored together."""
    found = scored(learner, requests())
    return [
        own_row(r.prompt_ids, r.response_ids, (1.0, -1.0, 0.5, 0.0)[i % 4], old_logprobs=old, index=i)
        for i, (r, old) in enumerate(zip(requests(), found, strict=True))
    ]


def update(learner: BaseLearner, batches: Sequence[Sequence[Row]], *, scores_own: bool) -> Seen:
    return run(learner, batches, replace(HACPO, **CLIP), scores_own=scores_own)


def noise_and_stopped(outcome: Seen) -> tuple[float, int]:
    """Root mean square of log s, and rows outside of GSPO's clip."""
    rms = math.sqrt(fmean(math.log(row.ratio) ** 2 for row in outcome.rows if row.is_own))
    return rms, sum(not row.floor <= row.ratio <= row.ceiling for row in outcome.rows if row.is_own)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "shared_prompts"])
def test_unchanged_weights_in_bfloat16_have_ratios_of_one_and_no_row_is_clipped(layout: str) -> None:
    def outcome(scores_own: bool) -> Seen:
        engine = replace(BF16, row_layout=layout)
        learner = learner_of(narrow_model(), engine=engine, **STILL)
        rows = rows_scored_by(learner)
        return update(learner, [rows[::2], rows[1::2]], scores_own=scores_own)

    noise, num_stopped = noise_and_stopped(outcome(False))
    assert noise > 5e-5, "5.5e-4 on one processor, 1.2e-4 on another"
    assert num_stopped >= 1
    noise, num_stopped = noise_and_stopped(outcome(True))
    assert noise < 1e-6
    assert num_stopped == 0


def test_old_values_are_those_before_the_first_update_of_the_step() -> None:
    learner = learner_of(small_model(num_layers=2), learning_rate=1e-2)
    rows = rows_scored_by(learner)
    found = update(learner, [rows[:16], rows[16:]], scores_own=True)
    other = learner_of(small_model(num_layers=2), learning_rate=1e-2)
    expected = update(other, [rows[:16], rows[16:]], scores_own=False)  # in fp32 both are the same values
    for one, two in zip(found.rows, expected.rows, strict=True):
        assert one.ratio == pytest.approx(two.ratio, rel=1e-5)
    moved = [abs(math.log(row.ratio)) for row in found.rows if row.update == 1]
    assert max(moved) > 1e-3, "the second mini-batch's ratios are to the policy before the first"


def test_only_own_rows_are_scored_anew_and_tokens_of_grpo_too() -> None:
    learner = learner_of(small_model())
    (own, other), (score, _) = requests(2), scored(learner, requests(2))
    wrong = tuple(value - 1.0 for value in score)
    rows = [
        own_row(own.prompt_ids, own.response_ids, 1.0, old_logprobs=wrong),
        cross_row(other.prompt_ids, other.response_ids, 1.0, old_mean_logprob=-1.0),
    ]
    outcome = update(learner, [rows], scores_own=True)
    ratios = {row.is_own: row.ratio for row in outcome.rows}
    assert ratios[True] == pytest.approx(1.0, abs=1e-5)
    assert ratios[False] != pytest.approx(1.0, abs=1e-2), "others' rows keep what their sampler said"
    tight = replace(GRPO, token_low=1e-4, token_high=1e-4)
    grpo = run(learner_of(small_model()), [rows[:1]], tight, scores_own=True)
    assert grpo.rows[0].stopped_share == 0.0, "with the old values that it was given every token would be"


def test_own_tokens_pass_at_most_one_and_three_quarter_times_and_others_once() -> None:
    learner = learner_of(small_model())
    passed: list[int] = []
    score_groups = learner._score_groups

    def counted(head: Head, rows: TokenRows, **options: Any) -> Iterator[tuple[Sequence[int], TokenScores]]:
        passed.append(len(rows.responses.value_N))
        return score_groups(head, rows, **options)

    learner._score_groups = counted  # type: ignore[method-assign]
    asked = requests()
    own = rows_scored_by(learner)
    passed.clear()
    cross = [cross_row(r.prompt_ids, r.response_ids, 1.0, old_mean_logprob=-1.0) for r in asked]
    batches = [[*own[m::4], *cross[m::4]] for m in range(4)]  # own[3::4] have no advantage
    update(learner, batches, scores_own=True)
    own_tokens = [sum(len(r.response_ids) for r in asked[m::4]) for m in range(4)]
    trained, scored_before = sum(own_tokens[:3]), sum(own_tokens[1:3])
    assert sum(passed) == trained + scored_before + sum(own_tokens)


def _on_a_rank(rows: list[Row]) -> tuple[float, int]:
    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    learner = DeepspeedLearner(
        narrow_model(),
        optimizer=OptimizerConfig(**STILL),
        engine=replace(BF16, learner="deepspeed"),
        temperature=1.0,
        total_updates=20,
    )
    found = noise_and_stopped(update(learner, [rows[::2], rows[1::2]], scores_own=True))
    learner.close()
    return found


@pytest.mark.system
@pytest.mark.deepspeed
def test_ranks_take_old_values_from_the_passes_that_each_of_them_trains() -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    rows = rows_scored_by(
        TorchLearner(narrow_model(), optimizer=OptimizerConfig(), engine=BF16, temperature=1.0, total_updates=20)
    )
    for noise, num_stopped in on_ranks(2, _on_a_rank, rows):
        assert noise < 1e-6
        assert num_stopped == 0
