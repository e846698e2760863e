"""What the doctor says of engines, with and without them (`make test-vllm` has vLLM)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from flows import doctor

has_vllm = importlib.util.find_spec("vllm") is not None
needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the deepspeed extra")


@pytest.mark.skipif(has_vllm, reason="vLLM is installed here")
def test_missing_vllm_is_said_with_what_to_install() -> None:
    found = doctor._vllm()
    assert (found.is_ok, found.is_required) == (False, False)
    assert found.detail.startswith("not installed (pip install 'hacpo[vllm]'")


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(not has_vllm, reason="vLLM is not installed here; make test-vllm")
def test_installed_vllm_is_tried() -> None:
    found = doctor._vllm()
    assert found.is_ok, found.detail
    assert "samples, and agrees with torch to " in found.detail


@pytest.mark.vllm
@pytest.mark.skipif(not has_vllm, reason="vLLM is not installed here; make test-vllm")
def test_torch_that_does_not_fit_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "2.12.0" if name == "torch" else version(name))
    found = doctor._vllm()
    assert not found.is_ok
    assert "torch is 2.12.0; pip install 'torch==2.13.0'" in found.detail


def test_missing_deepspeed_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = doctor._deepspeed()
    assert (found.is_ok, found.is_required) == (False, False)
    assert found.detail == "not installed (pip install 'hacpo[deepspeed]')"


@pytest.mark.deepspeed
@pytest.mark.slow
@needs_deepspeed
def test_installed_deepspeed_is_tried() -> None:
    found = doctor._deepspeed()
    assert found.is_ok, found.detail
    assert found.detail.startswith(f"deepspeed {version('deepspeed')}: trains, and agrees with torch to ")


@pytest.mark.deepspeed
@needs_deepspeed
@pytest.mark.parametrize(
    ("package", "old", "wanted"),
    [("torch", "1.13.0", "torch>=2.0.0"), ("deepspeed", "0.18.0", "deepspeed<0.20,>=0.19.8")],
)
def test_version_that_does_not_fit_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, old: str, wanted: str
) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: old if name == package else version(name))
    found = doctor._deepspeed()
    assert not found.is_ok
    assert f"{package} is {old}; pip install '{wanted}'" in found.detail


@pytest.mark.deepspeed
@needs_deepspeed
def test_deepspeed_says_nothing_compiles_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    code = "from flows import doctor; print(doctor.train_with_deepspeed())"
    root = Path(__file__).parents[2]
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.splitlines() == [done.stdout.strip()]
    assert done.stdout.startswith("trains, and agrees with torch to ")
    assert done.stderr == ""
    assert not list(tmp_path.rglob("*"))
