"""Grids are expanded, deduplicated and costed; what is wrong in one is said before anything runs."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from flows.commands.run_grid import default_workers, submit
from flows.grids.estimate import (
    estimate,
    num_evaluation_responses,
    num_rollouts,
    occupied_hours,
    sampling_rate,
    training_rate,
)
from flows.grids.planner import RateConfig, plan_grid, with_recorded_seeds
from flows.grids.show import show_grid
from flows.planning.capacity import with_ranks
from flows.planning.compose import compose
from flows.planning.plans import Plan, save_plan
from flows.records.failures import read_failure
from flows.records.gridfile import save_grid
from flows.records.states import RESULT_FILE, experiment_status
from flows.runs.experiment import run_experiment
from flows.service.experiment_state import ScheduledRun
from hacpo_core.errors import ConfigError, HacpoError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.lock import ExperimentLock


def write_grid(folder: Path, text: str) -> str:
    path = folder / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def small_grid(small_models: Path, folder: Path, methods: str = "gspo, hacpo", extra: str = "") -> str:
    pair = small_models / "small.yaml"
    return write_grid(
        folder, f"title: small\nseeds: [0, 1]\nentries:\n  - {{pairs: [{pair}], methods: [{methods}]}}\n{extra}"
    )


def test_error_of_an_entry_names_it(tmp_path: Path, small_models: Path) -> None:
    small = small_models / "small.yaml"
    path = write_grid(tmp_path, f"title: x\nentries: [{{pairs: [{small}], methods: [gspo, hacbo]}}]")
    place = f"grid {path}, entries[0], pair {small}, method hacbo: method: got 'hacbo'"
    with pytest.raises(ConfigError, match=re.escape(place)):
        plan_grid(path, runs_dir=tmp_path)


@pytest.mark.slow
def test_tables_1_and_7_together_need_33_trainings_for_60_rows(tmp_path: Path) -> None:
    grids = [plan_grid(name, runs_dir=tmp_path) for name in ("table1", "table7")]
    assert sum(len(grid.cells) for grid in grids) == 60
    trainings = {experiment for grid in grids for experiment in grid.plans}
    assert len(trainings) == 33
    assert sum("hacpo" in name or "naive" in name for name in trainings) == 12


@pytest.mark.parametrize(
    ("method", "num_agents"),
    [
        ("extends: gspo\nmethod: {name: own}", 1),
        ("extends: hacpo\nmethod: {name: xgrpo, shares_rollouts: false}", 2),
        ("extends: gspo\nmethod: {name: pooled, estimate: {baseline: pooled}}", 2),
        ("extends: gspo\nmethod: {name: mine, estimate: {name: 'tests.plugins:RunningMean'}}", 2),
    ],
)
def test_agents_train_alone_only_where_partners_are_known_to_change_nothing(
    method: str, num_agents: int, small_models: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(method, encoding="utf-8")
    grid = plan_grid(small_grid(small_models, tmp_path, str(tmp_path / "mine.yaml")), runs_dir=tmp_path, seeds=[0])
    assert {len(planned.config.pair.agents) for planned in grid.plans.values()} == {num_agents}


@pytest.mark.slow
def test_same_settings_under_two_names_are_trained_once(small_models: Path, tmp_path: Path) -> None:
    extra = f"  - {{pairs: [{small_models / 'small.yaml'}], methods: [hacpo_alpha1, hacpo_alpha2]}}\n"
    grid = plan_grid(small_grid(small_models, tmp_path, extra=extra), runs_dir=tmp_path, seeds=[0])
    of_method = {c.method: c.experiment for c in grid.cells}
    assert of_method["hacpo"] == of_method["hacpo_alpha1"] != of_method["hacpo_alpha2"]


def state(planned: Plan) -> tuple[str, str]:
    status = experiment_status(planned.root)
    return status.state, status.reason


@pytest.mark.slow
def test_states_follow_what_lies_in_the_folder(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1")
    assert state(planned) == ("missing", "not run")
    save_plan(planned)
    (planned.root / "steps").write_text("in the way", encoding="utf-8")
    with pytest.raises((HacpoError, OSError)):
        run_experiment(planned, DirectRunner())
    failure = read_failure(planned.root)
    assert failure is not None
    assert "Traceback" in failure.traceback
    assert state(planned) == ("failed", failure.reason)
    (planned.root / "steps").unlink()
    with ExperimentLock(planned.root):
        assert state(planned) == ("running", "step 0 of 1")
    run_experiment(planned, DirectRunner())
    assert state(planned) == ("done", "")
    assert read_failure(planned.root) is None, "a new attempt removes the old failure"
    (planned.root / RESULT_FILE).write_text("", encoding="utf-8")  # as a power cut leaves it
    assert state(planned) == ("missing", "interrupted at step 1 of 1")
    run_experiment(planned, DirectRunner())
    assert state(planned) == ("done", "")


def test_estimate_counts_what_the_configuration_says(small_models: Path, tmp_path: Path) -> None:
    extra = (
        "rates: {response_tokens: 10, sampled_tokens_per_gpu_s: 100, trained_tokens_per_gpu_s: 50, source: stated}\n"
    )
    grid = plan_grid(small_grid(small_models, tmp_path, "hacpo", extra), runs_dir=tmp_path, seeds=[0])
    (planned,) = grid.plans.values()
    # 4 steps x 4 problems x 4 samples of each agent; 2 agents learn from both.
    assert num_rollouts(planned.config) == 64
    answers = num_evaluation_responses(planned.config)
    cost = estimate(grid, [planned])
    assert cost.rollouts == 128
    # 8 problems of dev before, after steps 2 and 4; 8 of test before and after
    assert answers == 40, "those of files, too"
    assert cost.sampled_tokens == 10 * 2 * (64 + answers)
    assert cost.trained_tokens == 10 * 2 * 128
    seconds = cost.sampled_tokens / 100 + cost.trained_tokens / 50
    assert cost.busy_hours == pytest.approx(seconds / 3600)
    assert cost.occupied_hours == cost.busy_hours, "one process, whose agents take turns"


def test_rates_of_other_sizes_are_in_proportion_to_the_stated_ones() -> None:
    rates = RateConfig(1000, sampled_tokens_per_gpu_s=600, trained_tokens_per_gpu_s=800, source="stated", billions=4)
    assert (sampling_rate(rates, 16 * 10**9), training_rate(rates, 16 * 10**9)) == (300, 200)
    assert (sampling_rate(rates, 10**9), training_rate(rates, 10**9)) == (1200, 3200)
    assert (sampling_rate(rates, None), training_rate(rates, None)) == (600, 800)
    alike = dataclasses.replace(rates, billions=None)
    assert (sampling_rate(alike, 10**9), training_rate(alike, 10**9)) == (600, 800)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 24.0),  # ranks 3 and 5: max(6 / 3, 15 / 5) hours on all eight GPUs
        (("placement.num_ranks=4",), 30.0),  # max(6 / 4, 15 / 4) hours on eight
        (("placement.num_ranks=4", "placement.colocated=true"), 21.0),  # the agents take turns on four
    ],
)
def test_gpus_are_occupied_as_long_as_the_slowest_agent_works(words: tuple[str, ...], expected: float) -> None:
    config = compose("qwen3-4b-base+qwen3-8b-base", "hacpo", hardware="eight_gpus", overrides=words)
    placed = with_ranks(config, {"qwen3-4b-base": 4, "qwen3-8b-base": 8})
    assert occupied_hours(placed, {"qwen3-4b-base": 6.0, "qwen3-8b-base": 15.0}) == expected


@pytest.mark.slow
def test_dry_run_counts_occupied_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = plan_grid("table1", runs_dir=tmp_path)
    alone = [one for one in grid.plans.values() if len(one.config.pair.agents) == 1]
    cost = estimate(grid, alone)
    assert cost.occupied_hours == pytest.approx(cost.busy_hours), "they hold the four GPUs that they use, and no more"
    whole = estimate(grid, grid.experiments())
    assert whole.occupied_hours > whole.busy_hours, "the smaller agent of a pair waits for the larger one"
    show_grid(grid, "missing")
    words = f"{whole.occupied_hours:,.1f} GPU-hours occupied, {whole.busy_hours:,.1f} of them busy (stated: "
    assert words in capsys.readouterr().out


@pytest.mark.slow
def test_worker_of_a_grid_trains_as_many_at_a_time_as_the_gpus_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.commands.run_grid.visible_devices", lambda: [str(i) for i in range(8)])
    monkeypatch.setattr("flows.commands.run_grid.usable_cores", lambda: 6)
    plans = list(plan_grid("table1", runs_dir=tmp_path).plans.values())
    assert default_workers(plans) == 2, "two trainings of one agent on four GPUs each"
    assert default_workers([one for one in plans if len(one.config.pair.agents) == 2]) == 1
    assert default_workers(list(plan_grid("table1", runs_dir=tmp_path, hardware="one_gpu").plans.values())) == 8
    assert default_workers(list(plan_grid("table1", runs_dir=tmp_path, hardware="two_nodes").plans.values())) == 1
    assert default_workers(list(plan_grid("demo", runs_dir=tmp_path).plans.values())) == 6
    words = ["placement.kind=ray", "engine.num_threads=2"]
    assert default_workers(list(plan_grid("demo", runs_dir=tmp_path, overrides=words).plans.values())) == 1


def test_grid_with_overrides_is_another_grid_and_settings_are_the_same_for_all_seeds(
    small_models: Path, tmp_path: Path
) -> None:
    file = small_grid(small_models, tmp_path, "gspo")
    changed = ["train.num_steps=2", "runtime.runner=direct"]
    grids = [plan_grid(file, runs_dir=tmp_path, overrides=overrides) for overrides in ([], changed)]
    assert [grid.name for grid in grids] == ["grid", "grid-train.num_steps=2"]
    settings = [{cell.settings for cell in grid.cells if cell.agent == "qwen"} for grid in grids]
    assert len(grids[0].config.seeds) == 2 and [len(each) for each in settings] == [1, 1]
    assert settings[0] != settings[1]


def test_report_has_all_seeds_that_the_grid_was_ever_asked_for(small_models: Path, tmp_path: Path) -> None:
    make_plan = partial(plan_grid, small_grid(small_models, tmp_path, "gspo"), runs_dir=tmp_path)
    save_grid(tmp_path, make_plan(seeds=[3]).record)
    grid = make_plan()
    whole = with_recorded_seeds(grid, make_plan, tmp_path)
    assert (grid.config.seeds, whole.config.seeds) == ([0, 1], [0, 1, 3])
    assert with_recorded_seeds(whole, make_plan, tmp_path) is whole


def test_models_that_are_not_there_make_cells_unavailable_and_not_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = plan_grid("table2", runs_dir=tmp_path)
    assert {state.state for state in grid.states.values()} == {"unavailable"}
    show_grid(grid, "missing")
    shown = capsys.readouterr().out
    assert "2 experiments: 2 unavailable" in shown
    assert f"{2 * 2 * 58 * 128 * 8:,} rollouts" in shown
    assert "local model folder" in shown


@pytest.mark.slow
def test_word_about_an_agent_goes_to_the_pairs_that_have_it(tmp_path: Path) -> None:
    words = ["pair.agents.llama-tiny.tiny.num_layers=1"]
    grid = plan_grid("tiny_table1", runs_dir=tmp_path, seeds=[0], overrides=words)
    layers = {
        (name, agent.tiny.num_layers)
        for planned in grid.plans.values()
        for name, agent in planned.config.pair.agents.items()
        if agent.tiny is not None
    }
    assert layers == {("qwen-tiny", 2), ("qwen-tiny-late", 2), ("qwen-small", 3), ("llama-tiny", 1)}


def test_what_is_wrong_in_a_grid_is_one_sentence_with_the_field(tmp_path: Path) -> None:
    entries, rates = "entries: [{pairs: [tiny], methods: [hacpo]}]", "response_tokens: 1, trained_tokens_per_gpu_s: 1"
    cases = {
        "title: x": r"entries \(in grid .*grid\.yaml\): .*missing",
        "title: x\nentries: [{pairs: [tiny], methods: [nope]}]": "method: got 'nope', expected one of",
        "title: x\nentries: [{pairs: [], methods: [gspo]}]": "no pairs or no methods",
        "title: x\nentries: []": "entries is empty",
        "title: a\nseeds: zero\nentries: []": r"seeds \(in grid .*\): Invalid value assigned",
        "title: a\nentries: [{pears: [tiny]}]": r"pears \(in grid .*\): .*Did you mean: 'pairs'\?",
        "- a list": "expected a YAML mapping",
        f"title: x\nseeds: [0, 0]\n{entries}": "expected each once",
        f"title: x\nseeds: [-1]\n{entries}": "got the seed -1, expected at least 0",
        f"title: x\n{entries}\nreport: {{table: table99}}": "got 'table99', expected one of plain",
        f"title: x\n{entries}\nreport: {{benchmarks: [gsm]}}": "layout plain shows gsm, evaluate.final has arithmetic",
        f"title: x\n{entries}\nrates: {{{rates}, sampled_tokens_per_gpu_s: 0, source: x}}": "rates must be above 0",
        "title: x\nentries: [{pairs: [tiny], methods: [hacpo], settings: {seed: 7}}]": "sets seed; use the",
        "title: x\nentries:\n  - {pairs: [tiny], methods: [hacpo]}\n"
        "  - {pairs: [tiny], methods: [hacpo], settings: {method: {objective: {cross_floor: 0.5}}}}": "a label",
    }
    wrong = []
    for text, message in cases.items():
        try:
            plan_grid(write_grid(tmp_path, text), runs_dir=tmp_path)
            wrong.append((text, "no error"))
        except ConfigError as error:
            wrong += [] if re.search(message, str(error)) else [(text, str(error))]
    assert wrong == []
    for word, message in (("pair.agents.nobody.path=/x", "no pair of this grid has that agent"), ("seed=3", "--seeds")):
        with pytest.raises(ConfigError, match=message):
            plan_grid("demo", runs_dir=tmp_path, overrides=[word])
    with pytest.raises(ConfigError, match="expected one of .*table1.*tiny_table1"):
        plan_grid("table9", runs_dir=tmp_path)


def test_files_that_a_grid_names_are_looked_for_beside_it_and_a_method_is_listed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "sets").mkdir(parents=True)
    pair = "extends: tiny\npair: {name: mine}\ndata: {directory: sets}\n"
    (tmp_path / "own" / "my_pair.yaml").write_text(pair, encoding="utf-8")
    (tmp_path / "own" / "base.yaml").write_text("extends: gspo\n", encoding="utf-8")
    (tmp_path / "own" / "by_path.yaml").write_text("extends: base.yaml\nmethod: {name: short}\n", encoding="utf-8")
    text = "title: own\nentries: [{pairs: [my_pair.yaml], methods: [by_path.yaml]}]\n"
    name = write_grid(tmp_path / "own", text)
    monkeypatch.chdir(tmp_path)
    grid = plan_grid(name, runs_dir=tmp_path / "runs")
    assert {(cell.pair, cell.method) for cell in grid.cells} == {("mine", "short")}
    assert {plan.config.data.directory for plan in grid.plans.values()} == {str(tmp_path / "own" / "sets")}


def test_longest_training_is_submitted_first(small_plan: Callable[..., Plan]) -> None:
    short, long = (small_plan("hacpo", f"train.num_steps={steps}") for steps in (2, 9))
    alone = small_plan("gspo", "train.num_steps=5")
    queue = Queue()
    assert submit([short, alone, long], queue) == [long.id, alone.id, short.id]  # type: ignore[arg-type]


class Queue:
    """Takes everything."""

    def start(self, experiment: str) -> ScheduledRun:
        return ScheduledRun("", experiment, "Scheduled", "")


@pytest.mark.slow
def test_baseline_trained_alone_ends_in_the_bits_of_one_trained_beside_a_partner(
    small_models: Path, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    beside = run_experiment(small_plan("gspo"), DirectRunner())
    words = ["tracking.enabled=false", "runtime.runner=direct"]
    grid = plan_grid(small_grid(small_models, tmp_path, "gspo"), runs_dir=tmp_path / "runs", seeds=[0], overrides=words)
    for planned in grid.plans.values():
        (agent,) = planned.config.pair.agents
        alone = run_experiment(planned, DirectRunner())
        assert alone.digests[agent] == beside.digests[agent]
