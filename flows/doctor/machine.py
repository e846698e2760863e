"""Checks of this machine for `hacpo doctor`: what is installed and whether it works."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from subprocess import DEVNULL, PIPE

import psutil
from packaging.requirements import Requirement

from flows.planning.memory import nvidia_smi
from flows.service.processes import end_family
from hacpo_core.data.rows import data_path
from hacpo_core.errors import HacpoError

MIN_FREE_GB = 2.0
VLLM_WORDS = tuple(
    f"engine.{word}"
    for word in ("sampler=vllm", "vllm.memory_share=0.1", "vllm.kv_cache_gb=0.1", "vllm.enforce_eager=true")
)
"""of vLLM's trial, whose engine sleeps on a GPU"""
ENDING_S = 5.0
"""time in which a trial that hangs may still exit by itself"""
TRIAL_S = 300.0
"""time limit of an engine's trial, which takes half a minute on two idle cores"""


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of hacpo, its module, and the fields with which one step uses it."""

    module: str
    name: str
    words: tuple[str, ...]
    hint: str = ""
    """added to how to install it"""


EXTRAS = (
    Extra("vllm", "vllm", VLLM_WORDS, "; without a GPU see tests/vllm/install.sh"),
    Extra("deepspeed", "deepspeed", ("engine.learner=deepspeed", "engine.deepspeed.stage=2")),
    Extra("ray", "ray", ("placement.kind=ray",)),
    Extra("peft", "lora", ("engine.lora.rank=2",)),
)


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    subject: str
    is_ok: bool
    detail: str
    is_required: bool = True


def examine(runs_dir: Path, hardware: str, overrides: Sequence[str] = ()) -> Iterator[Check]:
    """Check packages, one step with a hardware file, verifier, disk, GPU, data, and one step with each extra."""
    with ThreadPoolExecutor() as pool:  # each thread waits for a subprocess
        extras = [pool.submit(check_extra, extra) for extra in EXTRAS]
        yield from check_packages()
        yield _try(hardware, lambda: _train_something(hardware, overrides))
        yield _try("verifier", _verify_something)
        yield from (check_disk(runs_dir), check_data(), check_gpu())
        yield from (extra.result() for extra in extras)


def check_packages() -> list[Check]:
    """Whether each required package has a version that hacpo allows."""
    findings = []
    for line in requires("hacpo") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            findings.append(Check(requirement.name, False, f"missing; pip install '{requirement}'"))
            continue
        is_ok = requirement.specifier.contains(installed, prereleases=True)
        remedy = "" if is_ok else f", expected {requirement.specifier}; pip install '{requirement}'"
        findings.append(Check(requirement.name, is_ok, f"{installed}{remedy}"))
    return findings


def _try(subject: str, check: Callable[[], str]) -> Check:
    try:
        return Check(subject, True, check())
    except (HacpoError, OSError, RuntimeError, ImportError, ValueError) as error:
        return Check(subject, False, f"{type(error).__name__}: {error}")


def check_extra(extra: Extra, *, code: str | None = None, limit_s: float = TRIAL_S) -> Check:
    """Whether an extra's package is installed, has a version that fits, and works in one step.

    The step runs in a subprocess, which is killed with all that it started if it hangs.

    Args:
        extra: to check.
        code: Python that prints one line, or raises an error; default: one step with the extra.
        limit_s: time limit.
    """

    def finding(is_ok: bool, detail: str) -> Check:
        return Check(extra.module, is_ok, detail, is_required=False)

    if importlib.util.find_spec(extra.module) is None:
        return finding(False, f"not installed (pip install 'hacpo[{extra.name}]'{extra.hint})")
    package = packages_distributions()[extra.module][0]
    title = f"{package} {version(package)}"
    code = code or f"from flows.doctor.trial import try_step; print(try_step('cpu', *{extra.words!r}))"
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


def _train_something(hardware: str, overrides: Sequence[str]) -> str:
    from flows.doctor.trial import try_step  # torch takes seconds to import

    return try_step(hardware, *overrides)


def _verify_something() -> str:
    from hacpo_core.verify.pool import VerifierPool

    with VerifierPool(num_workers=1, timeout_s=20.0, memory_mb=2048, style="boxed") as pool:
        (verdict,) = pool.verify([r"\boxed{\frac{1}{2}}"], ["0.5"])
    if verdict.status != "correct":
        raise RuntimeError(f"the verifier returns {verdict.status} for 1/2 = 0.5 ({verdict.reason})")
    return "the verifier accepts 1/2 for 0.5, in a worker process"


def check_disk(runs_dir: Path) -> Check:
    """Free space for the runs folder, which need not exist yet."""
    folder = next(path for path in (runs_dir.absolute(), *runs_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free / 2**30
    return Check("disk", free >= MIN_FREE_GB, f"{free:.1f} GiB free for {runs_dir}")


def check_data() -> Check:
    """JSONL and Parquet files in the data folder."""
    folder = data_path("", None).absolute()
    if not folder.is_dir():
        detail = f"{folder} is not a folder; set HACPO_DATA_DIR or data.directory (the embedded task needs none)"
        return Check("data", False, detail, is_required=False)
    files = [path for path in folder.iterdir() if path.suffix in (".jsonl", ".parquet")]
    return Check("data", bool(files), f"{folder}: {len(files)} JSONL and Parquet files", is_required=False)


def check_gpu() -> Check:
    """GPUs that torch sees, or why it sees none beside an NVIDIA driver."""
    import torch

    number, cuda, driver = torch.cuda.device_count(), torch.version.cuda, nvidia_smi("driver_version")
    if number:
        detail = f"{number} x {torch.cuda.get_device_name()}"
    elif not driver:
        detail = "none; --hardware cpu works"
    elif cuda is None:
        detail = f"torch {torch.__version__} is built without CUDA; install its build for CUDA"
    else:
        detail = (
            f"torch for CUDA {cuda} sees none with driver {driver[0]}; update it, or install torch for an older CUDA"
        )
    return Check("GPU", number > 0, detail, is_required=False)
