"""Rows as passes: what each token attends to, and that scores and gradients are those of rows alone.

Shapes: B sequence, T token, N target.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from hacpo_core.config import EngineConfig
from hacpo_core.engines.passes import attention, scoring
from hacpo_core.engines.passes.attention import NAME, let_rows_share
from hacpo_core.engines.passes.layouts import ForwardPass, RowPlaces, forward_passes, micro_batches
from hacpo_core.engines.passes.scoring import row_layout, scoring_head
from hacpo_core.errors import EngineError
from tests.engines.ranks import on_ranks
from tests.engines.small import FAMILIES, VOCAB_SIZE, Request, small_model, token_rows
from tests.engines.training import GRPO, HACPO, LINEAR, learner_of, rows_of, run, weights

# Two problems in turn; responses of 1 token too, which put nothing but their target into a pass.
ROWS = [
    Request((1, 2, 3), (4, 5)),
    Request((6,), (7, 8, 9, 10)),
    Request((1, 2, 3), (11,)),
    Request((6,), (12, 13, 14)),
    Request((1, 2, 3), (15, 16, 17)),
]
LAYOUTS = ("padded", "shared_prompts")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_family = pytest.mark.parametrize("family", FAMILIES)


def passes_of(layout: str, *, max_tokens: int = 100) -> list[ForwardPass]:
    return list(forward_passes(token_rows(ROWS), layout=layout, max_tokens=max_tokens))


def test_micro_batches_keep_to_the_budget_with_padding_included() -> None:
    assert micro_batches([3, 9, 4, 8], max_tokens=18) == [[1, 3], [2, 0]]
    assert micro_batches([3, 9, 4, 8], max_tokens=17) == [[1], [3, 2], [0]]
    assert micro_batches([3, 9, 4, 8], max_tokens=1) == [[1], [3], [2], [0]]
    assert micro_batches([], max_tokens=5) == []


def test_rows_of_a_problem_share_its_prompt() -> None:
    (forward,) = passes_of("shared_prompts")
    assert forward.rows == (4, 0, 2, 1, 3)  # the problem with the longest row first, within a problem long ones first
    assert forward.input_BT.tolist() == [[1, 2, 3, 15, 16, 4, 6, 7, 8, 9, 12, 13]]
    assert forward.position_BT is not None and forward.places is not None
    assert forward.position_BT.tolist() == [[0, 1, 2, 3, 4, 3, 0, 1, 2, 3, 1, 2]]
    assert forward.column_N.tolist() == [2, 3, 4, 2, 5, 2, 6, 7, 8, 9, 6, 10, 11]  # the prompt's end more than once
    assert forward.target_N.tolist() == [15, 16, 17, 4, 5, 11, 7, 8, 9, 10, 12, 13, 14]
    assert forward.places.blocks == ((3, 5), (2, 3))  # 5, 4, 4; 3 and 3 are less than three quarters of 5
    assert forward.places.token_P[[*range(9), *range(10, 14)]].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 9]
    assert forward.places.token_P[15:].tolist() == [0, 1, 2, 6, 10, 11]
    assert forward.places.home_T.tolist() == [0, 1, 2, 3, 4, 8, 10, 11, 12, 13, 19, 20]
    assert forward.places.copy_C.tolist() == [5, 6, 7, 15, 16, 17, 18]
    assert forward.places.original_C.tolist() == [0, 1, 2, 0, 1, 2, 6]


def test_attention_pads_only_rows_of_similar_length_together() -> None:
    rows = [Request((1, 2), tuple(range(3, 3 + length))) for length in (9, 1, 4, 3, 1)]
    (forward,) = forward_passes(token_rows(rows), layout="shared_prompts", max_tokens=100)
    assert forward.places is not None
    assert forward.places.blocks == ((1, 10), (2, 5), (2, 2))  # rows of 10; 5 and 4; 2 and 2 tokens
    assert forward.places.token_P[10:19].tolist() == [0, 1, 10, 11, 12, 0, 1, 13, 14]
    assert forward.places.token_P[20:].tolist() == [0, 1, 0, 1]
    assert forward.places.home_T[10:].tolist() == [12, 13, 14, 17, 18]


def test_problem_that_does_not_fit_is_split_and_repeats_its_prompt() -> None:
    assert [forward.input_BT.tolist() for forward in passes_of("shared_prompts", max_tokens=5)] == [
        [[1, 2, 3, 15, 16]],
        [[1, 2, 3, 4]],
        [[6, 7, 8, 9]],
        [[6, 12, 13]],
    ]


def test_prompt_that_many_rows_share_ends_a_pass_before_attention_copies_it_too_often() -> None:
    rows = [Request(tuple(range(20)), (1, 2)) for _ in range(5)]  # 20 + 5 tokens; 21 a row with the prompt
    passes = list(forward_passes(token_rows(rows), layout="shared_prompts", max_tokens=30))
    assert [len(forward.rows) for forward in passes] == [4, 1]  # 5 x 21 row tokens could need more than 4 x 30 places


def test_two_places_a_token_bound_attention_and_cost_few_passes() -> None:
    """GPUs: what the planner counts is what passes hold, with the lengths of short and of long solutions."""
    for mean_log, max_increase in ((5.4, 1.1), (6.8, 1.0)):
        random = np.random.default_rng(0)
        prompts = [tuple(range(length)) for length in random.integers(60, 300, 64)]
        lengths = np.clip(random.lognormal(mean_log, 0.8, 1024), 20, 4096).astype(int).tolist()
        rows = token_rows([Request(prompts[n // 16], (1,) * length) for n, length in enumerate(lengths)])
        few, many = (
            list(forward_passes(rows, layout="shared_prompts", max_tokens=8192, max_places=number, block_unit=128))
            for number in (2.0, 4.0)
        )
        blocks = [forward.places.blocks for forward in few if forward.places]
        assert max(sum(a * b for a, b in parts) for parts in blocks) <= 2.05 * 8192
        assert len(few) <= max_increase * len(many)


def test_passes_of_solutions_are_filled_to_more_than_85_percent() -> None:
    random = np.random.default_rng(0)
    rows = []
    for length in random.integers(60, 200, 64):
        prompt = tuple(range(length))
        solutions = np.clip(random.lognormal(np.log(150), 0.5, 16), 10, 300).astype(int)
        rows += [Request(prompt, (1,) * solution) for solution in solutions]
    *passes, _ = forward_passes(token_rows(rows), layout="shared_prompts", max_tokens=8192)
    filled = [forward.input_BT.numel() / 8192 for forward in passes]
    assert min(filled) > 0.85
    assert max(filled) <= 1.0
    places = [
        sum(a * b for a, b in forward.places.blocks) / forward.input_BT.numel() for forward in passes if forward.places
    ]
    assert max(places) < 2.5


def test_rounded_blocks_have_few_new_shapes_after_the_first_steps() -> None:
    """A rank's rows of eight steps, with prompts of 60 to 200 tokens and log-normal responses."""

    def new_shapes(block_unit: int) -> list[int]:
        random, seen, found = np.random.default_rng(0), set[tuple[int, int]](), []
        for _ in range(8):
            responses = np.clip(random.lognormal(6.5, 0.7, 256), 20, 4096).astype(int)
            prompts = [tuple(range(length)) for length in random.integers(60, 200, 32)]
            rows = token_rows([Request(prompts[n % 32], (1,) * length) for n, length in enumerate(responses)])
            passes = forward_passes(rows, layout="shared_prompts", max_tokens=16384, block_unit=block_unit)
            shapes = {shape for forward in passes if forward.places for shape in forward.places.blocks}
            found.append(len(shapes - seen))
            seen |= shapes
        return found

    plain, rounded = new_shapes(1), new_shapes(128)
    assert sum(rounded[4:]) < sum(plain[4:]) / 4
    assert rounded[-1] < 0.2 * plain[-1]


@every_layout
@pytest.mark.parametrize("max_tokens", [1, 15, 100])
def test_budgets_hold_and_every_row_is_there_once(layout: str, max_tokens: int) -> None:
    seen: dict[int, list[int]] = {}
    for forward in passes_of(layout, max_tokens=max_tokens):
        lengths = [len(ROWS[row].prompt_ids) + len(ROWS[row].response_ids) for row in forward.rows]
        assert len(lengths) == 1 or forward.input_BT.numel() <= max_tokens
        assert forward.input_BT.numel() <= len(lengths) * max(lengths)
        for row, targets in zip(
            forward.rows, forward.target_N.split([len(ROWS[row].response_ids) for row in forward.rows]), strict=True
        ):
            assert row not in seen
            seen[row] = targets.tolist()
    assert {row: tuple(targets) for row, targets in seen.items()} == {
        n: request.response_ids for n, request in enumerate(ROWS)
    }


def groups_of_rows() -> list[Request]:
    """Three problems with four responses each, in mixed order."""
    random = torch.Generator().manual_seed(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (length,), generator=random).tolist())

    prompts = [ids(4), ids(1), ids(6)]
    return [Request(prompts[n % 3], ids(1 + (5 * n) % 9)) for n in range(12)]


def ready(model: PreTrainedModel) -> PreTrainedModel:
    assert let_rows_share(model)
    return model


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("checkpoints", [False, True])
def test_scores_and_gradients_are_those_of_rows_alone(family: str, checkpoints: bool) -> None:
    model = ready(small_model(family, num_layers=2)).double()
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    head, requests = scoring_head(model), groups_of_rows()
    upstream = torch.randn(sum(len(r.response_ids) for r in requests), generator=torch.Generator().manual_seed(1))

    def scored(layout: str, max_tokens: int, block_unit: int = 1) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        found: dict[int, Tensor] = {}
        options = {"max_tokens": max_tokens, "block_unit": block_unit}
        for forward in forward_passes(token_rows(requests), layout=layout, **options):
            scores = head.scores(forward, temperature=0.7, chunk_mb=1)
            lengths = [len(requests[row].response_ids) for row in forward.rows]
            found |= zip(forward.rows, scores.logprob_N.split(lengths), strict=True)
        logprob_N = torch.cat([found[row] for row in range(len(requests))])
        (logprob_N * upstream).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return logprob_N.detach(), gradient

    alone, alone_gradient = scored("padded", 1)
    assert alone_gradient.abs().max() > 1.0
    for max_tokens, block_unit in ((1, 1), (60, 1), (1000, 1), (60, 16)):
        logprob_N, gradient = scored("shared_prompts", max_tokens, block_unit)
        # In float64; but norms of the models compute in fp32 whatever the dtype.
        torch.testing.assert_close(logprob_N, alone, rtol=0.0, atol=1e-6)
        assert (gradient - alone_gradient).norm() < 1e-6 * alone_gradient.norm()


def shifted(forward: ForwardPass) -> ForwardPass:
    """Positions that do not begin anew; rows are as they were."""
    length = forward.input_BT.shape[1]
    return replace(forward, position_BT=torch.arange(length).expand_as(forward.input_BT))


def leaking(forward: ForwardPass) -> ForwardPass:
    """Neighbours are seen; positions are as they were."""
    place_T = torch.arange(forward.input_BT.shape[1])
    return replace(forward, places=RowPlaces(((1, len(place_T)),), place_T, place_T, place_T[:0], place_T[:0]))


@every_family
def test_comparison_with_rows_alone_sees_a_leak_and_positions_that_go_on(family: str) -> None:
    head = scoring_head(ready(small_model(family, num_layers=2)).double())
    (forward,) = forward_passes(token_rows(groups_of_rows()), layout="shared_prompts", max_tokens=1000)
    with torch.no_grad():
        right, leaky, late = (
            head.scores(f, temperature=1.0, chunk_mb=1).logprob_N for f in (forward, leaking(forward), shifted(forward))
        )
    assert (leaky - right).abs().max() > 0.1
    assert (late - right).abs().max() > 1e-3


@every_layout
def test_neighbours_tokens_change_nothing(layout: str) -> None:
    head, requests = scoring_head(ready(small_model(num_layers=2))), groups_of_rows()
    changed = [
        replace(request, response_ids=tuple((token + 1) % VOCAB_SIZE for token in request.response_ids))
        if n % 2
        else request
        for n, request in enumerate(requests)
    ]

    def logprobs(rows: list[Request]) -> dict[int, list[float]]:
        (forward,) = forward_passes(token_rows(rows), layout=layout, max_tokens=1000)
        with torch.no_grad():
            scores = head.scores(forward, temperature=1.0, chunk_mb=1)
        lengths = [len(rows[row].response_ids) for row in forward.rows]
        return {r: p.tolist() for r, p in zip(forward.rows, scores.logprob_N.split(lengths), strict=True)}

    before, after = logprobs(requests), logprobs(changed)
    assert all((before[row] == after[row]) is (row % 2 == 0) for row in before)


@pytest.mark.parametrize("method", [HACPO, GRPO, replace(HACPO, kl_coef=0.5)], ids=["hacpo", "grpo", "kl"])
def test_update_is_that_of_padded_rows(method: Any) -> None:
    rows = [replace(row, prompt_ids=(1, 2, 3)) for row in rows_of(num_cross=0 if method is GRPO else 3)]
    results = []
    for layout, max_tokens, checkpoints in (
        ("padded", 30, False),
        ("shared_prompts", 1, False),
        ("shared_prompts", 30, True),
        ("auto", 500, False),
    ):
        model = small_model()
        engine = EngineConfig(row_layout=layout, micro_batch_tokens=max_tokens, gradient_checkpointing=checkpoints)
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


def layout_where_ranks_disagree(first: str | None, second: str | None) -> str:
    """The layout that a rank takes, if the trials of two ranks find these problems."""
    scoring._why_not_shared = lambda head: second if dist.get_rank() else first  # type: ignore[assignment]
    return row_layout(scoring_head(small_model()), "auto")


def assert_refused(model: PreTrainedModel, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is an error where it was asked for, and said where it was not."""
    head = scoring_head(model)
    with pytest.raises(EngineError, match=rf"engine.row_layout: .*{words}.*; set engine.row_layout=padded"):
        row_layout(head, "shared_prompts")
    assert row_layout(head, "auto") == "padded"
    assert re.search(f"WARNING .*rows are padded: .*{words}", caplog.text)
    assert row_layout(head, "padded") == "padded"


@pytest.mark.parametrize(
    ("how", "words"),
    [("deaf", "scores rows differently with shared_prompts"), ("broken", "not enough values to unpack")],
)
def test_model_that_ignores_or_fails_with_shared_rows_gets_padded_ones(
    how: str, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model()
    inner = model.base_model.forward

    def forward(*args: Any, input_ids: Tensor, use_cache: bool, **options: Any) -> Any:
        if how == "broken" and "rows" in options:
            raise ValueError("not enough values to unpack")
        return inner(*args, input_ids=input_ids, use_cache=use_cache, **(options if how == "broken" else {}))

    monkeypatch.setattr(model.base_model, "forward", forward)
    assert_refused(model, words, caplog)


def test_mask_of_the_models_own_is_refused() -> None:
    (forward,) = passes_of("shared_prompts")
    part = torch.zeros(1, 2, 12, 4)
    with pytest.raises(TypeError, match="the model builds its own attention mask"):
        attention.attend(torch.nn.Identity(), part, part, part, torch.zeros(1, 1, 12, 12), rows=forward.places)


def test_model_that_shares_prompts_computes_and_is_saved_as_before(tmp_path: Path) -> None:
    plain, shared = small_model(num_layers=2), ready(small_model(num_layers=2))
    input_BT, mask_BT = torch.tensor([[0, 3, 5], [2, 1, 4]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    with torch.no_grad():
        one, other = (m(input_ids=input_BT, attention_mask=mask_BT).logits for m in (plain, shared))
    assert torch.equal(one, other)
    shared.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()


@pytest.mark.system
def test_first_rank_decides_for_all() -> None:
    assert on_ranks(2, layout_where_ranks_disagree, "a whim", None) == ["padded"] * 2


def test_windows_and_rotations_by_length_share_no_prompts(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=VOCAB_SIZE, num_key_value_heads=1, sliding_window=4, **sizes)
    assert_refused(MistralForCausalLM(config).eval(), "MistralForCausalLM does not have", caplog)
    model = small_model()
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic", "factor": 2.0}
    assert_refused(model, "Qwen3ForCausalLM does not have", caplog)
