"""What the doctor says of the driver and the compiler, with a made-up nvidia-smi."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from flows.doctor.gpu import check_compiler, check_driver


def program(folder: Path, name: str, line: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{line}'\n" if line else "#!/bin/sh\nexit 9\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("cuda", "driver", "is_ok", "detail"),
    [
        ("13.0", "580.65.06", True, "is built for CUDA 13.0, which needs driver 580.0 or newer; 580.65.06 is here"),
        ("13.0", "575.57.08", False, "needs driver 580.0 or newer, but 575.57.08 is here; update it, or install torch"),
        ("12.8", "525.60.13", True, "which needs driver 525.60 or newer; 525.60.13 is here"),
        ("12.8", "525.58.00", False, "which needs driver 525.60 or newer, but 525.58.00 is here"),
        ("14.1", "600.1", True, "is built for CUDA 14.1; 600.1 is here"),
        ("13.0", "", False, "needs driver 580.0 or newer; nvidia-smi names none here: install NVIDIA's driver"),
        (None, "580.65.06", False, "is built without CUDA; install its build for CUDA"),
    ],
)
def test_driver_that_torch_wants_is_named_beside_the_one_there(
    cuda: str | None, driver: str, is_ok: bool, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "nvidia-smi", driver)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = check_driver()
    assert found.is_ok == is_ok
    assert detail in found.detail


def test_missing_compiler_and_headers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(headers))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert check_compiler().detail == (
        f"missing: a C compiler (gcc or clang) and Python's headers ({headers}/Python.h); Triton (vLLM, torch.compile) "
        "needs both: install gcc and python3-dev"
    )
    (headers / "Python.h").touch()
    program(tmp_path, "clang", "x")
    assert check_compiler().detail == f"{tmp_path}/clang, for Triton"
    monkeypatch.setenv("CC", "nvc")
    assert "missing: a C compiler (CC is nvc); Triton" in check_compiler().detail
