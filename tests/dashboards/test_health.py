"""Findings about a run's health on every list of the page, and on the run's own page."""

import re
from pathlib import Path

from fastapi.testclient import TestClient

from hacpo_core.phases.health import Finding
from hacpo_core.phases.health_rules import RULES
from tests.dashboards.stores import write_grid, write_run

OPEN = Finding("cross_rows_stopped", "qwen", "llama", 3, "bounds stop 100% of llama's rows, whose mean ratio is 0.34")
ENDED = Finding("responses_cut", "llama", "", 4, "50% of the responses are cut <b>", ended_at=9)


def test_badge_is_on_every_list_while_the_finding_holds(page: TestClient, runs_dir: Path) -> None:
    write_grid(runs_dir, methods=("gspo", "hacpo"), alone=(), seeds=(0, 1), findings=())
    ill = write_run(runs_dir, method="hacpo", seed=0, step=20, last=0.7, findings=[OPEN, ENDED])
    for path in ("/", "/grid/small_grid"):
        text = page.get(path).text
        assert text.count("1 run with findings") == 1, path
        assert "responses cut" not in text, "it has ended"
    cells = re.findall(r'<button type="button" id="c[^>]*>', page.get("/grid/small_grid").text)
    marked = [cell for cell in cells if "has-findings" in cell]
    assert len(cells) == 4 and len(marked) == 1
    assert ill in marked[0] and "health: qwen: cross rows stopped" in marked[0]
    table = page.get("/runs").text
    assert table.count('<span class="badge">cross rows stopped</span>') == 1


def test_page_of_the_run_says_since_when_and_what_to_do(page: TestClient, runs_dir: Path) -> None:
    name = write_run(runs_dir, findings=[OPEN, ENDED])
    text = page.get(f"/run/{name}").text
    assert "qwen, since step 3: bounds stop 100% of llama&#39;s rows, whose mean ratio is 0.34." in text
    assert RULES["cross_rows_stopped"].remedy in text
    assert "1 finding in the past" in text
    assert "responses cut, llama, steps 4 to 9: 50% of the responses are cut &lt;b&gt;" in text
    assert 'id="health"' not in page.get(f"/run/{write_run(runs_dir, seed=1)}").text
