"""What a GPU machine needs beside Python packages, for `hacpo doctor --gpu`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch

from flows.doctor.machine import Finding

MIN_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 0)}
"""oldest Linux driver for each major version of CUDA, as in NVIDIA's guide to CUDA compatibility"""


def check_driver() -> Finding:
    """Whether the NVIDIA driver here is new enough for torch's CUDA."""

    def finding(is_ok: bool, detail: str) -> Finding:
        return Finding("driver", is_ok, detail, is_required=False)

    cuda = torch.version.cuda
    if cuda is None:
        return finding(False, f"torch {torch.__version__} is built without CUDA; install its build for CUDA")
    build = f"torch {torch.__version__} is built for CUDA {cuda}"
    oldest = MIN_DRIVERS.get(int(cuda.split(".")[0]))
    needs = f"{build}, which needs driver {oldest[0]}.{oldest[1]} or newer" if oldest is not None else build
    driver = _driver()
    if driver is None:
        return finding(False, f"{needs}; nvidia-smi names none here: install NVIDIA's driver")
    parts = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    if oldest is not None and parts < oldest:
        return finding(False, f"{needs}, but {driver} is here; update it, or install torch for an older CUDA")
    return finding(True, f"{needs}; {driver} is here")


def _driver() -> str | None:
    """Version of the NVIDIA driver; None without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        versions = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return versions[0] if versions else None


def check_compiler() -> Finding:
    """Whether Triton, which vLLM and torch.compile use, finds a C compiler and Python's headers."""
    configured_compiler = os.environ.get("CC")
    compiler = next(
        filter(None, map(shutil.which, [configured_compiler] if configured_compiler else ["gcc", "clang"])), None
    )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    candidates = f"CC is {configured_compiler}" if configured_compiler else "gcc or clang"
    missing_parts = [] if compiler else [f"a C compiler ({candidates})"]
    missing_parts += [] if header.is_file() else [f"Python's headers ({header})"]
    if missing_parts:
        detail = f"missing: {' and '.join(missing_parts)}; Triton (vLLM, torch.compile) needs both: install gcc and "
        detail += "python3-dev"
        return Finding("C compiler", False, detail, is_required=False)
    return Finding("C compiler", True, f"{compiler}, for Triton", is_required=False)
