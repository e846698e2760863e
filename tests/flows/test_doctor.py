"""What the doctor says of vLLM, with and without it (`make test-vllm` has it)."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version

import pytest

from flows import doctor

has_vllm = importlib.util.find_spec("vllm") is not None


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
