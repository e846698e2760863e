"""The table of runs: filters, order, updates."""

import json
import re
from pathlib import Path

from fastapi.testclient import TestClient

from flows.records.gridfile import GridCell, GridRecord, save_grid
from tests.dashboards.stores import write_run


def runs_of(text: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/run/([^"]+)"', text)


def test_address_filters_and_sorts_and_values_that_are_unknown_come_last(page: TestClient, runs_dir: Path) -> None:
    hacpo = [write_run(runs_dir, seed=seed, last=0.7 + 0.01 * seed) for seed in (0, 2, 10)]
    gspo = write_run(runs_dir, method="gspo", last=0.6)
    other = write_run(runs_dir, pair="other", seed=7, step=3, state="missing")
    (runs_dir / "experiments" / other / "progress.json").unlink()
    begun = write_run(runs_dir, pair="z", step=3, state="missing", last=0.1)
    assert '<span class="badge">interrupted</span>' in page.get(f"/run/{begun}").text
    progress = runs_dir / "experiments" / hacpo[2] / "progress.json"
    read = json.loads(progress.read_text(encoding="utf-8"))
    read["evaluations"] += [e | {"benchmark": "later", "value": 0.0} for e in read["evaluations"] if e["step"]]
    progress.write_text(json.dumps(read), encoding="utf-8")  # `hacpo evaluate` with a benchmark that is not the run's
    alone = write_run(runs_dir, pair="qwen", method="gspo", agents=("qwen",), last=0.5)
    save_grid(runs_dir, GridRecord("g", "A grid", "plain", ["dev"], [GridCell("tiny", "gspo", "", 0, "qwen", alone)]))
    everything = [gspo, *hacpo, other, alone, begun]
    for address, expected in {
        "": sorted(everything),
        "method=hacpo&pair=tiny&order=-seed": hacpo[::-1],
        "state=missing": [other],
        "state=interrupted": [begun],
        "grid=g": [alone],
        "pair=tiny&order=accuracy": [alone, gspo, *hacpo],
        "order=-accuracy": [*hacpo[::-1], gspo, alone, begun, other],
        "order=accuracy": [alone, begun, gspo, *hacpo, other],
    }.items():
        assert runs_of(page.get(f"/runs?{address}").text) == expected, address
    text = page.get("/runs?method=hacpo").text
    assert "5 runs of 7." in text and "<option selected>hacpo</option>" in text
    assert runs_of(page.get("/runs?most=2").text) == sorted(everything)[:2]
    assert page.get("/runs?grid=nope").status_code == 404
    assert page.get("/runs?order=nope").status_code == 422


def test_unchanged_table_is_not_sent_again(page: TestClient, runs_dir: Path) -> None:
    assert "hacpo train tiny hacpo" in page.get("/runs").text
    write_run(runs_dir)
    found = re.search(r'hx-get="([^"]+)"', page.get("/runs/table").text)
    assert found is not None
    poll = found[1].replace("&amp;", "&")
    assert page.get(poll).status_code == 204
    write_run(runs_dir, seed=1)
    assert "2 runs." in page.get(poll).text
