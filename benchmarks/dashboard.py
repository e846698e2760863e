"""Response times of the dashboard with 1,000 runs of 500 steps: server time, and Chromium's first contentful paint.

    python -m benchmarks.dashboard [--runs 1000] [--steps 500] [--rounds 5] [--out benchmarks/results/dashboard.json]

The folder is generated (tests/dashboards/stores.py). Four runs have their own files for 500 steps, the others link to
these, since no page reads the steps of more than one run unless a column asks for them. The schedule has a flow run
for every experiment; a fake client parses them at every query, as Prefect's does. LIVE experiments are locked and
progress by a step per second. The grid "section" has all cells in one pair.

Server time is of one request as `curl` would see it: the first after the start ("cold") and the median of the next
ones. `ready_s` is the start-up time, in which every run's progress is read; `warm_s` is the time of the preloading in
the background after that. First paint is the first-contentful-paint of a fresh browser context.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

from prefect.client.schemas.objects import StateType, Worker, WorkerStatus

from benchmarks.measure import machine
from flows.planning.compose import compose
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.progress import PROGRESS_FILE, read_progress
from flows.records.states import experiment_status
from flows.service.schedule import Schedule, worker_name
from flows.service.server import PrefectServer
from hacpo_core.config import as_dict
from tests.dashboards.browsing import chromium, listening, reason_to_skip
from tests.dashboards.stores import (
    START,
    hold_lock,
    write_answers,
    write_progress,
    write_run,
    write_thousand,
)
from tests.flows.service.remembered import RememberedClient
from tests.waiting import wait_until

LIVE = 4
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
AGENTS = ("qwen-tiny", "llama-tiny")


def main() -> None:
    """Generate the folder, measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5, help="requests after an uncounted first one")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/dashboard.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        runs_dir = Path(folder) / "runs"
        started = time.monotonic()
        names = write_thousand(runs_dir, num_runs=arguments.runs, num_steps=arguments.steps)
        pages = _pages(runs_dir, names)
        generated_s = time.monotonic() - started
        closing.enter_context(_living([name for number, name in enumerate(names) if number % 17 == 5][:LIVE], runs_dir))
        schedule = Schedule(PrefectServer("http://127.0.0.1:9", ""), runs_dir)
        schedule.client = _client(runs_dir, names)  # type: ignore[assignment]
        num_scheduled, num_workers = len(schedule.runs()), len(schedule.workers())
        if (num_scheduled, num_workers) != (len(names), 1):
            raise SystemExit(f"the stand-in for Prefect's client has {num_scheduled} runs and {num_workers} workers")
        started = time.monotonic()
        with listening(runs_dir, connect=lambda: schedule, warm=True) as url:
            urllib.request.urlopen(f"{url}/login").close()
            ready_s = time.monotonic() - started
            for thread in threading.enumerate():
                if thread.name == "warm-up":
                    thread.join()
            warm_s = time.monotonic() - started - ready_s
            server = {name: _server_times(url + path, arguments.rounds) for name, path in pages.items()}
        with listening(runs_dir, connect=lambda: schedule, warm=True) as url:
            paint = _paint_times(url, pages, arguments.rounds) if not reason_to_skip() else {}
    result = {
        "what": f"{arguments.runs} runs of {arguments.steps} steps, milliseconds",
        "machine": machine(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "generated_s": round(generated_s, 1),
        "ready_s": round(ready_s, 1),
        "warm_s": round(warm_s, 1),
        "server_ms": server,
        "first_contentful_paint_ms": paint,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def _client(runs_dir: Path, names: list[str]) -> RememberedClient:
    """Stands in for Prefect's client, with a flow run of every experiment and one worker that is online."""
    worker = Worker(
        name=worker_name("here", LIVE),
        work_pool_id=uuid4(),
        last_heartbeat_time=datetime.now(UTC),
        status=WorkerStatus.ONLINE,
    )
    client = RememberedClient([worker])
    kinds = {"done": StateType.COMPLETED, "running": StateType.RUNNING}
    for name in names:
        state = experiment_status(runs_dir / "experiments" / name).state
        client.add(name, kinds.get(state, StateType.SCHEDULED))
    return client


@contextmanager
def _living(names: list[str], runs_dir: Path) -> Iterator[None]:
    """Hold the experiments' locks and update their progress files, as running experiments do."""
    roots = [runs_dir / "experiments" / name for name in names]
    progress_by_root = {root: progress for root in roots if (progress := read_progress(root)) is not None}
    ended = threading.Event()

    def work() -> None:
        step = 0
        while not ended.wait(1.0):
            step += 1
            for root, p in progress_by_root.items():
                write_progress(root, pair=p.pair, method=p.method, seed=p.seed, step=step, num_steps=p.num_steps)

    thread = threading.Thread(target=work)
    with ExitStack() as locks:
        for root in roots:
            locks.enter_context(hold_lock(root))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _pages(runs_dir: Path, names: list[str]) -> dict[str, str]:
    """Paths of the slowest pages, by name."""
    config = as_dict(compose("tiny", "hacpo"))
    responses = {agent: [("so it is 3\n" * 40, "correct")] * 8 for agent in AGENTS}
    newest, older = (write_run(runs_dir, pair=pair, agents=AGENTS, config=config) for pair in ("newest", "older"))
    for answered in (newest, older):
        write_answers(runs_dir / "experiments" / answered, 1, {f"problem {n}": responses for n in range(128)})
    progress = runs_dir / "experiments" / newest / PROGRESS_FILE
    progress.write_text(progress.read_text(encoding="utf-8").replace(str(START), str(START + 1)), encoding="utf-8")
    places = [GridCell(f"pair{n // 100}", f"method{n // 10 % 10}", "", n % 10, k, name)
              for n, name in enumerate(names) for k in ("qwen", "llama")]  # fmt: skip
    save_grid(runs_dir, GridRecord("thousand", "A thousand runs", "plain", ["dev"], places))
    places = [GridCell("one", f"method{n // 100}", "", n % 100, "qwen", name) for n, name in enumerate(names)]
    save_grid(runs_dir, GridRecord("section", "A thousand cells", "plain", ["dev"], places))
    return {
        "grid": "/grid/thousand",
        "section": "/grid/section",
        "all runs": "/grid/all",
        "changes": "/grid/thousand/changes",
        "run": f"/run/{names[0]}",
        "live run": f"/run/{names[5]}",
        "curves": f"/run/{names[0]}/curve.json?metric=reward/mean",
        "compare": "/compare?grid=thousand",
        "compare section": "/compare?grid=section",
        "samples": f"/samples/{newest}?step=1",
        "samples of an older run": f"/samples/{older}?step=1",
    }


def _server_times(address: str, rounds: int) -> dict[str, float]:
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        with urllib.request.urlopen(address) as response:
            size = len(response.read())
        times.append(1000 * (time.perf_counter() - started))
    return {"cold": round(times[0], 1), "median": round(statistics.median(times[1:]), 1), "kilobytes": size // 1024}


def _paint_times(url: str, pages: dict[str, str], rounds: int) -> dict[str, dict[str, int]]:
    by_page = {}
    with chromium() as browser:
        browser.new_page().goto(f"{url}/login")  # so that the browser's start-up is not measured
        for name, path in pages.items():
            if name in ("changes", "curves"):
                continue
            times = []
            for _ in range(rounds + 1):
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                tab = context.new_page()
                tab.goto(url + path)
                times.append(float(wait_until(partial(tab.evaluate, PAINT))))
                context.close()
            by_page[name] = {
                "cold": round(times[0]),
                "median": round(statistics.median(times[1:])),
                "most": round(max(times)),
            }
    return by_page


if __name__ == "__main__":
    main()
