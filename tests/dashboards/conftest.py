"""A page over a folder that the test fills, and a schedule that remembers what it was asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboards.app import create_app
from dashboards.security import Access
from flows.service.experiment_state import ScheduledRun
from flows.service.schedule import RefusedError

ORIGIN = "http://127.0.0.1"


@dataclass
class RememberingSchedule:
    """Runs and slots that a test names; actions are noted, or refused with the reason that the test gives."""

    known: dict[str, ScheduledRun] = field(default_factory=dict)
    slots: int = 2
    asked: list[tuple[str, ...]] = field(default_factory=list)
    refusals: Mapping[str, str] = field(default_factory=dict)

    def runs(self) -> Mapping[str, ScheduledRun]:
        return dict(self.known)

    def num_slots(self) -> int:
        return self.slots

    def _note(self, *asked: str) -> None:
        if asked[1] in self.refusals:
            raise RefusedError(self.refusals[asked[1]])
        self.asked.append(asked)

    def start(self, experiment: str) -> None:
        self._note("start", experiment)
        self.known[experiment] = scheduled(experiment, "Scheduled")

    def cancel(self, experiment: str) -> None:
        self._note("cancel", experiment)


def scheduled(experiment: str, state: str, *, message: str = "") -> ScheduledRun:
    """A flow run."""
    return ScheduledRun(f"run-of-{experiment}", experiment, state, message)


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def schedule() -> RememberingSchedule:
    return RememberingSchedule()


@pytest.fixture
def open_page(runs_dir: Path, schedule: RememberingSchedule) -> Callable[..., TestClient]:
    """A client of the page; headers and cookies of a browser are the test's business."""

    def make(access: Access | None = None, **options: object) -> TestClient:
        app = create_app(runs_dir, access=access, connect=lambda: schedule, **options)  # type: ignore[arg-type, return-value]
        return TestClient(app, base_url=ORIGIN, follow_redirects=False)

    return make


@pytest.fixture
def page(open_page: Callable[..., TestClient]) -> TestClient:
    return open_page()
