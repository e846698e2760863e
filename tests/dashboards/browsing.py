"""A page that listens, and Debian's Chromium to look at it."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from dashboards.app import create_app

CHROMIUM = Path("/usr/bin/chromium")
PHONE, DESK = (360, 740), (1280, 900)


def reason_to_skip() -> str:
    """Why there is no browser here; "" where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed (extra dev)"
    return "" if CHROMIUM.exists() else f"{CHROMIUM} is not there (apt-get install chromium)"


@contextmanager
def listening(runs_dir: Path, **options: Any) -> Iterator[str]:
    """The page of a folder on a free port of loopback."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen(64)
        app = create_app(runs_dir, **options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{own.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser process of our own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def screenshots(tmp_path: Path) -> Path:
    """Folder of pictures: the test's own, or what HACPO_SCREENSHOTS names."""
    folder = Path(os.environ.get("HACPO_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
