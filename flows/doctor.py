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
ENGINE_TIMEOUT_S = 300


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
    findings += [_vllm(), _deepspeed()]
    found = importlib.util.find_spec("ray") is not None
    detail = "installed; not yet used by any engine" if found else "not installed (pip install 'hacpo[ray]')"
    findings.append(Finding("ray", found, detail, is_required=False))
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
    return _engine("vllm", sample_with_vllm, hint="; without a GPU see tests/vllm/install.sh")


def _deepspeed() -> Finding:
    return _engine("deepspeed", train_with_deepspeed)


def _engine(name: str, check: Callable[[], str], *, hint: str = "") -> Finding:
    """Whether an extra's package is installed, fits, and works: tried in a process that can be ended.

    Args:
        name: of the extra and of its module.
        check: a function of this module.
        hint: what else to say of its installation.
    """

    def finding(is_ok: bool, detail: str) -> Finding:
        return Finding(name, is_ok, detail, is_required=False)

    if importlib.util.find_spec(name) is None:
        return finding(False, f"not installed (pip install 'hacpo[{name}]'{hint})")
    package = packages_distributions()[name][0]
    title = f"{package} {version(package)}"
    wrong = _misfits(name, package)
    if wrong:
        return finding(False, f"{title}: {', '.join(wrong)}")
    command = [sys.executable, "-c", f"import {__name__} as doctor; print(doctor.{check.__name__}())"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return finding(False, f"{title} did not answer within {ENGINE_TIMEOUT_S} s")
    last = ((tried.stdout if tried.returncode == 0 else tried.stderr).strip().splitlines() or ["no word"])[-1]
    return finding(tried.returncode == 0, f"{title}: {last}")


def _misfits(name: str, package: str) -> list[str]:
    """What is not of a version that goes together: the package for us, torch and transformers for the package."""
    ours = [Requirement(line) for line in requires("hacpo") or []]
    wanted = [(package, r) for r in ours if r.name == name and r.marker and r.marker.evaluate({"extra": name})]
    for line in requires(package) or []:
        requirement = Requirement(line.replace("+cpu", ""))
        if requirement.name in ("torch", "transformers") and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            wanted.append((requirement.name, requirement))
    return [
        f"{found} is {version(found)}; pip install '{found}{requirement.specifier}'"
        for found, requirement in wanted
        if not requirement.specifier.contains(version(found), prereleases=True)
    ]


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


def train_with_deepspeed() -> str:
    """Update a random model of a few thousand parameters once, and compare with the plain learner."""
    import torch

    from hacpo_core.algo.methods import Method
    from hacpo_core.batches import Minibatch, Row
    from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig, TinyModelConfig
    from hacpo_core.engines.deepspeed_learner import DeepspeedLearner
    from hacpo_core.engines.torch_learner import TorchLearner
    from hacpo_core.tiny.models import build_model
    from hacpo_core.tiny.tokenizers import build_tokenizer

    row = Row(
        source=0,
        problem=0,
        index=0,
        is_own=True,
        prompt_ids=(2, 3, 4),
        response_ids=(5, 6, 1),
        advantage=1.0,
        cross_weight=1.0,
        old_mean_logprob=-3.0,
        old_logprobs=(-3.0, -3.0, -3.0),
    )
    engine = EngineConfig(
        learner="deepspeed", device="cuda" if torch.cuda.is_available() else "cpu", deepspeed=DeepspeedConfig(stage=2)
    )
    found = []
    for kind in (TorchLearner, DeepspeedLearner):
        model = build_model(
            TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1), build_tokenizer("character")
        )
        model.to(engine.device)  # type: ignore[arg-type]
        before = model.get_output_embeddings().weight.detach().clone()
        learner = kind(
            model, optimizer=OptimizerConfig(learning_rate=1e-2), engine=engine, temperature=1.0, total_updates=1
        )
        method = Method(name="doctor", shares_rollouts=False, baseline="own", own_low=1.0, own_high=1e3)
        learner.update([Minibatch((row,))], method, num_agents=1, max_response_tokens=3, measures_cosine=False)
        found.append(model.get_output_embeddings().weight.detach())
    error = float((found[0] - found[1]).abs().max())
    if not error <= 1e-5 or torch.equal(found[1], before):
        raise RuntimeError(f"its update differs from torch's by {error:.1e}")
    return f"trains, and agrees with torch to {error:.0e}"


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
