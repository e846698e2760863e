"""Probe: what it measures is what the first step of a training meets, and it leaves nothing behind."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.probe.measure import group_shares
from flows.probe.rows import bounded_ratios, centered
from flows.runs.experiment import run_experiment
from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.data.batches import Minibatch
from hacpo_core.methods.objective import RowKind
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import RowKey
from hacpo_core.store.steps import StepStore

pytestmark = pytest.mark.slow

LOG_RATIOS = (-0.5, -0.21, -0.1, 0.0, 0.1)
"""ratios 0.607, 0.811, 0.905, 1 and 1.105: bounds of HACPO's first update are 0.8 and 1"""


def minibatch_of(advantages: Sequence[float]) -> tuple[Minibatch, Ragged]:
    """Foreign rows of two tokens with old mean log-probability -1, and scores with LOG_RATIOS."""
    num_rows = len(advantages)
    tokens = TokenRows.of([[1]] * num_rows, [[2, 3]] * num_rows)
    nothing = Ragged.from_lengths(np.empty(0, np.float32), np.zeros(num_rows, np.int64))
    minibatch = Minibatch(
        keys=tuple(RowKey(1, "b", "p", row) for row in range(num_rows)),
        tokens=tokens,
        kind_B=np.full(num_rows, RowKind.FOREIGN),
        source_B=np.ones(num_rows, np.int64),
        advantage_B=np.array(advantages, np.float64),
        weight_B=np.ones(num_rows),
        row_weight_B=np.ones(num_rows),
        old_mean_logprob_B=np.full(num_rows, -1.0),
        old_logprobs=nothing,
        teacher_advantages=nothing,
        sampler_logprobs=nothing,
    )
    scored = Ragged.of([[-1.5 + log_ratio, -0.5 + log_ratio] for log_ratio in LOG_RATIOS[:num_rows]], np.float64)
    return minibatch, scored


def objective_of(method: str, *overrides: str) -> Any:
    return compose("tiny", method, overrides=list(overrides)).method.objective


def test_rows_pass_between_the_bounds_of_the_update() -> None:
    minibatch, scored = minibatch_of([1.0] * 5)
    first = bounded_ratios(objective_of("hacpo"), minibatch, scored, update=0)
    assert first.ratio_B == pytest.approx([math.exp(value) for value in LOG_RATIOS])
    assert (first.floor_B[0], first.ceiling_B[0]) == pytest.approx((0.8, 1.0))
    assert first.passing_share == pytest.approx(3 / 5)  # 0.811, 0.905, 1
    second = bounded_ratios(objective_of("hacpo"), minibatch, scored, update=1)
    assert second.floor_B[0] == pytest.approx(0.825)
    assert second.passing_share == pytest.approx(2 / 5)
    assert bounded_ratios(objective_of("hacpo_no_clip"), minibatch, scored, update=1).passing_share == 1.0


def test_rows_without_an_advantage_do_not_count_unless_none_has_one() -> None:
    minibatch, scored = minibatch_of([1.0, 0.0, -1.0, 0.0, 1.0])
    assert bounded_ratios(objective_of("hacpo"), minibatch, scored, update=0).passing_share == pytest.approx(1 / 3)
    minibatch, scored = minibatch_of([0.0] * 5)
    assert bounded_ratios(objective_of("hacpo"), minibatch, scored, update=0).passing_share == pytest.approx(3 / 5)


def test_self_normalised_ratios_are_those_relative_to_the_pairs_mean() -> None:
    minibatch, scored = minibatch_of([1.0] * 5)
    objective = objective_of("hacpo_sn")
    found = bounded_ratios(objective, centered(objective, minibatch, scored), scored, update=0)
    center = sum(LOG_RATIOS) / 5  # -0.142
    assert found.ratio_B == pytest.approx([math.exp(value - center) for value in LOG_RATIOS])
    assert (found.floor_B[0], found.ceiling_B[0]) == pytest.approx((0.8, 1.2))
    assert found.passing_share == pytest.approx(3 / 5)  # 0.699, 0.934, 1.043, 1.153, 1.274
    hacpo = objective_of("hacpo")
    assert centered(hacpo, minibatch, scored) is minibatch


def test_naives_bounds_stop_a_row_only_on_the_side_to_which_its_advantage_pushes() -> None:
    minibatch, scored = minibatch_of([1.0, -1.0, 1.0, 1.0, 1.0])  # clipped to 0.9 .. 1.1
    found = bounded_ratios(objective_of("naive"), minibatch, scored, update=0)
    assert found.passing_share == pytest.approx(3 / 5)  # 0.811 with -1 and 1.105 with +1 are stopped


def test_groups_are_counted_by_their_scored_rewards() -> None:
    nan = math.nan
    reward_PG = np.array([[0, 0, nan], [1, 1, nan], [0, 1, nan], [0.5, 0.5, 0.5], [nan, nan, nan]])
    assert group_shares(reward_PG) == [1 / 4, 1 / 4, 1 / 4]
    assert group_shares(np.full((2, 2), nan)) == [0.0, 0.0, 0.0]


def test_probe_measures_what_the_first_step_meets(probe: Callable[..., str], small_plan: Callable[..., Plan]) -> None:
    """Same problems, so the same responses; one update, so the same ratios."""
    words = ["train.problems=64", "method.build.problems=128", "evaluate.during=[]", "evaluate.final=[]"]
    found = json.loads(probe("hacpo", *words, "--json"))
    planned = small_plan("hacpo", "train.num_steps=1", *words)
    run_experiment(planned, DirectRunner())
    metrics = StepStore(planned.root).metrics(1)["agents"]
    for name, agent in found["agents"].items():
        measured = metrics[name]
        assert agent["accuracy"]["value"] == pytest.approx(measured["reward/mean"])
        assert agent["accuracy"]["low"] <= agent["accuracy"]["value"] <= agent["accuracy"]["high"]
        assert agent["mean_length"] == pytest.approx(measured["response/length_tokens"])
        assert agent["cut_share"] == pytest.approx(measured["response/cut_share"]) == 1 - agent["ended_share"]
        assert agent["unscored_share"] == 0
        assert agent["sampler_difference"] < 1e-5
        assert agent["trained_tokens"] * 256 == pytest.approx(measured["tokens/trained"])
        shares = [agent[f"{kind}_share"] for kind in ("signal", "all_wrong", "all_right")]
        assert sum(shares) == pytest.approx(1.0), "rewards are 0 or 1"
    for pair in found["pairs"]:
        measured = metrics[pair["learner"]]
        assert 1 - pair["first_share"] == pytest.approx(measured["clip_cross/stopped_share"])
        assert pair["length_drift"] == pytest.approx(measured["text/length_drift"])
        assert -1.0 <= pair["gradient_cosine"] <= 1.0
        assert pair["num_rows"] == 256 - pair["num_empty"]
        assert pair["last_share"] == pair["first_share"], "the only update is the first and the last"
    assert [(p["learner"], p["source"]) for p in found["pairs"]] == [("qwen", "llama"), ("llama", "qwen")]


def test_findings_of_the_distant_pair_name_agents_and_remedies(probe: Callable[..., str]) -> None:
    bounds = ["method.objective.cross_floor=1.0", "method.objective.cross_step=0.0"]
    text = probe("hacpo", *bounds, "--problems", "16")
    assert "16 training problems x 4 responses of each agent" in text
    for source, learner in (("qwen", "llama"), ("llama", "qwen")):
        passing = f"no row of {source} passes the bounds for {learner}: median ratio "
        assert passing in text
    assert "bounds 1 to 1; train each agent alone" in text


def test_update_without_a_single_advantage_is_reckoned_with_all_rows(probe: Callable[..., str]) -> None:
    words = ["rollout.num_samples=2", "rollout.max_response_tokens=1", "--problems", "4", "--json"]  # all are wrong
    found = json.loads(probe("gspo", *words))
    for agent in found["agents"].values():
        assert agent["signal_share"] == 0
        assert agent["trained_tokens"] == pytest.approx(agent["mean_length"])
    assert found["cost"]["step_s"] > 0


def test_method_may_be_left_out_before_other_words(probe: Callable[..., str]) -> None:
    found = json.loads(probe("rollout.num_samples=2", "--problems", "2", "--json"))
    assert found["method"] == "hacpo"
    assert "<|user|>" in found["agents"]["qwen"]["prompt"]
    assert found["findings"] and set(found["findings"][0]) == {"rule", "text", "remedy"}


@pytest.mark.system
def test_single_agent_and_method_without_sharing_have_no_pairs(
    probe: Callable[..., str], small_models: Path, tmp_path: Path
) -> None:
    assert json.loads(probe("gspo", "--problems", "2", "--json"))["pairs"] == []
    one = tmp_path / "one.yaml"
    text = (small_models / "small.yaml").read_text(encoding="utf-8")
    start, end = text.index("    llama:"), text.index("train:")
    one.write_text(text[:start] + text[end:], encoding="utf-8")
    found = json.loads(probe("gspo", "--problems", "2", "--json", pair=one))
    assert list(found["agents"]) == ["qwen"] and found["pairs"] == []
    assert "Other agents' rows" not in probe("hacpo", "--problems", "2", pair=one)
