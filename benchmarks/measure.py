"""What all measurements share: ways in turn, the machine's own limits, and results as files."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hacpo_core.engines.cpu import products
from hacpo_core.engines.cpu.products import FrozenLinear, packed, product

RESULTS = Path(__file__).parent / "results"


def in_turn(ways: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, A B A B; one round more comes first and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median of the ratios of two ways' seconds, round by round."""
    return statistics.median(one / other for one, other in zip(over, under, strict=True))


def matmul_peaks() -> dict[str, float]:
    """FLOP/s of a large fp32 product on torch's threads, by its own choice and by oneDNN: the best of ten."""
    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    ready = packed(other)
    ways = {"torch": lambda: one @ other, "onednn": lambda: product(one, ready)}
    return {way: 2 * 1024**3 / min(seconds) for way, seconds in in_turn(ways, rounds=10).items()}


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Products by torch's own choice; learners that were made before still fill their passes."""
    rule = products._mkl_is_slow
    products._mkl_is_slow = lambda: False  # type: ignore[assignment]
    try:
        yield
    finally:
        products._mkl_is_slow = rule


def read_bandwidth() -> float:
    """Bytes/s of reading 256 MiB, more than the caches hold: the best of ten."""
    block = torch.ones(2**26)
    return 2**28 / min(in_turn({"sum": block.sum}, rounds=10)["sum"])


def linear_products(model: nn.Module, num_tokens: int, *, has_gradients: bool) -> Callable[[], None]:
    """What no other code of this model can leave out: the products of its linear layers with that many tokens.

    Their inputs, and the gradients of their outputs, are made anew each time, which costs a few percent.

    Args:
        model: whose layers; the output embedding is left out. With gradients the layers are called, else multiplied as
            our decoder does.
        num_tokens: rows of each product.
        has_gradients: the gradients of input and weight as well, twice the products more.
    """
    layers = [layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]
    frozen = [] if has_gradients else [FrozenLinear(layer.weight, None, packs=True) for layer in layers]

    def sample() -> None:
        with torch.inference_mode():
            for layer, multiply in zip(layers, frozen, strict=True):
                multiply(torch.ones(num_tokens, layer.in_features))

    def train() -> None:
        for layer in layers:
            given = torch.ones(num_tokens, layer.in_features, requires_grad=True)
            out = layer(given)
            torch.autograd.grad(out, [given, layer.weight], torch.ones_like(out))

    return train if has_gradients else sample


class PeakMemory:
    """MiB that the process has had at most since this was made, on top of what it had then (Linux)."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._high_water()

    def mb(self) -> float:
        """So far."""
        return self._high_water() - self._before

    @staticmethod
    def _high_water() -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def child(module: str, *words: str, python: Path | str = sys.executable) -> Any:
    """What a module prints as its last line, in a process of its own: JSON."""
    command = [str(python), "-m", f"benchmarks.{module}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> str:
    """Processor and Python: figures of two machines do not compare."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0] if names else platform.machine()}, Python {platform.python_version()}"


def write_result(name: str, result: Mapping[str, Any], packages: Sequence[str]) -> None:
    """Write and print a result, with the versions and the machine that it was measured on."""
    versions = {package: version(package) for package in packages}
    whole = {**result, "versions": versions, "machine": machine()}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
