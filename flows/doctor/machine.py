"""Checks of this machine for `hacpo doctor`: what is installed and whether it works."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import psutil
from packaging.requirements import Requirement

from flows.service.processes import end_family, free_port
from flows.service.server import PREFECT_PORT, find_server, is_healthy, other_host
from hacpo_core.data.rows import data_path
from hacpo_core.errors import HacpoError

MIN_FREE_GB = 2.0
PORTS = {"Prefect": PREFECT_PORT, "the dashboard": 8400, "MLflow": 5000}
VLLM_WORDS = tuple(
    f"engine.{word}"
    for word in ("sampler=vllm", "vllm.memory_share=0.1", "vllm.kv_cache_gb=0.1", "vllm.enforce_eager=true")
)
"""of vLLM's trial, whose engine sleeps on a GPU"""
ENDING_S = 5.0
"""time in which a trial that hangs may still exit by itself"""
TRIAL_S = 120.0
"""time limit of an engine's trial, which takes about ten seconds on two idle cores; vLLM and Ray get more, to start"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    subject: str
    is_ok: bool
    detail: str
    is_required: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def examine(runs_dir: Path) -> Iterator[Finding]:
    """Check packages, the built-in engine, verifier, disk, ports, server, GPU, data and the extras, in that order."""
    with ThreadPoolExecutor() as pool:  # each thread waits for a subprocess
        engines = [pool.submit(look) for look in (check_vllm, check_deepspeed, check_ray, check_peft)]
        yield from check_packages()
        yield _try("sampler+learner", _train_something)
        yield _try("verifier", _verify_something)
        yield from (check_disk(runs_dir), check_ports(), check_server(runs_dir), check_gpu(), check_data())
        yield from (engine.result() for engine in engines)


def check_packages() -> list[Finding]:
    """Whether each required package has a version that hacpo allows."""
    findings = []
    for line in requires("hacpo") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            findings.append(Finding(requirement.name, False, f"missing; pip install '{requirement}'"))
            continue
        is_ok = requirement.specifier.contains(installed, prereleases=True)
        remedy = "" if is_ok else f", expected {requirement.specifier}; pip install '{requirement}'"
        findings.append(Finding(requirement.name, is_ok, f"{installed}{remedy}"))
    return findings


def _try(subject: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, True, check())
    except (HacpoError, OSError, RuntimeError, ImportError, ValueError) as error:
        return Finding(subject, False, f"{type(error).__name__}: {error}")


def check_vllm() -> Finding:
    """Whether vLLM samples and agrees with the learner."""
    return check_engine("vllm", _trial_code(*VLLM_WORDS), limit_s=300, hint="; without a GPU see tests/vllm/install.sh")


def check_deepspeed() -> Finding:
    """Whether DeepSpeed trains."""
    return check_engine("deepspeed", _trial_code("engine.learner=deepspeed", "engine.deepspeed.stage=2"))


def check_ray() -> Finding:
    """Whether Ray starts and runs the process of an agent."""
    return check_engine("ray", _trial_code("placement.kind=ray"), limit_s=300)


def check_peft() -> Finding:
    """Whether adapters work and can be merged."""
    code = "from flows.doctor.machine import merge_with_peft; print(merge_with_peft())"
    return check_engine("peft", code, extra="lora")


def _trial_code(*overrides: str) -> str:
    return f"from flows.doctor.engine_trial import quick_trial; print(quick_trial(*{overrides!r}))"


def check_engine(
    name: str, code: str, *, extra: str | None = None, limit_s: float = TRIAL_S, hint: str = ""
) -> Finding:
    """Check whether an extra's package is installed, has a compatible version, and works.

    The code runs in a subprocess, which is killed if it hangs.

    Args:
        name: of the module.
        code: Python that prints one line, or raises an error.
        extra: name of the extra, if it differs from the module's.
        limit_s: time limit.
        hint: added to the installation remedy.
    """

    def finding(is_ok: bool, detail: str) -> Finding:
        return Finding(name, is_ok, detail, is_required=False)

    extra = extra or name
    if importlib.util.find_spec(name) is None:
        return finding(False, f"not installed (pip install 'hacpo[{extra}]'{hint})")
    package = packages_distributions()[name][0]
    title = f"{package} {version(package)}"
    conflicts = _conflicts(package, extra)
    if conflicts:
        return finding(False, f"{title}: {', '.join(conflicts)}")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace"
    ) as trial:
        try:
            output, errors = trial.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end_family(psutil.Process(trial.pid), limit_s=ENDING_S)
            return finding(False, f"{title} did not answer within {limit_s:g} s")
    last_line = ((errors if trial.returncode else output).strip().splitlines() or ["no output"])[-1]
    return finding(trial.returncode == 0, f"{title}: {last_line}")


def _conflicts(package: str, extra: str) -> list[str]:
    """Version conflicts: of the package with hacpo's extra, and of torch and transformers with the package."""
    ours = [Requirement(line) for line in requires("hacpo") or []]
    requirements = [
        (package, r) for r in ours if r.name == package and r.marker and r.marker.evaluate({"extra": extra})
    ]
    for line in requires(package) or []:
        requirement = Requirement(line.replace("+cpu", ""))
        if requirement.name in ("torch", "transformers") and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            requirements.append((requirement.name, requirement))
    return [
        f"{name} is {version(name)}; pip install '{name}{requirement.specifier}'"
        for name, requirement in requirements
        if not requirement.specifier.contains(version(name), prereleases=True)
    ]


def merge_with_peft() -> str:
    """Add adapters to a random model of a few thousand parameters, merge them, and compare the logits."""
    import torch

    from hacpo_core.config import LoraConfig, TinyModelConfig
    from hacpo_core.engines.models.lora import add_adapters, merged_weights
    from hacpo_core.tiny.models import build_model
    from hacpo_core.tiny.tokenizers import build_tokenizer

    tiny = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
    tokenizer = build_tokenizer("character")
    model, merged_model = build_model(tiny, tokenizer), build_model(tiny, tokenizer)
    add_adapters(model, LoraConfig(rank=2, alpha=4.0), seed_parts=("doctor",))
    ids = torch.tensor([[2, 3, 4]])
    with torch.no_grad():
        before = model(ids).logits
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:  # initialised to 0
                parameter.fill_(0.1)
        merged_model.load_state_dict(dict(merged_weights(model, model.state_dict().items())))
        adapted = model(ids).logits
        error = float((adapted - merged_model(ids).logits).abs().max())
    if not error <= 1e-5 or torch.equal(adapted, before):
        raise RuntimeError(f"logits of merged weights and adapters differ by {error:.1e}, or adapters have no effect")
    return f"adapters work, and merged weights agree to {error:.0e}"


def _train_something() -> str:
    from flows.doctor.engine_trial import quick_trial  # torch takes seconds to import

    return quick_trial()


def _verify_something() -> str:
    from hacpo_core.verify.pool import VerifierPool

    with VerifierPool(num_workers=1, timeout_s=20.0, memory_mb=2048, style="boxed") as pool:
        (verdict,) = pool.verify([r"\boxed{\frac{1}{2}}"], ["0.5"])
    if verdict.status != "correct":
        raise RuntimeError(f"math-verify returns {verdict.status} for 1/2 = 0.5 ({verdict.reason})")
    return "math-verify accepts 1/2 for 0.5, in a worker process"


def check_disk(runs_dir: Path) -> Finding:
    """Free space for the runs folder, which need not exist yet."""
    folder = next(path for path in (runs_dir.absolute(), *runs_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free / 2**30
    return Finding("disk", free >= MIN_FREE_GB, f"{free:.1f} GiB free for {runs_dir}")


def check_ports() -> Finding:
    """Default ports of the services that are in use."""
    ports_in_use = [f"{port} ({service})" for service, port in PORTS.items() if free_port(port) != port]
    detail = (
        f"{' and '.join(ports_in_use)} in use; a service that starts uses another free port"
        if ports_in_use
        else "all free"
    )
    return Finding("ports", True, detail, is_required=False)


def check_server(runs_dir: Path) -> Finding:
    """Whether the runs folder's Prefect server answers, if it runs."""
    server, host = find_server(runs_dir), other_host(runs_dir)
    if server is None and host is not None:
        remedy = "work there, or give all hosts one server (docs/team.md)"
        return Finding("Prefect server", False, f"{host} runs it; {remedy}")
    if server is None:
        return Finding("Prefect server", True, "not running; it is started when needed")
    is_up = is_healthy(server)
    return Finding("Prefect server", is_up, f"{server.url} {'is healthy' if is_up else 'does not answer'}")


def check_gpu() -> Finding:
    """GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return Finding("GPU", False, "none; --hardware cpu works", is_required=False)
    return Finding("GPU", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}", is_required=False)


def check_data() -> Finding:
    """JSONL and Parquet files in the data folder."""
    folder = data_path("", None).absolute()
    if not folder.is_dir():
        detail = f"{folder} is not a folder; set HACPO_DATA_DIR or data.directory (the embedded task needs none)"
        return Finding("data", False, detail, is_required=False)
    files = [path for path in folder.iterdir() if path.suffix in (".jsonl", ".parquet")]
    return Finding("data", bool(files), f"{folder}: {len(files)} JSONL and Parquet files", is_required=False)
