"""What tests of agents in Ray's actors share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

RAY = ("placement.kind=ray", "engine.num_threads=1")


@pytest.fixture(autouse=True)
def nothing_left_behind(leftovers: Callable[[], list[str]]) -> Iterator[None]:
    """Every test ends all that it started, also what is no child of this process any more."""
    yield
    assert not leftovers()


@pytest.fixture
def asked_of_ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that `ray.init` was called with; it starts nothing and raises "enough"."""
    ray = pytest.importorskip("ray")
    asked: dict[str, Any] = {}

    def init(**options: Any) -> None:
        asked.update(options)
        raise RuntimeError("enough")

    monkeypatch.setattr(ray, "init", init)
    return asked
