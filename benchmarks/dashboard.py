"""How fast the dashboard's pages are over 1,000 runs of 500 steps: server time, and Chromium's first paint.

    python -m benchmarks.dashboard [--runs 1000] [--steps 500] [--out benchmarks/results/dashboard.json]

The folder is generated (tests/dashboards/stores.py): four runs have 500 steps of files of their own, the others share
these by a link, since no page reads the steps of more than one run. Server time is of one request, as `curl` would see
it, the first after the start ("cold"; `ready_s` is how long the start takes, which reads every run's progress) and the
median of the next ones; first paint is what
Chromium reports as first-contentful-paint of a fresh browser context.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from dashboards.app import warm_up
from flows.compose import compose
from flows.gridfile import GridRecord, Place, save_grid
from hacpo_core.config import as_dict
from tests.dashboards.browsing import chromium, listening, reason_to_skip, wait_until
from tests.dashboards.stores import write_answers, write_run, write_thousand

REPEATS = 5
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
AGENTS = ("qwen-tiny", "llama-tiny")


def main() -> None:
    """Generate, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/dashboard.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder) / "runs"
        started = time.monotonic()
        names = write_thousand(runs_dir, num_runs=asked.runs, num_steps=asked.steps)
        pages = _pages(runs_dir, names)
        generated_s = time.monotonic() - started
        warm_up()
        started = time.monotonic()
        with listening(runs_dir, connect=lambda: None, warm=True) as url:
            urllib.request.urlopen(f"{url}/login").close()
            ready_s = time.monotonic() - started
            server = {name: _server_times(url + path) for name, path in pages.items()}
        with listening(runs_dir, connect=lambda: None, warm=True) as url:
            paint = _paint_times(url, pages) if not reason_to_skip() else {}
    found = {
        "what": f"{asked.runs} runs of {asked.steps} steps, milliseconds",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "generated_s": round(generated_s, 1),
        "ready_s": round(ready_s, 1),
        "server_ms": server,
        "first_contentful_paint_ms": paint,
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def _pages(runs_dir: Path, names: list[str]) -> dict[str, str]:
    """Addresses of the slowest cases, by name."""
    config = as_dict(compose("tiny", "hacpo"))
    answered = write_run(runs_dir, pair="answered", agents=AGENTS, config=config)
    responses = {agent: [("so it is 3\n" * 40, "correct")] * 8 for agent in AGENTS}
    write_answers(runs_dir / "experiments" / answered, 1, {f"problem {n}": responses for n in range(128)})
    places = [Place(f"pair{n // 100}", f"method{n // 10 % 10}", "", n % 10, k, name)
              for n, name in enumerate(names) for k in ("qwen", "llama")]  # fmt: skip
    save_grid(runs_dir, GridRecord("thousand", "A thousand runs", "plain", ["dev"], places))
    return {
        "grid": "/grid/thousand",
        "all runs": "/grid/all",
        "changes": "/grid/thousand/changes",
        "run": f"/run/{names[0]}",
        "curves": f"/run/{names[0]}/curves.json",
        "compare": "/compare?grid=thousand",
        "samples": f"/samples/{answered}?step=1",
    }


def _server_times(address: str) -> dict[str, float]:
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        with urllib.request.urlopen(address) as response:
            size = len(response.read())
        times.append(1000 * (time.perf_counter() - started))
    return {"cold": round(times[0], 1), "median": round(statistics.median(times[1:]), 1), "kilobytes": size // 1024}


def _paint_times(url: str, pages: dict[str, str]) -> dict[str, dict[str, float]]:
    found = {}
    with chromium() as browser:
        browser.new_page().goto(f"{url}/login")  # the browser's own start is not the page's
        for name, path in pages.items():
            if name in ("changes", "curves"):
                continue
            times = []
            for _ in range(REPEATS + 1):
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                tab = context.new_page()
                tab.goto(url + path)
                wait_until(lambda tab=tab: tab.evaluate(PAINT) is not None)
                times.append(float(tab.evaluate(PAINT)))
                context.close()
            found[name] = {
                "cold": round(times[0]),
                "median": round(statistics.median(times[1:])),
                "most": round(max(times)),
            }
    return found


if __name__ == "__main__":
    main()
