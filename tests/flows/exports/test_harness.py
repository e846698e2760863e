"""The bridge to lm-eval-harness: what it refuses, and a real evaluation where lm-eval is installed."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flows.cli import main
from flows.exports.harness import ExportedModel, HarnessOptions, check_options, harness_rows, run_harness
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.files import read_json
from hacpo_core.phases.runner import DirectRunner

SHORT = ("train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]")
CHOICE = """
task: is_three
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/sums.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{problem}}"
doc_to_choice: ["3", "8"]
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task of one's own and its data."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"problem": f"{a}-{a - 3}"} for a in range(4, 12)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "is_three.yaml").write_text(CHOICE.replace("FOLDER", str(folder)), encoding="utf-8")
    return folder


def said(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line of `hacpo evaluate` on standard error."""
    monkeypatch.setattr("sys.argv", ["hacpo", "evaluate", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert isinstance(caught.value.code, int)
    return caught.value.code, line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x", "--with", "other", "gsm8k"], "--with: got 'other', expected lm-eval"),
        (["x", "--with", "lm-eval", "--benchmarks", "math500"], "--benchmarks: has no effect with --with lm-eval"),
        (
            ["x", "gsm8k", "--limit", "3", "--agent", "qwen"],
            "gsm8k, --limit, --agent: no effect without --with lm-eval",
        ),
        (["x", "--apply-chat-template"], "--apply-chat-template: no effect without --with lm-eval"),
        (["x", "--with", "lm-eval", "gsm8k"], "experiment 'x': expected the id of one experiment in"),
    ],
)
def test_mistake_is_one_sentence(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, line = said(words, monkeypatch, capsys)
    assert exit_code == 2
    assert line.startswith(f"hacpo: {expected}")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (HarnessOptions([]), "got no task; name some"),
        (HarnessOptions(["a"], include_path="/no/such/folder"), "--include-path: /no/such/folder is not a folder"),
        (HarnessOptions(["a"], batch_size="0"), "--batch-size: got '0', expected a number such as 8, or auto"),
    ],
)
def test_option_without_meaning_is_refused(options: HarnessOptions, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_options(options)


@pytest.mark.slow
def test_missing_lm_eval_is_said_with_its_extra(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = small_plan("gspo", *SHORT)
    run_experiment(planned, DirectRunner())
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    words = [planned.id, "--with", "lm-eval", "gsm8k", "--runs-dir", planned.config.runtime.runs_dir]
    exit_code, line = said(words, monkeypatch, capsys)
    assert exit_code == 3
    assert "lm_eval cannot be imported" in line
    assert line.endswith("pip install 'hacpo[lm-eval]'")


def test_row_of_each_metric_has_its_error() -> None:
    figures = {
        "alias": "sums",
        "sample_len": 8,
        "acc,none": 0.25,
        "acc_stderr,none": 0.125,
        "exact_match,strict": 1,
        "exact_match_stderr,strict": "N/A",
    }
    model = ExportedModel(Path("model"), "x", "qwen", 2, "sums128:0")
    rows = list(harness_rows(model, {"results": {"sums": figures}, "n-shot": {"sums": 5}}))
    same = {"agent": "qwen", "step": 2, "task": "sums", "num_fewshot": 5}
    assert rows == [
        {**same, "metric": "acc", "filter": "none", "value": 0.25, "stderr": 0.125},
        {**same, "metric": "exact_match", "filter": "strict", "value": 1, "stderr": None},
    ]


def test_lm_eval_evaluates_both_agents_and_its_results_are_kept(
    small_plan: Callable[..., Plan],
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("lm_eval", reason="needs the lm-eval extra")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    planned = small_plan("gspo", *SHORT)
    run_experiment(planned, DirectRunner())
    words = ["--with", "lm-eval", "is_three", "--include-path", str(tasks), "--limit", "6", "--batch-size", "2"]
    runs_dir = planned.config.runtime.runs_dir
    monkeypatch.setattr("sys.argv", ["hacpo", "evaluate", planned.id, *words, "--json", "--runs-dir", runs_dir])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["agent"], row["step"], row["task"], row["metric"]) for row in rows] == [
        ("qwen", 1, "is_three", "acc"),
        ("llama", 1, "is_three", "acc"),
    ]
    for row in rows:
        (path,) = (planned.root / "lm-eval" / "000001").glob(f"{row['agent']}.*.json")
        kept = read_json(path)
        assert (kept["experiment"], kept["agent"], kept["step"]) == (planned.id, row["agent"], 1)
        assert kept["options"]["limit"] == 6
        assert kept["results"]["is_three"]["acc,none"] == row["value"]
        assert kept["n-samples"]["is_three"] == {"original": 8, "effective": 6}
    assert list((tmp_path / "temporary").glob("hacpo-lm-eval-*")) == []
    once_more = run_harness(planned, HarnessOptions(["is_three"], include_path=str(tasks), limit=6), agent="qwen")
    assert once_more == rows[:1]
    assert len(list((planned.root / "lm-eval" / "000001").iterdir())) == 3


def test_task_that_there_is_not_is_said_before_anything_is_exported(
    small_plan: Callable[..., Plan], tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="needs the lm-eval extra")
    planned = small_plan("gspo", *SHORT)
    run_experiment(planned, DirectRunner())
    monkeypatch.setattr("flows.exports.harness.export_agent", None)
    with pytest.raises(ConfigError, match=r"no task is named no_such_task; `lm-eval ls tasks` lists the tasks"):
        run_harness(planned, HarnessOptions(["is_three", "no_such_task"], include_path=str(tasks)))


def test_failure_of_lm_eval_is_one_sentence(
    small_plan: Callable[..., Plan], tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="needs the lm-eval extra")
    planned = small_plan("gspo", *SHORT)
    run_experiment(planned, DirectRunner())
    (tasks / "sums.jsonl").unlink()
    with pytest.raises(EngineError, match=r"lm-eval failed for qwen on is_three: FileNotFoundError: .*sums.jsonl"):
        run_harness(planned, HarnessOptions(["is_three"], include_path=str(tasks)))
