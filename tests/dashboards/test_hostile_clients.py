"""The page under mutated requests, slow connections and many requests at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboards.hostile_clients import Page, ask_at_rate, send_mutated, slow_connections


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path) as page:
        yield page


def mutate(page: Page, number: int, *, seed: int) -> None:
    found = send_mutated(page, number, seed=seed)
    print(f"{number} mutated requests, seed {seed}: {dict(found.statuses)}")
    assert not found.problems
    assert found.statuses.total() == number
    assert "Traceback" not in page.log()
    assert page.get("/").startswith(b"HTTP/1.1 200")


def load(page: Page, *, num_slow: int, number: int, per_second: float) -> None:
    with slow_connections(page, num_slow) as connections:
        assert len(connections) == num_slow
        found, times = ask_at_rate(page, number, per_second=per_second)
    middle, most, slowest = (1000 * sorted(times)[round(share * (len(times) - 1))] for share in (0.5, 0.99, 1.0))
    print(f"{len(times)} requests beside {num_slow} slow connections: {dict(found.statuses)}")
    print(f"median {middle:.0f} ms, 99 % within {most:.0f} ms, slowest {slowest:.0f} ms")
    assert set(found.statuses) == {"200"}
    assert "Traceback" not in page.log()
    assert page.get("/").startswith(b"HTTP/1.1 200")


@pytest.mark.system
def test_mutated_requests_get_no_500_no_path_and_no_stack(served: Page) -> None:
    mutate(served, 400, seed=0)


@pytest.mark.slow
def test_page_answers_while_slow_connections_are_open(served: Page) -> None:
    load(served, num_slow=50, number=400, per_second=100.0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_mutated_requests_get_no_500_no_path_and_no_stack(served: Page) -> None:
    mutate(served, 10_000, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_page_answers_a_thousand_requests_a_second_beside_two_hundred_slow_connections(served: Page) -> None:
    load(served, num_slow=200, number=60_000, per_second=1000.0)
