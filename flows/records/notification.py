"""Tells a webhook when an experiment failed or a grid ended: one POST of JSON each; no error of it ends a training.

A grid has ended when all of its experiments are done, failed or cancelled. The first process that sees an end claims it
and reports it. Only the reconciler knows what was cancelled.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.records.failures import FAILURE_FILE
from flows.records.files import experiments_dir
from flows.records.gridfile import GridRecord, claim_end, read_grids
from flows.records.states import experiment_status
from hacpo_core.errors import LockedError, ServerError, first_line

_log = logging.getLogger(__name__)
URL_VARIABLE = "HACPO_NOTIFY_URL"
LIMIT_S = 5.0
"""longest time to connect, and to wait for the answer"""


@contextmanager
def notified(webhook: str | None, runs_dir: Path, experiment: str) -> Iterator[None]:
    """Report how the block ended; a lock held elsewhere, a server outage and Ctrl-C are not reported.

    Args:
        webhook: `notify.url`; None: HACPO_NOTIFY_URL, and without it nothing is sent.
        runs_dir: folder of all runs.
        experiment: that the block trains.
    """
    try:
        yield
    except (LockedError, ServerError):
        raise
    except Exception as error:
        send_failure(webhook, runs_dir, experiment, f"{type(error).__name__}: {first_line(error)}")
        raise
    _send_ended_grids(webhook, runs_dir, experiment)


def send_failure(webhook: str | None, runs_dir: Path, experiment: str, reason: str) -> None:
    """Report a failed experiment, and the grids that end with it."""
    _send(webhook, "experiment_failed", f"{experiment} failed: {reason}", experiment=experiment, reason=reason)
    _send_ended_grids(webhook, runs_dir, experiment)


def send_cancelled_grids(webhook_of: Callable[[str], str | None], runs_dir: Path, cancelled: Mapping[str, str]) -> None:
    """Report the grids that ended with a cancelled experiment.

    Args:
        webhook_of: `notify.url` of an experiment.
        runs_dir: folder of all runs.
        cancelled: id of the cancelled flow run, by experiment.
    """
    for record in read_grids(runs_dir):
        ended_experiments = sorted(record.experiments & cancelled.keys())
        url = _url(webhook_of(ended_experiments[0])) if ended_experiments else None
        if url is not None and (counts := _claimed_end(runs_dir, record, cancelled)) is not None:
            _send_end(url, record, counts)


def _send_ended_grids(webhook: str | None, runs_dir: Path, experiment: str) -> None:
    if _url(webhook) is None:
        return
    for record in read_grids(runs_dir):
        if experiment in record.experiments and (counts := _claimed_end(runs_dir, record, {})) is not None:
            _send_end(webhook, record, counts)


def _send_end(webhook: str | None, record: GridRecord, counts: Counter[str]) -> None:
    noun = "experiment" if counts["done"] == 1 else "experiments"
    text = f"{record.title}: {counts['done']} {noun} done, {counts['failed']} failed"
    text += f", {counts['cancelled']} cancelled" if counts["cancelled"] else ""
    fields = {state: counts[state] for state in ("done", "failed", "cancelled")}
    _send(webhook, "grid_ended", text, grid=record.name, title=record.title, **fields)


def _claimed_end(runs_dir: Path, record: GridRecord, cancelled: Mapping[str, str]) -> Counter[str] | None:
    """Number of experiments by state; None if one has not ended, or if another process reports this end."""
    ends = {}
    for name in sorted(record.experiments):
        end = _end_of(experiments_dir(runs_dir) / name, cancelled.get(name))
        if end is None:
            return None
        ends[name] = end
    return Counter(state for state, _ in ends.values()) if claim_end(runs_dir, record.name, ends) else None


def _end_of(root: Path, cancelled_run: str | None) -> tuple[str, str] | None:
    """State of an ended experiment and which end it is, so that a retry has another; None if it has not ended."""
    state = experiment_status(root).state
    if state == "done":
        return state, ""
    if state == "failed":
        try:
            return state, str((root / FAILURE_FILE).stat().st_mtime_ns)
        except FileNotFoundError:  # retried meanwhile
            return None
    return ("cancelled", cancelled_run) if state == "missing" and cancelled_run is not None else None


def _url(webhook: str | None) -> str | None:
    return webhook or os.environ.get(URL_VARIABLE) or None


def _send(webhook: str | None, event: str, text: str, **fields: Any) -> None:
    url = _url(webhook)
    if url is None:
        return
    import httpx  # importing takes a moment, and most runs do not need it

    try:
        httpx.post(url, json={"event": event, "text": text, **fields}, timeout=LIMIT_S).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        # Paths of webhooks are secrets, and messages of httpx repeat them.
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = f"status {status}" if status else type(error).__name__
        _log.warning("notify.url: the webhook did not take %s (%s); nothing else depends on it", event, reason)
