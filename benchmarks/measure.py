"""Shared by all benchmarks: alternating measurements, limits of the machine, and result files."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

RESULTS = Path(__file__).parent / "results"


def in_turn(ways: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Times of several functions, called alternately (A B A B), s; an additional first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median over rounds of the ratio of two functions' times."""
    return statistics.median(numerator / denominator for numerator, denominator in zip(over, under, strict=True))


def matmul_peak() -> float:
    """FLOP/s of a large fp32 matrix product on torch's threads; best of ten."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / min(in_turn({"product": lambda: left @ right}, rounds=10)["product"])


def read_bandwidth() -> float:
    """Bytes/s when reading 256 MiB, more than the caches hold; best of ten."""
    block = torch.ones(2**26)
    return 2**28 / min(in_turn({"sum": block.sum}, rounds=10)["sum"])


def linear_products(model: nn.Module, num_tokens: int, *, has_gradients: bool) -> Callable[[], None]:
    """A function that computes only the matrix products of the model's linear layers: a lower bound for any code.

    Inputs, and gradients of outputs, are allocated at every call, which costs a few percent.

    Args:
        model: its linear layers except the output embedding are used.
        num_tokens: rows of each product.
        has_gradients: compute the gradients of input and weight as well, which triples the number of products.
    """
    layers = [layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]

    def sample() -> None:
        with torch.inference_mode():
            for layer in layers:
                layer(torch.ones(num_tokens, layer.in_features))

    def train() -> None:
        for layer in layers:
            inputs = torch.ones(num_tokens, layer.in_features, requires_grad=True)
            outputs = layer(inputs)
            torch.autograd.grad(outputs, [inputs, layer.weight], torch.ones_like(outputs))

    return train if has_gradients else sample


class PeakMemory:
    """Peak resident memory of the process since construction, beyond the memory at that time (Linux)."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._high_water()

    def mb(self) -> float:
        """Peak so far, MiB."""
        return self._high_water() - self._before

    @staticmethod
    def _high_water() -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def child(module: str, *arguments: str, python: Path | str = sys.executable) -> Any:
    """Run a benchmark module in a new process, and return the JSON value that it prints as its last line."""
    command = [str(python), "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> str:
    """Processor and Python version; results of different machines cannot be compared."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0] if names else platform.machine()}, Python {platform.python_version()}"


def write_result(name: str, result: Mapping[str, Any], packages: Sequence[str]) -> None:
    """Write and print a result, with package versions and the machine."""
    versions = {package: version(package) for package in packages}
    whole = {**result, "versions": versions, "machine": machine()}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
