"""What `hacpo prefetch` asks the hub for, and what it says when the hub is away."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from flows.cli import main
from hacpo_core.data import problem_sets
from hacpo_core.engines.models import folders

PAIR = "qwen3-1.7b-base+qwen3-4b-base"


def fetched(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["hacpo", "prefetch", PAIR, *words])
    monkeypatch.setattr(problem_sets, "UNREACHABLE_HUBS", set())
    folders._downloaded.cache_clear()
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HACPO_DATA_DIR", str(tmp_path / "none"))


def test_models_training_set_and_benchmarks_are_fetched_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    (tmp_path / "file.jsonl").write_text(json.dumps({"problem": "1+1", "answer": "2"}), encoding="utf-8")

    def model(name: str, **_: Any) -> str:
        asked.append(name)
        return str(tmp_path)

    def data(name: str, file: str, **options: Any) -> str:
        asked.append((name, file, options["revision"]))
        return str(tmp_path / "file.jsonl")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", model)
    monkeypatch.setattr(problem_sets, "hf_hub_download", data)
    assert fetched(monkeypatch, "evaluate.final=[math, amc23, minerva, gsm8k]") == 0
    commit = "0530c78699ea5e8eb5530600900e1f328b48acad"
    assert asked[:2] == ["Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-4B-Base"]
    assert set(asked[2:]) == {
        ("DigitalLearningGmbH/MATH-lighteval", "data/train-00000-of-00001.parquet", commit),
        ("DigitalLearningGmbH/MATH-lighteval", "data/test-00000-of-00001.parquet", commit),
        ("HuggingFaceH4/MATH-500", "test.jsonl", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
        ("math-ai/amc23", "test-00000-of-00001.parquet", "80815d37005feb82cd7f8fbc6901d5d3eff43057"),
        ("math-ai/minervamath", "test.jsonl", "ee46ddc498933b1977577953250ca5c66be64f96"),
        ("openai/gsm8k", "main/test-00000-of-00001.parquet", "740312add88f781978c0658806c59bc2815b9866"),
    }
    assert "all is here; set HF_HUB_OFFLINE=1" in capsys.readouterr().out


def test_without_a_network_every_missing_file_and_the_remedy_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", away)
    monkeypatch.setattr(problem_sets, "hf_hub_download", away)
    assert fetched(monkeypatch) != 0
    message = capsys.readouterr().err
    for name in ("Qwen/Qwen3-4B-Base", "MATH-lighteval", "math-ai/amc23", "math-ai/olympiadbench"):
        assert name in message
    assert "or run `hacpo prefetch` where there is a network" in message
