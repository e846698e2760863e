"""What is installed here and really works."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from flows.server import find_server, is_healthy
from hacpo_core.errors import HacpoError

LEAST_FREE_GB = 2.0
VLLM_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined."""

    subject: str
    is_ok: bool
    detail: str
    is_required: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def examine(runs_dir: Path) -> list[Finding]:
    """Packages, engines, verifier, disk, server, GPU and data, in that order."""
    findings = [*_packages(), _try("sampler+learner", _train_something), _try("verifier", _verify_something)]
    free = shutil.disk_usage(runs_dir if runs_dir.exists() else Path.cwd()).free / 2**30
    findings.append(Finding("disk", free >= LEAST_FREE_GB, f"{free:.1f} GiB free for {runs_dir}"))
    findings += [_server(runs_dir), _gpu(), _data()]
    findings.append(_vllm())
    for name, extra in (("deepspeed", "deepspeed"), ("ray", "ray")):
        found = importlib.util.find_spec(name) is not None
        detail = "installed; not yet used by any engine" if found else f"not installed (pip install 'hacpo[{extra}]')"
        findings.append(Finding(name, found, detail, is_required=False))
    return findings


def _packages() -> list[Finding]:
    findings = []
    for line in requires("hacpo") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            findings.append(Finding(requirement.name, False, f"missing; pip install '{requirement}'"))
            continue
        is_ok = requirement.specifier.contains(found, prereleases=True)
        wanted = "" if is_ok else f", expected {requirement.specifier}"
        findings.append(Finding(requirement.name, is_ok, f"{found}{wanted}"))
    return findings


def _try(subject: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, True, check())
    except (HacpoError, OSError, RuntimeError, ImportError, ValueError) as error:
        return Finding(subject, False, f"{type(error).__name__}: {error}")


def _train_something() -> str:
    """Sample from and score with a random model of a few thousand parameters."""
    from hacpo_core.config import EngineConfig, OptimizerConfig, TinyModelConfig
    from hacpo_core.engines.base import SampleRequest, SamplingLimits, ScoreRequest
    from hacpo_core.engines.torch_learner import TorchLearner
    from hacpo_core.engines.transformers_sampler import TransformersSampler
    from hacpo_core.tiny.models import build_model
    from hacpo_core.tiny.tokenizers import build_tokenizer

    config = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
    tokenizer = build_tokenizer(config.tokenizer)
    model = build_model(config, tokenizer)
    sampler = TransformersSampler(model, eos_ids=[int(tokenizer.eos_token_id)], pad_id=0, batch_size=4)
    prompt = tuple(tokenizer.encode("1+2"))
    response = sampler.sample([SampleRequest(prompt, 1)], SamplingLimits(1.0, 1.0, 8))[0]
    learner = TorchLearner(model, optimizer=OptimizerConfig(), engine=EngineConfig(), temperature=1.0, total_updates=1)
    scored = learner.logprobs([ScoreRequest(prompt, response.token_ids)])[0]
    error = max(abs(a - b) for a, b in zip(scored, response.logprobs, strict=True))
    if error > 1e-4:
        raise RuntimeError(f"sampler and learner disagree by {error:.1e} nats")
    return f"transformers and torch agree to {error:.0e} nats"


def _vllm() -> Finding:
    """Whether vLLM is installed, fits torch and transformers, and samples: tried in a process that can be ended."""
    if importlib.util.find_spec("vllm") is None:
        detail = "not installed (pip install 'hacpo[vllm]'; without a GPU see tests/vllm/install.sh)"
        return Finding("vllm", False, detail, is_required=False)
    package = packages_distributions()["vllm"][0]
    wrong = []
    for line in requires(package) or []:
        requirement = Requirement(line.replace("+cpu", ""))
        if requirement.name not in ("torch", "transformers"):
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = version(requirement.name)
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} is {found}; pip install '{requirement.name}{requirement.specifier}'")
    if wrong:
        return Finding("vllm", False, f"{package} {version(package)}: {', '.join(wrong)}", is_required=False)
    command = [sys.executable, "-c", f"import {__name__} as doctor; print(doctor.sample_with_vllm())"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=VLLM_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        detail = f"{package} {version(package)} did not answer within {VLLM_TIMEOUT_S} s"
        return Finding("vllm", False, detail, is_required=False)
    last = ((tried.stdout if tried.returncode == 0 else tried.stderr).strip().splitlines() or ["no word"])[-1]
    return Finding("vllm", tried.returncode == 0, f"{package} {version(package)}: {last}", is_required=False)


def sample_with_vllm() -> str:
    """Start an engine on a random model of a few thousand parameters, sample, and score with the learner."""
    import torch

    from hacpo_core.config import EngineConfig, OptimizerConfig, RolloutConfig, TinyModelConfig, VllmConfig
    from hacpo_core.engines.base import SampleRequest, SamplingLimits, ScoreRequest
    from hacpo_core.engines.torch_learner import TorchLearner
    from hacpo_core.engines.vllm_sampler import VllmSampler
    from hacpo_core.tiny.models import build_model
    from hacpo_core.tiny.tokenizers import build_tokenizer

    tokenizer = build_tokenizer("character")
    model = build_model(TinyModelConfig(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1), tokenizer)
    engine = EngineConfig(
        sampler="vllm",
        device="cuda" if torch.cuda.is_available() else "cpu",
        vllm=VllmConfig(memory_share=0.1, kv_cache_gb=0.1, enforce_eager=True, sleeps=False),
    )
    model.to(engine.device)  # type: ignore[arg-type]
    learner = TorchLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=1)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        sampler = VllmSampler(
            model, initial=Path(folder), engine=engine, rollout=RolloutConfig(), max_tokens=32, eos_ids=[1]
        )
    with closing(sampler):
        response = sampler.sample([SampleRequest((2, 3, 4), 1)], SamplingLimits(1.0, 1.0, 8))[0]
    scored = learner.logprobs([ScoreRequest((2, 3, 4), response.token_ids)])[0]
    error = max(abs(a - b) for a, b in zip(scored, response.logprobs, strict=True))
    if error > 1e-3:
        raise RuntimeError(f"it disagrees with the learner by {error:.1e} nats")
    return f"samples, and agrees with torch to {error:.0e} nats"


def _verify_something() -> str:
    from hacpo_core.verify.pool import VerifierPool

    with VerifierPool(num_workers=1, timeout_s=20.0, memory_mb=2048, style="boxed") as pool:
        (verdict,) = pool.verify([r"\boxed{\frac{1}{2}}"], ["0.5"])
    if verdict.status != "correct":
        raise RuntimeError(f"math-verify says {verdict.status} of 1/2 = 0.5 ({verdict.reason})")
    return "math-verify takes 1/2 for 0.5, in a process of its own"


def _server(runs_dir: Path) -> Finding:
    record = find_server(runs_dir)
    if record is None:
        return Finding("Prefect server", True, "not running; started when it is needed")
    is_up = is_healthy(record)
    return Finding("Prefect server", is_up, f"{record.url} {'is healthy' if is_up else 'does not answer'}")


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("GPU", False, "none; hardware=cpu works", is_required=False)
    return Finding("GPU", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}", is_required=False)


def _data() -> Finding:
    directory = os.environ.get("HACPO_DATA_DIR")
    if not directory:
        return Finding("data", False, "HACPO_DATA_DIR is not set; the embedded task needs none", is_required=False)
    files = sorted(path.name for path in Path(directory).glob("*.jsonl"))
    return Finding("data", bool(files), f"{directory}: {len(files)} JSONL files", is_required=False)
