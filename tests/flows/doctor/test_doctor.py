"""What the doctor says of engines, with and without them (`make test-vllm` has vLLM)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.doctor import machine as doctor
from flows.doctor.engine_trial import quick_trial
from hacpo_core.engines.sampling.base import Sampled
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from tests.flows.doctor.hanging import hang_in_ray, hang_with_a_child

has_vllm = importlib.util.find_spec("vllm") is not None
needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the deepspeed extra")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the ray extra")
needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs the lora extra")


@pytest.mark.skipif(has_vllm, reason="vLLM is installed here")
def test_missing_vllm_is_said_with_what_to_install() -> None:
    found = doctor.check_vllm()
    assert (found.is_ok, found.is_required) == (False, False)
    assert found.detail.startswith("not installed (pip install 'hacpo[vllm]'")


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(not has_vllm, reason="vLLM is not installed here; make test-vllm")
def test_installed_vllm_is_tried() -> None:
    found = doctor.check_vllm()
    assert found.is_ok, found.detail
    assert "samples and trains; sampler and learner agree to " in found.detail


@pytest.mark.vllm
@pytest.mark.skipif(not has_vllm, reason="vLLM is not installed here; make test-vllm")
def test_torch_that_does_not_fit_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "2.12.0" if name == "torch" else version(name))
    found = doctor.check_vllm()
    assert not found.is_ok
    assert "torch is 2.12.0; pip install 'torch==2.13.0'" in found.detail


def test_missing_deepspeed_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = doctor.check_deepspeed()
    assert (found.is_ok, found.is_required) == (False, False)
    assert found.detail == "not installed (pip install 'hacpo[deepspeed]')"


@pytest.mark.parametrize(("look", "extra"), [(doctor.check_ray, "ray"), (doctor.check_peft, "lora")])
def test_missing_extra_is_said_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[], doctor.Finding], extra: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = look()
    assert (found.is_ok, found.is_required) == (False, False)
    assert found.detail == f"not installed (pip install 'hacpo[{extra}]')"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.system
@needs_ray
def test_installed_ray_is_tried_and_nothing_is_left(leftovers: Callable[[], list[str]]) -> None:
    found = doctor.check_ray()
    assert found.is_ok, found.detail
    assert found.detail.startswith(f"ray {version('ray')}: samples and trains; ")
    assert not leftovers()


@pytest.mark.slow
@needs_peft
def test_installed_peft_is_tried() -> None:
    found = doctor.check_peft()
    assert found.is_ok, found.detail
    assert found.detail.startswith(f"peft {version('peft')}: adapters work, and merged weights agree to ")


@pytest.mark.slow
def test_sampler_with_other_weights_than_the_learner_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = TransformersSampler.sample

    def wrong(self: TransformersSampler, *args: Any, **kwargs: Any) -> Sampled:
        sampled = inner(self, *args, **kwargs)
        return replace(sampled, logprobs=replace(sampled.logprobs, value_N=sampled.logprobs.value_N + np.float32(0.01)))

    monkeypatch.setattr(TransformersSampler, "sample", wrong)
    with pytest.raises(RuntimeError, match=r"sampler and learner differ by 1.0e-02 nats, expected at most 0.001"):
        quick_trial()


@needs_peft
def test_adapters_that_are_lost_on_the_way_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from hacpo_core.engines.models import lora

    monkeypatch.setattr(lora, "merged_weight", lambda layer, weight: weight)
    with pytest.raises(RuntimeError, match="logits of merged weights and adapters differ by "):
        doctor.merge_with_peft()


@pytest.mark.slow
@needs_peft
def test_trial_that_does_not_answer_is_ended_with_all_that_it_started(
    leftovers: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hang_with_a_child_of("peft", hang_with_a_child, tmp_path, monkeypatch, limit_s=6)
    assert not leftovers()


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.slow
@needs_ray
def test_ray_that_does_not_answer_is_ended_with_all_that_it_started(
    leftovers: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hang_with_a_child_of("ray", hang_in_ray, tmp_path, monkeypatch, limit_s=60)
    assert not leftovers()


def hang_with_a_child_of(
    name: str, trial: Callable[[], None], folder: Path, monkeypatch: pytest.MonkeyPatch, *, limit_s: float
) -> bool:
    """Whether the trial had really begun to hang when the doctor gave it up, in these words."""
    begun = folder / "begun"
    monkeypatch.setenv("HACPO_TEST_BEGUN", str(begun))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # where the child finds this file
    code = f"from {trial.__module__} import {trial.__name__} as hang; hang()"
    found = doctor.check_engine(name, code, extra={"peft": "lora"}.get(name), limit_s=limit_s)
    assert not found.is_ok
    assert found.detail.endswith(f" did not answer within {limit_s:g} s")
    return begun.exists()


@pytest.mark.parametrize(
    ("look", "package", "old", "wanted"),
    [
        pytest.param(doctor.check_ray, "ray", "2.9.0", "ray<3,>=2.60", marks=[pytest.mark.ray, needs_ray]),
        pytest.param(doctor.check_peft, "peft", "0.18.0", "peft<0.22,>=0.21", marks=needs_peft),
        pytest.param(doctor.check_peft, "torch", "1.12.0", "torch>=", marks=needs_peft),
    ],
)
def test_extra_that_does_not_fit_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[], doctor.Finding], package: str, old: str, wanted: str
) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: old if name == package else version(name))
    found = look()
    assert not found.is_ok
    assert f"{package} is {old}; pip install '{wanted}" in found.detail


def test_data_is_looked_for_where_the_project_reads_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HACPO_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert doctor.check_data() == doctor.Finding(
        "data",
        False,
        f"{tmp_path}/data is not a folder; set HACPO_DATA_DIR or data.directory (the embedded task needs none)",
        False,
    )
    (tmp_path / "data").mkdir()
    assert doctor.check_data() == doctor.Finding("data", False, f"{tmp_path}/data: 0 JSONL and Parquet files", False)
    for name in ("a.jsonl", "b.parquet", "c.txt"):
        (tmp_path / "data" / name).touch()
    assert doctor.check_data() == doctor.Finding("data", True, f"{tmp_path}/data: 2 JSONL and Parquet files", False)
    monkeypatch.setenv("HACPO_DATA_DIR", str(tmp_path / "elsewhere"))
    assert "elsewhere is not a folder" in doctor.check_data().detail


def test_disk_is_that_of_the_runs_folder_also_before_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    usage = shutil.disk_usage

    def noted(path: Path) -> Any:
        asked.append(path)
        return usage(path)

    monkeypatch.setattr("shutil.disk_usage", noted)
    assert f"free for {tmp_path / 'not' / 'there'}" in doctor.check_disk(tmp_path / "not" / "there").detail
    assert asked == [tmp_path]


def test_taken_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {"Prefect": port})
        assert doctor.check_ports().detail.startswith(f"{port} (Prefect) in use")
    assert doctor.check_ports().detail == "all free"


@pytest.mark.soak
@pytest.mark.deepspeed
@pytest.mark.slow
@needs_deepspeed
def test_installed_deepspeed_is_tried() -> None:
    found = doctor.check_deepspeed()
    assert found.is_ok, found.detail
    assert found.detail.startswith(f"deepspeed {version('deepspeed')}: samples and trains; ")


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
    found = doctor.check_deepspeed()
    assert not found.is_ok
    assert f"{package} is {old}; pip install '{wanted}'" in found.detail


@pytest.mark.system
@pytest.mark.deepspeed
@needs_deepspeed
def test_deepspeed_says_nothing_compiles_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    words = ("engine.learner=deepspeed", "engine.deepspeed.stage=2")
    code = f"from flows.doctor.engine_trial import quick_trial; print(quick_trial(*{words}))"
    root = Path(__file__).parents[3]
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
    assert done.stdout.startswith("samples and trains; ")
    assert without_leak_report(done.stderr) == []
    assert not list(tmp_path.rglob("*"))


def without_leak_report(said: str) -> list[str]:
    """Lines of a process's words but those with which nanobind reports leaks of triton's bindings at the exit."""
    report = r"nanobind: .*| - leaked (instance|type|function) .*| - \.\.\. skipped remainder|See https://nanobind\..*"
    return [line for line in said.splitlines() if not re.fullmatch(report, line)]


def test_words_of_deepspeed_among_a_leak_report_are_seen() -> None:
    said = """nanobind: leaked 2 types!
 - leaked type "triton._C.libtriton.ir.block"
[2026-11-23 22:10:11,231] [INFO] [logging.py:96:log_dist] DeepSpeed info: version=0.19.8
 - ... skipped remainder
nanobind: this is likely caused by a reference counting issue in the binding code.
See https://nanobind.readthedocs.io/en/latest/refleaks.html"""
    (words,) = without_leak_report(said)
    assert words.endswith("DeepSpeed info: version=0.19.8")
