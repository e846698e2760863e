"""Rows as passes: what each token attends to, and that scores and gradients are those of rows alone.

Shapes: B sequence, T token, N target.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from flows.compose import compose
from hacpo_core.config import EngineConfig
from hacpo_core.engines.base import ScoreRequest
from hacpo_core.engines.layouts import ForwardPass, fill, forward_passes, micro_batches
from hacpo_core.engines.models import check_layout, scoring_head
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.validation import experiment_id
from tests.engines.small import FAMILIES, VOCAB_SIZE, small_model
from tests.engines.training import GRPO, HACPO, LINEAR, learner_of, rows_of, run, weights

PACKED = ("packed", "shared_prompts")
# Two problems in turn; responses of 1 token too, which put nothing but their target into a pass.
ROWS = [
    ScoreRequest((1, 2, 3), (4, 5)),
    ScoreRequest((6,), (7, 8, 9, 10)),
    ScoreRequest((1, 2, 3), (11,)),
    ScoreRequest((6,), (12, 13, 14)),
    ScoreRequest((1, 2, 3), (15, 16, 17)),
]
every_packed_layout = pytest.mark.parametrize("layout", PACKED)
every_family = pytest.mark.parametrize("family", FAMILIES)


def passes_of(layout: str, *, max_tokens: int = 100, pack_tokens: int = 100) -> list[ForwardPass]:
    return list(forward_passes(ROWS, layout=layout, max_tokens=max_tokens, pack_tokens=pack_tokens))


def test_micro_batches_keep_to_the_budget_with_padding_included() -> None:
    assert micro_batches([3, 9, 4, 8], max_tokens=18) == [[1, 3], [2, 0]]
    assert micro_batches([3, 9, 4, 8], max_tokens=17) == [[1], [3, 2], [0]]
    assert micro_batches([3, 9, 4, 8], max_tokens=1) == [[1], [3], [2], [0]]
    assert micro_batches([], max_tokens=5) == []


def test_long_rows_come_first_and_short_ones_fill_the_gaps() -> None:
    assert fill([3, 9, 4, 8, 1], capacity=12) == [[1, 0], [3, 2], [4]]
    assert fill([0, 0], capacity=0) == [[0, 1]]
    assert fill([], capacity=5) == []
    with pytest.raises(ValueError, match="a length of 9 exceeds the capacity of 8"):
        fill([3, 9], capacity=8)


def test_packed_rows_stand_one_after_another_without_their_last_token() -> None:
    (forward,) = passes_of("packed")
    assert forward.rows == (4, 0, 1, 2, 3)  # of 5, 4, 4, 3 and 3 tokens
    assert forward.input_BT.tolist() == [[1, 2, 3, 15, 16, 1, 2, 3, 4, 6, 7, 8, 9, 1, 2, 3, 6, 12, 13]]
    assert forward.position_BT.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert forward.column_N.tolist() == [2, 3, 4, 7, 8, 9, 10, 11, 12, 15, 16, 17, 18]
    assert forward.target_N.tolist() == [15, 16, 17, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14]
    assert forward.mask_B1TT() is None


def test_rows_of_a_problem_share_its_prompt_and_do_not_see_each_other() -> None:
    (forward,) = passes_of("shared_prompts")
    assert forward.rows == (4, 0, 2, 1, 3)  # within a problem long ones first
    assert forward.input_BT.tolist() == [[1, 2, 3, 15, 16, 4, 6, 7, 8, 9, 12, 13]]
    assert forward.position_BT.tolist() == [[0, 1, 2, 3, 4, 3, 0, 1, 2, 3, 1, 2]]
    assert forward.column_N.tolist() == [2, 3, 4, 2, 5, 2, 6, 7, 8, 9, 6, 10, 11]  # the prompt's end more than once
    assert forward.target_N.tolist() == [15, 16, 17, 4, 5, 11, 7, 8, 9, 10, 12, 13, 14]
    seen = ["0", "01", "012", "0123", "01234", "0125", "6", "67", "678", "6789", "6a", "6ab"]
    assert forward.mask_B1TT().shape == (1, 1, 12, 12)
    for t, row_T in enumerate(forward.mask_B1TT()[0, 0]):
        assert "".join(f"{k:x}" for k in row_T.nonzero()[:, 0].tolist()) == seen[t]


def test_bundle_that_does_not_fit_is_split_and_repeats_its_prompt() -> None:
    passes = passes_of("shared_prompts", pack_tokens=5, max_tokens=11)
    # Room for two response tokens behind the first prompt, for four behind the second one, which has five.
    assert [forward.input_BT.tolist() for forward in passes] == [
        [[1, 2, 3, 15, 16], [1, 2, 3, 4, 0]],
        [[6, 7, 8, 9], [6, 12, 13, 0]],
    ]
    assert sorted(row for forward in passes for row in forward.rows) == [0, 1, 2, 3, 4]


@every_packed_layout
@pytest.mark.parametrize("pack_tokens", [1, 7, 100])
@pytest.mark.parametrize("max_tokens", [1, 15, 100])
def test_budgets_hold_and_every_row_is_there_once(layout: str, pack_tokens: int, max_tokens: int) -> None:
    longest = 5  # prompt 3, response 3 without its last token
    seen: dict[int, list[int]] = {}
    for forward in passes_of(layout, max_tokens=max_tokens, pack_tokens=pack_tokens):
        num_sequences, length = forward.input_BT.shape
        assert length <= max(longest, pack_tokens)
        assert num_sequences == 1 or num_sequences * length <= max_tokens
        for row, targets in zip(
            forward.rows, forward.target_N.split([len(ROWS[row].response_ids) for row in forward.rows]), strict=True
        ):
            assert row not in seen
            seen[row] = targets.tolist()
    assert {row: tuple(targets) for row, targets in seen.items()} == {
        n: request.response_ids for n, request in enumerate(ROWS)
    }


def groups_of_rows() -> list[ScoreRequest]:
    """Three problems with four responses each, in mixed order."""
    random = torch.Generator().manual_seed(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (length,), generator=random).tolist())

    prompts = [ids(4), ids(1), ids(6)]
    return [ScoreRequest(prompts[n % 3], ids(1 + (5 * n) % 9)) for n in range(12)]


def attention_of(model: PreTrainedModel, kind: str) -> PreTrainedModel:
    model.set_attn_implementation(kind)
    return model


@every_family
@every_packed_layout
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("pack_tokens", [1, 20, 500])
def test_scores_and_gradients_are_those_of_rows_alone(
    family: str, layout: str, attention: str, pack_tokens: int
) -> None:
    model = attention_of(small_model(family, num_layers=2), attention).double()
    head, requests = scoring_head(model), groups_of_rows()
    upstream = torch.randn(sum(len(r.response_ids) for r in requests), generator=torch.Generator().manual_seed(1))

    def scored(layout: str, max_tokens: int) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        found: dict[int, Tensor] = {}
        for forward in forward_passes(requests, layout=layout, max_tokens=max_tokens, pack_tokens=pack_tokens):
            scores = head.scores(forward, temperature=0.7, chunk_mb=1)
            lengths = [len(requests[row].response_ids) for row in forward.rows]
            found |= zip(forward.rows, scores.logprob_N.split(lengths), strict=True)
        logprob_N = torch.cat([found[row] for row in range(len(requests))])
        (logprob_N * upstream).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return logprob_N.detach(), gradient

    alone, alone_gradient = scored("padded", 1)
    assert alone_gradient.abs().max() > 1.0
    for max_tokens in (1, 60, 1000):
        logprob_N, gradient = scored(layout, max_tokens)
        # In float64; but norms and eager softmax of the models compute in fp32 whatever the dtype.
        torch.testing.assert_close(logprob_N, alone, rtol=0.0, atol=1e-6)
        assert (gradient - alone_gradient).norm() < 1e-6 * alone_gradient.norm()


def shifted(forward: ForwardPass) -> ForwardPass:
    """Positions that do not begin anew; the mask is as it was."""
    length = forward.input_BT.shape[1]
    return replace(forward, position_BT=torch.arange(length).expand_as(forward.input_BT))


def leaking(forward: ForwardPass) -> ForwardPass:
    """Neighbours are seen; positions are as they were."""
    return replace(forward, block_BT=torch.ones_like(forward.input_BT), parent_BT=torch.ones_like(forward.input_BT))


@every_family
def test_comparison_with_rows_alone_sees_a_leak_and_positions_that_go_on(family: str) -> None:
    model = small_model(family, num_layers=2).double()
    head = scoring_head(model)
    forward = next(forward_passes(groups_of_rows(), layout="shared_prompts", max_tokens=1000, pack_tokens=500))
    with torch.no_grad():
        right, leaky, late = (
            head.scores(f, temperature=1.0, chunk_mb=1).logprob_N for f in (forward, leaking(forward), shifted(forward))
        )
    assert (leaky - right).abs().max() > 0.1
    assert (late - right).abs().max() > 1e-3


@every_packed_layout
def test_neighbours_tokens_change_nothing(layout: str) -> None:
    head, requests = scoring_head(small_model(num_layers=2)), groups_of_rows()
    changed = [
        replace(request, response_ids=tuple((token + 1) % VOCAB_SIZE for token in request.response_ids))
        if n % 2
        else request
        for n, request in enumerate(requests)
    ]

    def logprobs(rows: list[ScoreRequest]) -> dict[int, list[float]]:
        (forward,) = forward_passes(rows, layout=layout, max_tokens=1000, pack_tokens=500)
        with torch.no_grad():
            scores = head.scores(forward, temperature=1.0, chunk_mb=1)
        lengths = [len(rows[row].response_ids) for row in forward.rows]
        return {r: p.tolist() for r, p in zip(forward.rows, scores.logprob_N.split(lengths), strict=True)}

    before, after = logprobs(requests), logprobs(changed)
    assert all((before[row] == after[row]) is (row % 2 == 0) for row in before)


@every_packed_layout
@pytest.mark.parametrize("method", [HACPO, GRPO, replace(HACPO, kl_coef=0.5)], ids=["hacpo", "grpo", "kl"])
def test_update_is_that_of_padded_rows(layout: str, method: Any) -> None:
    rows = [replace(row, prompt_ids=(1, 2, 3)) for row in rows_of(num_cross=0 if method is GRPO else 3)]
    results = []
    for name, pack_tokens in (("padded", 512), (layout, 1), (layout, 20), (layout, 512)):
        model = small_model()
        engine = EngineConfig(
            row_layout=name,
            pack_tokens=pack_tokens,
            micro_batch_tokens=30,
            gradient_checkpointing=name != "padded" and pack_tokens == 20,
        )
        reference = small_model(seed=1) if method.kl_coef else None
        outcome = run(learner_of(model, engine=engine, reference=reference, **LINEAR), [rows], method)
        results.append((weights(model), {row.index: row for row in outcome.rows}))
    for found, outcomes in results[1:]:
        torch.testing.assert_close(found, results[0][0], rtol=1e-5, atol=1e-5)
        for index, expected in results[0][1].items():
            assert outcomes[index].ratio == pytest.approx(expected.ratio, abs=1e-5)
            assert outcomes[index].kl == pytest.approx(expected.kl, abs=1e-5)
            assert outcomes[index].entropy == pytest.approx(expected.entropy, abs=1e-5)
    assert (results[0][0] - weights(small_model())).abs().max() > 1e-2


@every_packed_layout
@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_of_these_families_pass_the_check(layout: str, family: str, dtype: torch.dtype) -> None:
    check_layout(scoring_head(small_model(family, num_layers=2).to(dtype)), layout)


def test_model_that_ignores_restarting_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    inner = model.base_model.forward

    def deaf(
        *args: Any, position_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        return inner(*args, **options)

    monkeypatch.setattr(model.base_model, "forward", deaf)
    for layout in PACKED:
        with pytest.raises(EngineError, match=rf"engine.row_layout: .*does not score {layout} rows.*=padded"):
            check_layout(scoring_head(model), layout)
    check_layout(scoring_head(model), "padded")


def test_layers_with_a_window_may_be_packed_but_share_no_prompts() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=VOCAB_SIZE, num_key_value_heads=1, sliding_window=4, **sizes)
    head = scoring_head(MistralForCausalLM(config).eval())
    check_layout(head, "packed")
    with pytest.raises(EngineError, match=r"shared_prompts needs layers that attend to everything before them"):
        check_layout(head, "shared_prompts")


def test_attention_without_masks_is_refused_with_the_layout_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    head = scoring_head(small_model())
    monkeypatch.setattr(head.model.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(EngineError, match=r"runs flash_attention_2; set engine.row_layout=packed"):
        check_layout(head, "shared_prompts")


def test_layout_is_checked_and_part_of_the_id() -> None:
    packed = "engine.row_layout=packed"
    with pytest.raises(ConfigError, match=r"engine.pack_tokens cannot take effect: engine.row_layout is padded"):
        compose("tiny", "hacpo", overrides=["engine.pack_tokens=64"])
    with pytest.raises(ConfigError, match=r"engine.pack_tokens: got 9999, more than engine.micro_batch_tokens=4096"):
        compose("tiny", "hacpo", overrides=[packed, "engine.pack_tokens=9999"])
    with pytest.raises(ConfigError, match=r"engine.row_layout: got 'loose', expected one of padded, packed, shared"):
        compose("tiny", "hacpo", overrides=["engine.row_layout=loose"])
    words = [(), (packed,), (packed, "engine.pack_tokens=64"), ("engine.row_layout=shared_prompts",)]
    assert len({experiment_id(compose("tiny", "hacpo", overrides=w), {}) for w in words}) == 4
