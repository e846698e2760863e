"""The grid while a real worker trains: a cell advances, its process is killed, it fails, is retried, is done."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dashboards.models.scheduling import connector
from flows.planning.plans import Plan
from flows.records.failures import read_failure
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.service.deployments import deploy
from flows.service.prefect_server import ensure_server, stop_server
from flows.service.processes import end_family
from flows.service.schedule import Schedule
from hacpo_core.files import read_json
from tests.dashboards.browsing import chromium, listening, reason_to_skip, screenshots
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "a browser is there"),
]
LIMIT_S = 240.0
WORKER = """
import os, sys
from pathlib import Path
from flows.service.prefect_server import ensure_server
from flows.service.worker import run_worker, worker_environment
runs_dir = Path(sys.argv[1])
os.environ |= worker_environment(runs_dir, ensure_server(runs_dir), 1)  # before Prefect is imported
import flows.service.worker_loop as worker_loop
worker_loop.CHECK_EVERY_S = 3600.0
run_worker(runs_dir, num_slots=1)
"""


@pytest.fixture
def worker_log(runs_dir: Path, leftovers: Callable[[], list[str]], migrated: Callable[[Path], None]) -> Iterator[Path]:
    """A server and a worker of the folder that looks once, and then no more: it would retry, perhaps before we look."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    migrated(runs_dir)
    path = runs_dir / "worker.log"
    try:
        schedule = Schedule(ensure_server(runs_dir), runs_dir)
        deploy(schedule.client)
        words = [sys.executable, "-c", WORKER, str(runs_dir)]
        with path.open("ab") as log:
            worker = psutil.Popen(words, stdout=log, stderr=log)
            try:
                wait_until(schedule.num_slots, limit_s=LIMIT_S)
                yield path
            finally:
                end_family(worker)
                worker.wait(20)
    finally:
        stop_server(runs_dir)
    assert leftovers() == []


def test_killed_run_is_seen_to_fail_is_retried_and_ends(
    small_plan: Callable[..., Plan], runs_dir: Path, worker_log: Path, tmp_path: Path
) -> None:
    planned = small_plan("hacpo", "train.num_steps=40", "checkpoint.every=5", runs_dir=runs_dir)
    places = [GridCell("small", "hacpo", "", 0, agent, planned.id) for agent in planned.config.pair.agents]
    save_grid(runs_dir, GridRecord("live", "A live grid", "plain", ["dev"], places))
    with chromium() as browser, listening(runs_dir, connect=connector(runs_dir)) as url:
        tab = browser.new_page()
        tab.goto(f"{url}/grid/live")
        tab.evaluate("window.untouched = true")
        cell = tab.locator("button.cell")

        def said() -> str:
            return f"{cell.get_attribute('aria-label')}, {read_failure(planned.root)}, {worker_log.read_text()[-2000:]}"

        def see(words: str, picture: str) -> None:
            wait_until(lambda: words in str(cell.get_attribute("aria-label")), limit_s=LIMIT_S, said=said)
            tab.screenshot(path=str(screenshots(tmp_path) / f"live-{picture}.png"))

        def press(button: str, expected: str) -> None:
            if cell.get_attribute("aria-pressed") == "false":
                cell.focus()
                tab.keyboard.press("Space")
            tab.locator("#actions").get_by_role("button", name=button).click()
            wait_until(lambda: expected in tab.locator("#outcome").inner_text(), limit_s=LIMIT_S)

        see("missing", "missing")
        press("Run missing", "run: requested for 1")
        see("running", "running")
        steps = set()

        def step() -> int:
            steps.add(str(cell.get_attribute("aria-label")).partition(" of 40")[0].split()[-1])
            return len(steps)

        wait_until(lambda: step() >= 3, limit_s=LIMIT_S)  # it advances
        assert tab.locator("#act button[value=retry]").is_hidden()  # a running one is not retried
        holder = psutil.Process(int(read_json(planned.root / "lock")["pid"]))
        holder.kill()
        see("failed", "failed")
        press("Retry failed", "retry: requested for 1")
        see("done", "done")
        assert tab.evaluate("window.untouched") is True
        assert "1 of 1 done" in tab.locator("#totals").inner_text()

        tab.goto(f"{url}/samples/{planned.id}")
        assert tab.get_by_label("step", exact=True).input_value() == "40"
        assert "1 of 4" in tab.locator("#responses nav").inner_text()
        responses = tab.locator("article.response")
        assert responses.count() == 8  # two agents, four samples
        effects = responses.first.locator(".effects").inner_text()
        assert "qwen advantage" in effects and "llama advantage" in effects
        assert {"correct", "wrong"} >= set(responses.locator(".badge").all_inner_texts())
        tab.screenshot(path=str(screenshots(tmp_path) / "live-samples.png"), full_page=True)

        def shows_ratio(step: int) -> bool:
            tab.goto(f"{url}/samples/{planned.id}?step={step}")
            return "ratio" in responses.first.locator(".effects").inner_text()

        assert any(map(shows_ratio, range(40, 0, -1)))  # a problem that all solve or none has no advantage, so no ratio
