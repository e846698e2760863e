"""Tells a webhook when an experiment failed or a grid ended: one POST of JSON each; no error of it ends a training.

A grid has ended when all of its experiments are done or failed. Two that end in the same moment may both report it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.records.folders import experiments_dir
from flows.records.gridfile import read_grids
from flows.records.states import standing_of
from hacpo_core.errors import LockedError, ServerError, first_line

_log = logging.getLogger(__name__)
URL_VARIABLE = "HACPO_NOTIFY_URL"
LIMIT_S = 5.0
"""longest time to connect, and to wait for the answer"""


@contextmanager
def notified(configured: str | None, runs_dir: Path, experiment: str) -> Iterator[None]:
    """Report how the block ended; a lock held elsewhere, a server outage and Ctrl-C are not reported.

    Args:
        configured: `notify.url`; None: HACPO_NOTIFY_URL, and without it nothing is sent.
        runs_dir: folder of all runs.
        experiment: that the block trains.
    """
    try:
        yield
    except (LockedError, ServerError):
        raise
    except Exception as error:
        tell_failure(configured, runs_dir, experiment, f"{type(error).__name__}: {first_line(error)}")
        raise
    _tell_ended_grids(configured, runs_dir, experiment)


def tell_failure(configured: str | None, runs_dir: Path, experiment: str, reason: str) -> None:
    """Report a failed experiment, and the grids that end with it."""
    _send(configured, "experiment_failed", f"{experiment} failed: {reason}", experiment=experiment, reason=reason)
    _tell_ended_grids(configured, runs_dir, experiment)


def _tell_ended_grids(configured: str | None, runs_dir: Path, experiment: str) -> None:
    if _url(configured) is None:
        return
    for record in read_grids(runs_dir):
        names = {place.experiment for place in record.places if not place.unavailable}
        if experiment not in names:
            continue
        states = Counter(standing_of(experiments_dir(runs_dir) / name).state for name in names)
        if states["done"] + states["failed"] == len(names):
            text = f"{record.title}: {states['done']} experiments done, {states['failed']} failed"
            counts = {"done": states["done"], "failed": states["failed"]}
            _send(configured, "grid_ended", text, grid=record.name, title=record.title, **counts)


def _url(configured: str | None) -> str | None:
    return configured or os.environ.get(URL_VARIABLE) or None


def _send(configured: str | None, event: str, text: str, **fields: Any) -> None:
    url = _url(configured)
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
