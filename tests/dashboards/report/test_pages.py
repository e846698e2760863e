"""A report of experiments whose every figure is known."""

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from starlette.testclient import TestClient

from dashboards.app import create_app
from dashboards.charts import charts
from dashboards.report import load_results, save_results, write_report
from dashboards.report.cells import REFERENCE, GridRuns, Variant, read_runs
from dashboards.report.differences import difference, problem_scores
from dashboards.report.document import to_markdown
from dashboards.report.pages import report_content
from dashboards.report.results import read_results
from dashboards.report.statistics import Difference, holm
from dashboards.report.tables import ratio_table
from flows.commands.run_grid import _show_results
from flows.grids.planner import GridPlan
from flows.planning.compose import compose
from flows.planning.plans import find_plan, save_plan
from flows.records.gridfile import GridCell, save_grid
from flows.records.states import experiment_status
from flows.service.experiment_state import ExperimentState
from hacpo_core.errors import ConfigError
from hacpo_core.phases.health import Finding
from tests.dashboards.browsing import PHONE, chromium, reason_to_skip
from tests.dashboards.report.finished import AGENTS, Rewards, finished, grid_of

pytestmark = pytest.mark.slow

TEST = "arithmetic_test"
METRICS = {"tokens/sampled": 500.0, "tokens/trained": 200.0, "time/rollout_s": 9.0, "time/verify_s": 3.0}
METRICS |= {"time/update_s": 6.0, "gpu/rollout_s": 0.0, "gpu/update_s": 0.0, "reward/mean": 0.5}


def scores(*values: float) -> Rewards:
    return [[value] for value in values]


def rewards(before: Rewards, **after: Rewards) -> Mapping[tuple[int, str, str], Rewards]:
    names = {name.replace("-", "_"): name for name in AGENTS}
    found = {(0, TEST, names[name]): before for name in after}
    return found | {(2, TEST, names[name]): values for name, values in after.items()}


@pytest.fixture
def grid(tmp_path: Path) -> GridPlan:
    """HACPO lifts qwen from 1 to 3 of 4 and llama from 1 to 2; GSPO x 2, each agent alone, lifts both to 2."""
    before = scores(1, 0, 0, 0)
    together = rewards(before, qwen_tiny=scores(1, 1, 1, 0), llama_tiny=scores(1, 1, 0, 0))
    ratios = {"ratio_cross/mean": 0.9, "clip_cross/stopped_share": 0.25, "ratio_own/mean": 1.0}
    plans = [finished(tmp_path, "hacpo", rewards=together, metrics=METRICS | ratios)]
    twice = METRICS | {"tokens/sampled": 1000.0}
    for agent in AGENTS:
        alone = rewards(before, **{agent.replace("-", "_"): scores(1, 0, 1, 0)})
        plans.append(finished(tmp_path, "gspo_x2", agents=[agent], rewards=alone, metrics=twice))
    return grid_of(plans, table="plain", benchmarks=[TEST])


def test_report_lists_what_the_rules_of_health_find(grid: GridPlan, tmp_path: Path) -> None:
    said = section(text_of(grid), "Health")
    assert said.strip() == "No rule of `hacpo health` found anything in the metrics of these runs."
    together = rewards(scores(1, 0, 0, 0), qwen_tiny=scores(1, 1, 1, 0), llama_tiny=scores(1, 1, 0, 0))
    finding = Finding("sampler_differs", "qwen-tiny", "", 1, "they differ")
    plan = finished(tmp_path, "hacpo", seed=7, rewards=together, metrics=METRICS, findings=[finding])
    found = section(text_of(grid_of([plan], table="plain", benchmarks=[TEST])), "Health")
    assert "| HACPO | qwen-tiny | sampler differs | 7 | 1 to the end | they differ |" in found


def runs_of(grid: GridPlan) -> GridRuns:
    def root(name: str) -> Path:
        return grid.plans[name].root

    return read_runs(grid.record, lambda name: experiment_status(root(name)), root)


def text_of(grid: GridPlan) -> str:
    return to_markdown(report_content(read_results(grid)))


def section(text: str, title: str) -> str:
    """A part of a report, from its heading to the next."""
    assert f"## {title}\n" in text, title
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def row(text: str, *labels: str) -> list[str]:
    """The figures of the one table row that begins with these labels."""
    start = "| " + " | ".join(labels) + " | "
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.removeprefix(start).removesuffix(" |").split(" | ")


def accuracy(text: str, agent: str, method: str) -> list[str]:
    return row(section(text, "Accuracy"), "tiny", agent, method)


def lead(text: str, theirs: str, *place: str) -> list[str]:
    """The figures of HACPO against another method, for a pair and an agent or over all agents."""
    return row(section(text, "Differences"), f"HACPO − {theirs}", *(place or ("", "all agents")))


def test_table_shows_accuracy_before_and_after(grid: GridPlan) -> None:
    text = text_of(grid)
    assert accuracy(text, "qwen-tiny", "HACPO") == ["0.750", "1.0k", "1 of 1"]
    assert accuracy(text, "llama-tiny", "HACPO") == ["0.500", "1.0k", "1 of 1"]
    assert accuracy(text, "qwen-tiny", "GSPO x 2") == ["0.500", "2.0k", "1 of 1"]
    assert accuracy(text, "llama-tiny", "before training") == ["0.250", "", ""]


def test_accuracy_before_training_is_a_mean_over_seeds_whichever_runs_are_there(tmp_path: Path) -> None:
    plans = []
    for method, seed, right in (("hacpo", 0, 1), ("gspo", 0, 1), ("hacpo", 1, 3)):
        before = scores(*[1] * right, *[0] * (4 - right))
        own = rewards(before, qwen_tiny=before, llama_tiny=before)
        plans.append(finished(tmp_path, method, seed=seed, rewards=own, metrics=METRICS))
    text = text_of(grid_of(plans, benchmarks=[TEST]))
    assert accuracy(text, "qwen-tiny", "before training")[0] == "0.500"


def test_differences_are_paired_by_agent_seed_and_problem(grid: GridPlan) -> None:
    runs = runs_of(grid)
    found = difference(runs, REFERENCE, Variant("gspo_x2"), [("tiny", "qwen-tiny")])
    assert isinstance(found, Difference)
    assert (found.value, found.num_seeds, found.num_problems) == (25.0, 1, 4)
    # qwen: problem 2 won; llama: problem 2 won, problem 3 lost. Both together: (0 + 1 + 0 + 0 - 0 ...) / 8.
    both = difference(runs, REFERENCE, Variant("gspo_x2"), runs.places())
    assert isinstance(both, Difference)
    assert both.value == pytest.approx(12.5)
    assert lead(text_of(grid), "GSPO x 2")[0] == "+12.5"


def test_benchmark_without_a_scored_problem_leaves_the_rest_of_the_report(grid: GridPlan, tmp_path: Path) -> None:
    unscored = rewards(scores(1, 0, 0, 0), qwen_tiny=scores(*[math.nan] * 4), llama_tiny=scores(1, 1, 1, 0))
    other = finished(tmp_path / "other", "naive", rewards=unscored, metrics=METRICS)
    text = text_of(grid_of([*grid.plans.values(), other], benchmarks=[TEST]))
    assert lead(text, "Naive", "tiny", "qwen-tiny")[0] == "— (no problem scored in both)"
    assert lead(text, "Naive", "tiny", "llama-tiny")[0] == "-25.0"
    assert accuracy(text, "qwen-tiny", "Naive")[0] == "—"
    assert "nan" not in text


def test_baseline_of_ones_choice_gets_a_table_unless_it_is_the_only_other_method(grid: GridPlan) -> None:
    chosen = replace(
        grid, config=replace(grid.config, report=replace(grid.config.report, against=["gspo_x2", "hacpo"]))
    )
    text = text_of(chosen)
    differences = section(text, "Differences")
    ours, _, others = differences.partition("### The other methods against HACPO\n")
    assert "against GSPO x 2" not in differences, "it is the only other method, so that says the same"
    assert row(ours, "HACPO − GSPO x 2", "tiny", "qwen-tiny")[0] == "+25.0"
    assert row(others, "GSPO x 2 − HACPO", "tiny", "qwen-tiny")[0] == "-25.0"
    assert text.count("is corrected for the number of rows") == 1


def test_p_values_are_corrected_for_the_rows_of_one_kind(grid: GridPlan) -> None:
    text = text_of(grid)
    agents = [lead(text, "GSPO x 2", "tiny", agent) for agent in AGENTS]
    raw, corrected = [float(figures[2]) for figures in agents], [float(figures[3]) for figures in agents]
    assert corrected == pytest.approx(holm(raw), abs=2e-3)
    joint = lead(text, "GSPO x 2")
    assert joint[2] == joint[3], "one comparison over all agents"


def test_ratios_are_over_steps(grid: GridPlan) -> None:
    text = text_of(grid)
    found = row(text, "tiny", "qwen-tiny", "HACPO", "s_hete")
    assert found == ["0.90000", "0.90000", "0.90000", "0.00000", "—", "—", "25.0 %"]
    printed = ratio_table(read_results(grid), is_printed=True)
    assert printed is not None
    assert not printed.map(lambda text: "paper" in text).any(axis=None)  # Table 6 is of another agent


def test_interval_is_over_seeds(tmp_path: Path) -> None:
    plans = [
        finished(
            tmp_path,
            "hacpo",
            seed=seed,
            rewards=rewards(scores(0, 0), qwen_tiny=after, llama_tiny=after),
            metrics=METRICS,
        )
        for seed, after in enumerate((scores(1, 1), scores(1, 0), scores(1, 0)))
    ]
    # 1, 1/2, 1/2: mean 2/3, deviation sqrt(1/12), t = 4.3027.
    width = 4.3027 * math.sqrt(1 / 12) / math.sqrt(3)
    figure = accuracy(text_of(grid_of(plans, benchmarks=[TEST])), "qwen-tiny", "HACPO")[0]
    assert figure == f"0.667 ± {width:.3f}"


def test_best_of_samples_is_scored_as_such(tmp_path: Path) -> None:
    after = {(2, TEST, agent): [[0, 1], [0, 0]] for agent in AGENTS}
    before = {(0, TEST, agent): [[0, 0], [0, 0]] for agent in AGENTS}
    plan = finished(tmp_path, "hacpo", rewards=before | after, metrics=METRICS, headline="best@2")
    grid = grid_of([plan], benchmarks=[TEST])
    assert accuracy(text_of(grid), "qwen-tiny", "HACPO")[0] == "0.500", "avg@2 would be 0.25"
    (run, *_) = (by_seed[0] for by_seed in runs_of(grid).by_seed.values())
    assert list(problem_scores(run.root, 2, TEST, run.agent, 0.5)) == [1.0, 0.0]


def test_runs_on_other_problems_are_not_compared(grid: GridPlan, tmp_path: Path) -> None:
    longer = rewards(scores(0, 0, 0), qwen_tiny=scores(1, 1, 1), llama_tiny=scores(1, 1, 1))
    other = finished(tmp_path / "other", "naive", rewards=longer, metrics=METRICS)
    joined = grid_of([*grid.plans.values(), other], benchmarks=[TEST])
    assert lead(text_of(joined), "Naive")[0] == "— (different problems)"


def test_missing_cells_say_why(grid: GridPlan) -> None:
    states = {
        "naive": ExperimentState("failed", "Traceback ...\nStoreError: the disk is full"),
        "grpo": ExperimentState("unavailable", "pair.agents.a.path: /m is no folder"),
        "gspo": ExperimentState("missing", "not run"),
    }
    extra = {GridCell("tiny", name, "", 0, "qwen-tiny", f"x-{name}"): state for name, state in states.items()}
    text = text_of(grid_of(list(grid.plans.values()), extra=extra, benchmarks=[TEST]))
    assert "- failed: StoreError: the disk is full — Naive seed 0 (qwen-tiny)" in text
    assert "- unavailable: pair.agents.a.path: /m is no folder — GRPO seed 0 (qwen-tiny)" in text
    assert "- missing: not run — GSPO seed 0 (qwen-tiny)" in text
    assert accuracy(text, "qwen-tiny", "Naive") == ["—", "", "0 of 1"]
    number = len(grid.plans) + 3
    top = (
        f"**Incomplete: 3 of {number} experiments have no result (1 failed, 1 unavailable, 1 missing); they are listed"
    )
    assert text.splitlines()[2].startswith(top)


def test_torn_experiment_is_missing_and_the_others_are_reported(grid: GridPlan) -> None:
    torn = next(plan for plan in grid.plans.values() if plan.config.method.name == "hacpo")
    (torn.root / "steps" / "000002" / "metrics.json").write_text("{}", encoding="utf-8")
    text = text_of(grid)
    assert re.search(r"- unreadable: .*metrics\.json.* — HACPO seed 0 \(qwen-tiny, llama-tiny\)", text)
    assert accuracy(text, "qwen-tiny", "HACPO") == ["—", "", "0 of 1"]
    assert accuracy(text, "qwen-tiny", "GSPO x 2") == ["0.500", "2.0k", "1 of 1"]


def test_report_is_written_with_its_figures(grid: GridPlan, tmp_path: Path) -> None:
    page = write_report(read_results(grid), tmp_path / "out").page
    assert page == tmp_path / "out" / "report.html"
    html = page.read_text(encoding="utf-8")
    drawn = sorted(path.name for path in (tmp_path / "out" / "figures").iterdir())
    measured = ["clip_cross_stopped_share.svg", "ratio_cross_mean.svg", "reward_mean.svg", "verdict_1.svg"]
    assert drawn == measured, "only what was measured"
    assert html.count("<figure") == html.count("data:image/svg+xml") == len(drawn)
    assert not re.search(r"<[^>]* (src|href)=\"(?!data:|#)", html.partition("</main>")[0])
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert all(f"(figures/{name})" in markdown for name in drawn)
    first = {path.name: path.read_bytes() for path in (tmp_path / "out" / "figures").iterdir()}
    write_report(read_results(grid), tmp_path / "out")
    assert all((tmp_path / "out" / "figures" / name).read_bytes() == content for name, content in first.items())


def test_verdict_stands_first_and_counts_every_agent(tmp_path: Path) -> None:
    before, plans = scores(*[0] * 8), []
    for seed in range(2):
        for method, correct in (("hacpo", 7), ("naive", 7), ("gspo", 2)):
            after = scores(*[1] * correct, *[0] * (8 - correct))
            own = rewards(before, qwen_tiny=after, llama_tiny=after)
            plans.append(finished(tmp_path, method, seed=seed, rewards=own, metrics=METRICS))
    grid = grid_of(plans, benchmarks=[TEST])
    text = text_of(replace(grid, config=replace(grid.config, about="Sums of *three* digits.")))
    verdict = section(text, "Verdict")
    assert row(verdict, "HACPO − GSPO")[:2] == ["win", "+62.5"]
    assert row(verdict, "HACPO − Naive")[:3] == ["tie", "+0.0", "+0.0 to +0.0"]
    assert "**Tie**: HACPO is level with Naive (95 % interval +0.0 to +0.0, p = 1.000 after Holm, 2 seeds)" in verdict
    assert text.index("Sums of \\*three\\* digits.") < text.index("## Verdict") < text.index("## Accuracy")


def test_one_seed_gives_a_difference_over_problems_and_no_verdict(grid: GridPlan) -> None:
    verdict = section(text_of(grid), "Verdict")
    assert row(verdict, "HACPO − GSPO x 2")[:2] == ["one seed", "+12.5"]
    assert "**One seed**: HACPO is 12.5 points ahead of GSPO x 2 (95 % interval over problems alone " in verdict
    (comparison,) = report_content(read_results(grid))["comparisons"]
    assert set(comparison.forest.table["verdict"]) == {"one seed"} <= set(charts.VERDICTS)


def test_label_of_an_entry_is_no_markup(grid: GridPlan, tmp_path: Path) -> None:
    label = "--><script>alert(1)</script>](javascript:x) <b> | `"
    labelled = replace(
        grid, cells=[replace(cell, label=label) for cell in grid.cells], config=replace(grid.config, title=label)
    )
    page = write_report(read_results(labelled), tmp_path / "out").page.read_text(encoding="utf-8")
    own = page.partition("<body>")[2].partition("</main>")[0]
    own = re.sub(r'<script type="application/json">[^<]*</script>', "", own)
    assert "<script" not in own and "<b>" not in own and 'href="javascript' not in own
    assert f"HACPO ({escape(label)})" in own


def test_printed_values_stand_beside_missing_ones() -> None:
    pair = "qwen3-1.7b-base+qwen3-4b-base"
    not_run = ExperimentState("missing", "not run")
    cells = {GridCell(pair, "hacpo", "", 0, agent, "x"): not_run for agent in pair.split("+")}
    benchmarks = compose(pair, "hacpo").evaluate.final
    empty = grid_of([], pair=pair, extra=cells, table="table1", benchmarks=benchmarks)
    text = text_of(empty)
    assert row(text, pair, "qwen3-1.7b-base", "HACPO")[0] == "— (paper 0.690)"
    assert row(text, pair, "qwen3-4b-base", "HACPO")[-2:] == ["— (paper 0.601)", "0 of 1"]
    assert "10 of 80 rows" in text
    assert row(text, "Table 1", "GSPO")[:3] == ["6", "+3.20", "+3.28"]


@pytest.mark.browser
@pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
def test_browser_draws_the_charts_and_prints_one_page(grid: GridPlan, tmp_path: Path) -> None:
    page = write_report(read_results(grid), tmp_path / "out").page
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": PHONE[0], "height": PHONE[1]})
        errors: list[str] = []
        opened.on("console", lambda message: errors.append(message.text))
        opened.goto(page.as_uri())
        opened.wait_for_function("document.querySelectorAll('figure[data-drawn] svg').length === 4")
        assert not errors
        assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        assert opened.pdf().count(b"/Type /Page\n") == 1


def test_report_is_written_again_from_the_results_alone(grid: GridPlan, tmp_path: Path) -> None:
    results = read_results(grid)
    write_report(results, tmp_path / "one")
    save_results(results, tmp_path / "results.json.gz")
    for plan in grid.plans.values():
        shutil.rmtree(plan.root)
    write_report(load_results(tmp_path / "results.json.gz"), tmp_path / "two")
    texts = [(tmp_path / name / "report.md").read_text(encoding="utf-8") for name in ("one", "two")]
    assert texts[0] == texts[1] and "+12.5" in texts[0] and "0.90000" in texts[0]
    (tmp_path / "results.json.gz").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"results.json.gz: got no results of a grid"):
        load_results(tmp_path / "results.json.gz")


def test_sentence_says_who_is_ahead_and_whether_that_is_more_than_noise(grid: GridPlan, tmp_path: Path) -> None:
    one = write_report(read_results(grid), tmp_path / "one").sentences
    assert len(one) == 1
    assert re.fullmatch(
        r"HACPO is 12\.5 points ahead of GSPO x 2 \(95 % interval over problems alone .+, p .+ after Holm, 1 seed\): "
        r"no more than the noise of problems, seeds aside",
        one[0],
    )
    before, plans = scores(*[0] * 8), []
    for seed in range(1, 4):
        for method, correct in (("hacpo", 1), ("naive", 1), ("gspo", 7)):
            own = rewards(
                before, **dict.fromkeys(("qwen_tiny", "llama_tiny"), scores(*[1] * correct, *[0] * (8 - correct)))
            )
            plans.append(finished(tmp_path, method, seed=seed, rewards=own, metrics=METRICS))
    naive, gspo = write_report(read_results(grid_of(plans, benchmarks=[TEST])), tmp_path / "more").sentences
    assert naive.startswith("HACPO is level with Naive (") and naive.endswith(": no more than noise")
    assert gspo.startswith("HACPO is 75.0 points behind GSPO (") and gspo.endswith("3 seeds): more than noise")


def test_command_page_report_and_mlflow_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_tracking: Path
) -> None:
    """The same words, interval and p-value, also of a grid whose report has tables of other baselines."""
    rng, plans = np.random.default_rng(3), []
    falls = Finding("accuracy_falls", "qwen-tiny", "", 2, "accuracy on dev fell from 0.600 before training to 0.510")
    for seed in range(3):
        for method, right in (("hacpo", 0.7), ("gspo", 0.5), ("naive", 0.68)):
            own = {name: scores(*rng.binomial(1, right, 40).astype(float)) for name in ("qwen_tiny", "llama_tiny")}
            findings = [falls] if (method, seed) == ("naive", 1) else []
            written = {"metrics": METRICS, "is_tracked": True, "findings": findings}
            own_rewards = rewards(scores(*[0] * 40), **own)
            plans.append(finished(tmp_path / "experiments", method, seed=seed, rewards=own_rewards, **written))
            save_plan(replace(plans[-1], contents={}))
    grid = grid_of([find_plan(tmp_path, plan.id) for plan in plans], benchmarks=[TEST], against=["naive"])
    save_grid(tmp_path, grid.record)
    shutil.copy(empty_tracking, tmp_path / "mlflow.db")
    monkeypatch.setattr("flows.runs.tracking._sync_lacking", lambda *_: False)  # of trainings alone
    _show_results(grid, grid, tmp_path, begun_at=0.0)
    printed = capsys.readouterr().out
    sentences = [line for line in printed.splitlines() if " after Holm" in line]
    assert len(sentences) == 2 and sentences == printed.splitlines()[-2:]

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    results = client.search_runs([client.get_experiment_by_name("hacpo-results").experiment_id])
    assert {run.data.tags["verdict.grid"] for run in results} == {"; ".join(sentences)}
    assert len(results) == 9

    with TestClient(create_app(tmp_path, connect=lambda: None), base_url="http://localhost") as page:
        first, matrix = (unescape(page.get(address).text) for address in ("/", "/grid/grid"))
    markdown = unescape((tmp_path / "reports" / "grid" / "report.md").read_text(encoding="utf-8"))
    verdict = section(markdown, "Verdict").partition("### The other methods")[0]
    words = set()
    for title, sentence in zip(("GSPO", "Naive"), sentences, strict=True):
        word, points, interval, p_value, num_seeds = row(verdict, f"HACPO − {title}")
        words.add(word)
        assert f'<span class="verdict {word}">{word}</span> {sentence}</li>' in first
        assert f'title="{sentence}"' in matrix, "the lead over all agents"
        said = re.search(r"HACPO is (.+) points .+ interval (.+), p (.+) after Holm, (.+) seeds\)", sentence)
        assert said is not None
        shown = (points.lstrip("+-"), interval.replace("-", "−"), p_value, num_seeds)
        assert shown == (said[1], said[2], said[3].removeprefix("= "), said[4])
    assert words == {"win", "tie"}
    headline = sentences[1]  # Naive is the best of the others
    assert f"**Tie**: {headline}." in markdown and f'<span class="verdict tie">tie</span> {headline}.' in matrix
    assert f"health   {plans[5].id}, qwen-tiny: {falls.text}" in printed, "the table of the command says it"
