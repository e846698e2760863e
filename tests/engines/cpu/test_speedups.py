"""With `engine.speedups` off, a training runs on public torch and transformers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.engines.cpu import attention, products, speedups
from hacpo_core.engines.cpu.speedups import use_speedups
from hacpo_core.engines.sampling.llama_decoder import LlamaDecoder
from hacpo_core.phases.runner import DirectRunner

SHORT = ("train.num_steps=2", "evaluate.during=[]", "evaluate.final=[]")


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what was called of the folder."""
    called: list[str] = []

    def watched(owner: object, name: str) -> None:
        inner = getattr(owner, name)

        def around(*args: object, **options: object) -> object:
            called.append(name)
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, around)

    watched(LlamaDecoder, "extend")
    watched(attention, "by_products")
    watched(products.OneDnnLinear, "forward")
    watched(products, "packed")
    watched(products, "product")
    watched(speedups, "product")
    monkeypatch.setattr(products, "mkl_is_slow", lambda: True)
    yield called
    use_speedups(True)


@pytest.mark.slow
def test_training_without_speedups_uses_nothing_of_the_folder(
    small_plan: Callable[..., Plan], forbidden: list[str]
) -> None:
    plain = small_plan("hacpo", *SHORT, "engine.speedups=false")
    slow = run_experiment(plain, DirectRunner())
    assert forbidden == []
    fast = run_experiment(small_plan("hacpo", *SHORT), DirectRunner())
    assert {"extend", "by_products", "product"} <= set(forbidden)
    assert slow.id != fast.id  # other last bits are another experiment
