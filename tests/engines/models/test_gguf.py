"""GGUF files and files in packages as agents' models; what is wrong with one is one line and leaves nothing behind."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from hacpo_core.config import AgentConfig
from hacpo_core.engines.models.loading import load_model, load_tokenizer
from hacpo_core.errors import ModelError
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.initial_model import InitialModel
from tests import gguf_files
from tests.gguf_files import TOKENIZER, small_llama, write_gguf

for package in ("gguf", "accelerate"):
    pytest.importorskip(package, reason="the gguf extra is not installed: pip install 'hacpo[gguf]'")


def initial(path: str | Path, cache: Path, **fields: Any) -> InitialModel:
    return InitialModel("smol", AgentConfig(path=str(path), **fields), cache)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 17, 40, 3, 260, 11]])).logits


def test_converted_model_computes_what_the_original_does(file: Path, tmp_path: Path) -> None:
    folder = initial(file, tmp_path / "models").make()
    torch.testing.assert_close(logits_of(load_model(folder)), logits_of(small_llama()), rtol=1e-5, atol=1e-6)
    text = "Let x = 3, then \\boxed{7} é"
    assert load_tokenizer(folder)(text)["input_ids"] == TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_quantised_tensors_are_dequantised(tmp_path: Path) -> None:
    write_gguf(tmp_path / "q.gguf", quantised=True)
    quantised = logits_of(load_model(initial(tmp_path / "q.gguf", tmp_path / "models").make()))
    exact = logits_of(small_llama())
    difference = float((quantised - exact).abs().max() / exact.abs().max())
    assert 1e-6 < difference < 0.05, "8 bits a weight"


@pytest.mark.parametrize("setting", [None, "eos_token", "pad_token"])
def test_special_tokens_and_template_are_those_of_the_file(
    setting: str | None, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever transformers' release makes of them: some leave pad out, or give Qwen another end."""
    plain = AutoTokenizer.from_pretrained

    def other(*words: Any, **options: Any) -> Any:
        tokenizer = plain(*words, **options)
        if options.get("gguf_file") and setting is not None:
            setattr(tokenizer, setting, "<|box|>" if setting == "eos_token" else None)
            tokenizer.chat_template = None
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", other)
    folder = initial(file, tmp_path / "models").make()
    tokens = AgentTokenizer("smol", AgentConfig(path=str(file)), initial=folder)
    special = tokens.tokenizer.special_tokens_map
    assert special["eos_token"] == "<|im_end|>"
    assert special["pad_token"] == "<|endoftext|>"
    assert special["bos_token"] == "<|im_start|>"
    assert tokens.tokenizer.chat_template == gguf_files.TEMPLATE
    assert tokens.eos_ids == {TOKENIZER.convert_tokens_to_ids("<|im_end|>")}
    assert load_model(folder).generation_config.eos_token_id == TOKENIZER.convert_tokens_to_ids("<|im_end|>")


def test_file_is_converted_once_and_known_by_its_contents(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models"
    folder = initial(file, cache).make()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(file.read_bytes())
    assert initial(moved, cache).contents() == initial(file, cache).contents()
    assert initial(file, cache).make() == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    write_gguf(file, eos="<|box|>")
    assert initial(file, cache).folder != folder
    assert initial(file, cache).contents() != initial(moved, cache).contents()


def test_file_inside_a_package_is_found_without_importing_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "weights_of_mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "small.gguf").write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    found = initial("package:weights_of_mine/small.gguf", tmp_path / "models")
    assert found.contents() == initial(file, tmp_path / "models").contents()
    found.check()
    with pytest.raises(ModelError, match=r"path: the package weights_of_mine has no other.gguf; it has small.gguf"):
        initial("package:weights_of_mine/other.gguf", tmp_path).check()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def no_template(file: Path) -> None:
    write_gguf(file, template=None)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no_gguf": (lambda file: file.write_bytes(b"PK\x03\x04zip"), r"small.gguf is not a GGUF file: it begins with b'PK"),
    "empty": (lambda file: file.write_bytes(b""), r"is not a GGUF file: it begins with b'', expected b'GGUF'; get the"),
    "cut": (cut, r"small.gguf is damaged or incomplete \(.*\); download it again"),
    "header_alone": (lambda file: file.write_bytes(file.read_bytes()[:20]), "is damaged or incomplete"),
    "architecture": (
        lambda file: write_gguf(file, architecture="someday"),
        r"transformers cannot convert this GGUF file of architecture someday \(.*\); use the model's own folder",
    ),
    "missing": (lambda file: file.unlink(), r"path: .*small.gguf does not exist; set it to a .gguf file or a model"),
    "no_template": (no_template, r"has no chat template; .*set pair.agents.smol.chat_template"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_one_line_and_leaves_nothing_half_written(fault: str, file: Path, tmp_path: Path) -> None:
    break_it, message = FAULTS[fault]
    break_it(file)
    with pytest.raises(ModelError, match=message) as caught:
        initial(file, tmp_path / "models").check()
    assert str(caught.value).startswith("pair.agents.smol")
    assert "\n" not in str(caught.value)
    left = [path for path in tmp_path.glob("models/*") if not path.name.endswith(".lock")]
    if fault == "no_template":  # the folder is whole, and serves an agent that names a template
        initial(file, tmp_path / "models", chat_template=gguf_files.TEMPLATE).check()
    else:
        assert left == []


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_missing_extra_is_named(package: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError, match=r"reading GGUF files needs the extra gguf; pip install 'hacpo\[gguf\]'"):
        initial(file, tmp_path / "models").check()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("package:no_such_package/m.gguf", r"path: the package no_such_package is not installed; install it"),
        ("package:json", r"got package:json, expected package:NAME/FILE"),
        ("package:a-b/m.gguf", r"got package:a-b/m.gguf, expected package:NAME/FILE with the name by which"),
    ],
)
def test_package_that_is_not_there_is_one_line(path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        initial(path, tmp_path / "models").check()
