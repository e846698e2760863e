"""A webhook hears of failures and of ended grids, and nothing that it does ends a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.records import notification
from flows.records.failures import record_failure
from flows.records.files import experiments_dir
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.notification import URL_VARIABLE, notified
from flows.records.states import RESULT_FILE
from hacpo_core.errors import DataError, LockedError
from hacpo_core.files import write_json
from tests.flows.webhook import Webhook


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """A grid of two experiments, and a cell that cannot be run here."""
    cells = [GridCell("p", "hacpo", "", seed, "a", f"p-hacpo-s{seed}") for seed in (0, 1)]
    cells.append(GridCell("p", "hacpo", "", 2, "a", "", unavailable="no such model"))
    save_grid(tmp_path, GridRecord("g", "A grid", "plain", cells=cells))
    for seed in (0, 1):
        (experiments_dir(tmp_path) / f"p-hacpo-s{seed}").mkdir(parents=True)
    return tmp_path


def finish(runs_dir: Path, experiment: str) -> None:
    write_json(experiments_dir(runs_dir) / experiment / RESULT_FILE, {})


def test_grid_ends_with_its_last_experiment(runs_dir: Path, webhook: Webhook) -> None:
    with notified(webhook.url, runs_dir, "p-hacpo-s0"):
        finish(runs_dir, "p-hacpo-s0")
    assert webhook.got == [], "one is left"
    with notified(webhook.url, runs_dir, "p-hacpo-s1"):
        finish(runs_dir, "p-hacpo-s1")
    text = "A grid: 2 experiments done, 0 failed"
    assert webhook.got == [
        {"event": "grid_ended", "text": text, "grid": "g", "title": "A grid", "done": 2, "failed": 0, "cancelled": 0}
    ]


def test_end_that_two_experiments_see_at_once_is_told_once(runs_dir: Path, webhook: Webhook) -> None:
    with notified(webhook.url, runs_dir, "p-hacpo-s0"), notified(webhook.url, runs_dir, "p-hacpo-s1"):
        finish(runs_dir, "p-hacpo-s0")
        finish(runs_dir, "p-hacpo-s1")
    assert [message["event"] for message in webhook.got] == ["grid_ended"]


def test_failure_is_told_and_still_raised(runs_dir: Path, webhook: Webhook) -> None:
    @notified(webhook.url, runs_dir, "p-hacpo-s0")
    def train() -> None:
        error = DataError("line 3 is torn\nmore")
        record_failure(experiments_dir(runs_dir) / "p-hacpo-s0", error)
        raise error

    finish(runs_dir, "p-hacpo-s1")
    with pytest.raises(DataError):
        train()
    assert [message["event"] for message in webhook.got] == ["experiment_failed", "grid_ended"]
    assert webhook.got[0]["reason"] == "DataError: line 3 is torn"
    assert (webhook.got[1]["done"], webhook.got[1]["failed"]) == (1, 1)


@pytest.mark.parametrize("error", [LockedError("held"), KeyboardInterrupt()])
def test_what_is_no_failure_is_not_told(runs_dir: Path, webhook: Webhook, error: BaseException) -> None:
    with pytest.raises(type(error)), notified(webhook.url, runs_dir, "p-hacpo-s0"):
        raise error
    assert webhook.got == []


def test_address_in_the_environment_is_used_without_one_in_the_configuration(
    runs_dir: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, webhook.url)
    finish(runs_dir, "p-hacpo-s1")
    with notified(None, runs_dir, "p-hacpo-s0"):
        finish(runs_dir, "p-hacpo-s0")
    assert len(webhook.got) == 1


def test_webhook_that_refuses_is_logged_without_its_path(
    runs_dir: Path, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.status = 500
    finish(runs_dir, "p-hacpo-s1")
    with notified(webhook.url, runs_dir, "p-hacpo-s0"):
        finish(runs_dir, "p-hacpo-s0")
    assert "the webhook did not take grid_ended (status 500)" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[", "http://"])
def test_webhook_that_is_away_is_logged(runs_dir: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
    finish(runs_dir, "p-hacpo-s1")
    with notified(url, runs_dir, "p-hacpo-s0"):
        finish(runs_dir, "p-hacpo-s0")
    assert "did not take grid_ended" in caplog.text


def test_webhook_that_never_answers_is_given_up(
    runs_dir: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notification, "LIMIT_S", 0.2)
    webhook.answers.clear()
    finish(runs_dir, "p-hacpo-s1")
    with notified(webhook.url, runs_dir, "p-hacpo-s0"):
        finish(runs_dir, "p-hacpo-s0")
    assert "did not take grid_ended (ReadTimeout)" in caplog.text
