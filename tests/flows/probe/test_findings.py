"""Findings and cost of a made-up probe: sentences, thresholds and figures by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from flows.planning.compose import compose
from flows.planning.disk import CheckpointSpace
from flows.planning.memory import ModelShape
from flows.planning.plans import Plan
from flows.probe.cost import ProbeCost, probe_cost
from flows.probe.findings import probe_findings
from flows.probe.measure import AgentProbe, Probe
from flows.probe.report import ProbeReport
from flows.probe.rows import PairProbe
from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.metrics import MetricEstimate

SHAPE = ModelShape(1000, 2, 8, 8, 8, 32, 16)
AGENT = AgentProbe(
    prompt="<|user|>1+1<|assistant|>",
    response="2",
    num_problems=64,
    accuracy=MetricEstimate("avg@8", 0.25, 0.2, 0.3, 64),
    signal_share=0.6,
    all_wrong_share=0.3,
    all_right_share=0.1,
    lengths=(10.0, 20.0, 30.0),
    mean_length=20.0,
    ended_share=0.9,
    cut_share=0.1,
    unscored_share=0.0,
    formless_share=0.2,
    sampler_difference=1e-6,
    sampled_per_s=1000.0,
    scored_per_s=4000.0,
    verified_per_s=64.0,
    trained_tokens=25.0,
    shape=SHAPE,
)
PAIR = PairProbe("qwen", "smol", 512, (0.31, 0.41, 0.52), 0.8, 1.0, 0.3, 0.2, 0.05, 0, 0, 0.5)
BOUNDS = "median ratio 0.41, bounds 0.8 to 1"
ROOM = ProbeCost(1.0, 1.0, memory_gib=2.0, min_gib=1.0, room_gib=8.0, disk=CheckpointSpace(1.0, 3.0, 0.5))


def config_of(*overrides: str, method: str = "hacpo") -> ExperimentConfig:
    config: ExperimentConfig = compose("tiny", method, overrides=list(overrides))
    return config


def found(
    agent: AgentProbe = AGENT, pair: PairProbe = PAIR, cost: ProbeCost = ROOM, *overrides: str, method: str = "hacpo"
) -> list[tuple[str, str]]:
    probe = Probe({"smol": agent}, (pair,))
    findings = probe_findings(config_of(*overrides, method=method), probe, cost)
    return [(finding.rule, finding.text) for finding in findings]


def test_sound_probe_has_no_finding() -> None:
    assert found() == []


@pytest.mark.slow
def test_real_pair_is_found_out_before_training() -> None:
    pair = replace(PAIR, first_share=0.0, last_share=0.0)
    few = replace(AGENT, signal_share=0.13, all_wrong_share=0.87, all_right_share=0.0)
    assert found(few, pair) == [
        ("few_right", "87% of smol's groups have no right answer among 8"),
        ("cross_rows_stopped", f"no row of smol passes the bounds for qwen: {BOUNDS}"),
    ]
    (finding,) = probe_findings(config_of(), Probe({}, (pair,)), ROOM)
    assert finding.remedy.startswith("train each agent alone")


def test_thresholds_of_an_agents_figures() -> None:
    cases: list[tuple[dict[str, float | None], str | None]] = [
        ({"all_wrong_share": 0.75}, "few_right"),
        ({"all_wrong_share": 0.74}, None),
        ({"all_right_share": 0.75}, "few_wrong"),
        ({"signal_share": 0.1, "all_wrong_share": 0.5}, "no_signal"),
        ({"signal_share": 0.11, "all_wrong_share": 0.5}, None),
        ({"cut_share": 0.3, "ended_share": 0.7}, "responses_cut"),
        ({"cut_share": 0.29, "ended_share": 0.71}, None),
        ({"cut_share": 1.0, "ended_share": 0.0}, "no_end"),
        ({"unscored_share": 0.01}, "responses_unscored"),
        ({"formless_share": 0.5}, "answers_without_form"),
        ({"formless_share": None}, None),
        ({"sampler_difference": 1.1e-3}, "sampler_differs"),
        ({"sampler_difference": 9e-4}, None),
        ({"sampler_difference": math.nan}, "sampler_differs"),
    ]
    wrong = []
    for changes, rule in cases:
        names = [name for name, _ in found(replace(AGENT, **changes))]  # type: ignore[arg-type]
        wrong += [] if names == ([rule] if rule else []) else [(changes, names)]
    assert wrong == []


def test_bfloat16_is_allowed_its_own_noise() -> None:
    real = replace(AGENT, sampler_difference=0.026)
    assert found(real, PAIR, ROOM, "engine.dtype=bfloat16") == []
    assert [rule for rule, _ in found(real)] == ["sampler_differs"]


def test_thresholds_of_a_pairs_figures() -> None:
    cases: list[tuple[dict[str, float], str | None]] = [
        ({"first_share": 0.05}, f"5.0% of the rows of smol pass the bounds for qwen: {BOUNDS}"),
        ({"first_share": 0.06}, None),
        ({"last_share": 0.0}, f"no row of smol passes the bounds for qwen at the last update of a step: {BOUNDS}"),
        ({"length_drift": -0.6}, "smol's responses change their length by -60% in qwen's tokens"),
        ({"num_rows": 0}, "all responses of smol are unscored or have no tokens for qwen"),
    ]
    wrong = []
    for changes, text in cases:
        texts = [each for _, each in found(pair=replace(PAIR, **changes))]  # type: ignore[arg-type]
        wrong += [] if texts == ([text] if text else []) else [(changes, texts)]
    assert wrong == []


def test_memory_that_is_not_there_is_found() -> None:
    ((rule, text),) = found(cost=replace(ROOM, memory_gib=9.0))
    assert (rule, text) == ("memory", "the agents may need 9 GiB (with one response at a time 1), but there are 8")
    assert found(cost=replace(ROOM, memory_gib=9.0, room_gib=None)) == []


def test_cost_of_a_step_and_of_the_run_by_hand() -> None:
    words = ["train.problems=32", "train.num_steps=40", "evaluate.during=[]", "evaluate.final=[]"]
    config = config_of(*words)  # 32 problems x 8 = 256 responses a step
    other = replace(AGENT, sampled_per_s=500.0)
    probe = Probe({"qwen-tiny": AGENT, "llama-tiny": other}, ())
    cost = probe_cost(config, probe)
    # 256 x 20 / 1000 s of sampling, 256 / 64 of verifying, 3 x 256 x 25 / 4000 of updating; nothing is scored anew
    one, two = 5.12 + 4.0 + 4.8, 10.24 + 4.0 + 4.8
    assert cost.step_s == pytest.approx(one + two)
    assert cost.run_hours == pytest.approx(40 * (one + two) / 3600)
    assert 0 < cost.min_gib <= cost.memory_gib
    assert cost.room_gib is not None and cost.room_gib > 0
    recomputing = probe_cost(config_of(*words, "engine.gradient_checkpointing=true"), probe)
    assert recomputing.step_s == pytest.approx(one + two + 2 * 1.6)
    half = probe_cost(config_of(*words, f"engine.gradient_checkpointing={AGENT.shape.num_layers // 2}"), probe)
    assert half.step_s == pytest.approx(one + two + 2 * 0.8)
    scored = probe_cost(config_of(*words, "engine.dtype=bfloat16"), probe)
    assert scored.step_s == pytest.approx(one + two + 2 * 1.28)


def test_text_and_json_say_the_figures(tmp_path: Path) -> None:
    evil = replace(AGENT, formless_share=None)
    probe, config = Probe({"smol": evil}, (PAIR,)), config_of()
    findings = probe_findings(config, probe, ROOM)
    report = ProbeReport(Plan("an-id", config, tmp_path), "cpu", probe, ROOM, findings)
    text = report.as_text()
    (pair,) = [line for line in text.splitlines() if line.startswith("pass the bounds before the first update")]
    assert pair.split()[-1] == "30.0%", "a line says what one figure is; a header of twelve columns could not be read"
    of_agent = ("0.25 [0.2, 0.3]", "60.0%", "10, 20, 30", "not known", "1.0e-06 (at most 1.0e-03)")
    assert [figure for figure in (*of_agent, "0.31, 0.41, 0.52") if figure not in text] == []
    assert "40 steps with their evaluations 60 minutes, without" in text
    assert "Nothing speaks against this training." in text
    value = report.as_json()
    assert value["agents"]["smol"]["accuracy"]["value"] == 0.25
