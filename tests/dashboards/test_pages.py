"""Every page with no run, one and many; actions with their refusals; nothing that a model wrote becomes markup."""

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboards.app import create_app
from flows.planning.compose import compose
from flows.records.failures import Failure
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.service.prefect_server import PrefectServer
from flows.service.schedule import Schedule
from hacpo_core.config import as_dict
from hacpo_core.errors import ServerError
from tests.dashboards.conftest import ORIGIN, RememberingSchedule, scheduled
from tests.dashboards.stores import hold_lock, touch_later, write_answers, write_grid, write_run

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>'\""
AGENTS = ("qwen-tiny", "llama-tiny")


def act(page: TestClient, action: str, *experiments: str) -> str:
    response = page.post("/actions", data={"action": action, "experiment": experiments}, headers={"origin": ORIGIN})
    assert response.status_code == 200
    return response.text


def poll_of(text: str, name: str) -> str:
    """Where a part of a page asks for its next version."""
    found = re.search(rf'id="{name}"[^>]* hx-get="([^"]+)"', text)
    assert found is not None
    return html.unescape(found[1])


def test_without_a_run_the_page_says_what_to_type(page: TestClient, runs_dir: Path) -> None:
    assert not runs_dir.exists()
    text = page.get("/").text
    assert "hacpo demo" in text and "hacpo grid tiny_table1" in text and "hacpo train tiny hacpo" in text


def test_malformed_file_counts_as_missing_and_the_pages_stay(
    page: TestClient, runs_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_run(runs_dir)
    broken = write_run(runs_dir, seed=3, step=3, state="failed", failure=Failure("E", "m", ""))
    for file, old, new in (
        ("progress.json", '"pair": "tiny"', '"pair": null'),
        ("progress.json", '"seconds": 3.5999999999999996', '"seconds": "long"'),
        ("failure.json", '"message": "m"', '"message": null'),
    ):
        path = runs_dir / "experiments" / broken / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        touch_later(path.parent)
        for address in ("/", f"/run/{broken}"):
            assert page.get(address).status_code == 200
        assert page.get("/runs").text.count('<th scope="row"') == 2
        assert f"{path} is corrupt and counts as missing" in caplog.text
        path.write_text(text, encoding="utf-8")


def test_first_page_answers_for_every_grid(page: TestClient, runs_dir: Path) -> None:
    write_grid(runs_dir, name="older", seeds=range(7))
    write_grid(runs_dir, name="newer", seeds=(7,))
    for seed, address in ((50, "0x12345678"), (51, "0x87654321")):
        failure = Failure("E", f"at {address}", "trace")
        write_run(runs_dir, seed=seed, step=3, state="failed", failure=failure)
        write_grid(
            runs_dir, name="failed", methods=("x",), seeds=(0, 1), alone=(), state="failed", failure=failure, step=3
        )
    text = page.get("/").text
    assert text.index('href="/grid/newer"') < text.index('href="/grid/older"') and "2 runs</a> in no grid" in text
    assert "<b>21</b> of 21 done" in text and '<span class="verdict one seed">one seed</span> HACPO is 5.0' in text
    # one agent right on ten problems more: half a point on ten of a hundred, t(99) = 1.9842, sd .1508
    assert "(95 % interval over problems alone +2.0 to +8.0, p = 0.001 after Holm, 1 seed): more than" in text
    assert '<span class="verdict win">win</span> HACPO is 5.0 points ahead of GSPO (95 % interval +2' in text
    assert "<b>2 ×</b>" in text and text.count("Retry these") == 1
    assert page.get(poll_of(text, "overview")).status_code == 204
    assert page.get("/grid/nope").status_code == 404


def test_grid_is_sent_only_when_it_changed(page: TestClient, runs_dir: Path) -> None:
    write_grid(runs_dir)
    poll = poll_of(page.get("/grid/small_grid").text, "live")
    assert page.get(poll).status_code == 204
    name = write_run(runs_dir, seed=1, step=12, state="missing")
    (runs_dir / "experiments" / name / "result.json").unlink()
    with hold_lock(runs_dir / "experiments" / name):
        text = page.get(poll).text
    assert text.count('class="cell ') == 6 and 'class="cell running p3"' in text and "step 12 of 40" in text
    assert f'data-page="/run/{name}"' in text


def test_cell_shows_why_it_is_not_done(page: TestClient, runs_dir: Path, schedule: RememberingSchedule) -> None:
    failed = write_run(runs_dir, seed=0, step=3, state="failed", failure=Failure("EngineError", "no memory", ""))
    queued = write_run(runs_dir, seed=1, step=0, state="missing")
    schedule.known = {queued: scheduled(queued, "Scheduled")}
    cells = [GridCell("tiny", "hacpo", "", seed, "qwen", name) for seed, name in enumerate((failed, queued))]
    save_grid(runs_dir, GridRecord("two", "Two", "plain", ["dev"], cells))
    text = page.get("/grid/two").text
    assert "EngineError: no memory" in text and "waiting for a worker" in text
    assert failed in text
    assert '<button name="action" value="retry">' in page.get(f"/run/{failed}").text
    assert '<button name="action" value="cancel"' in page.get(f"/run/{queued}").text
    write_grid(runs_dir, methods=("gspo",), seeds=(9,), unavailable="no weights here", with_answers=False)
    for path in (runs_dir / "experiments").glob("*-s9-*"):
        for file in path.iterdir():
            file.unlink()
    assert "no weights here" in page.get("/grid/small_grid").text


def test_notice_where_experiments_wait_and_no_worker_is_alive(
    page: TestClient, schedule: RememberingSchedule, runs_dir: Path
) -> None:
    write_run(runs_dir)
    assert "hacpo worker" not in page.get("/").text
    page.app.state.site.scheduling.close()  # type: ignore[attr-defined]
    schedule.slots = 0
    for state, is_stuck in (("Completed", False), ("Scheduled", True)):
        schedule.known["a"] = scheduled("a", state)
        other = TestClient(create_app(runs_dir, connect=lambda: schedule), base_url=ORIGIN)  # type: ignore[arg-type, return-value]
        text = other.get("/").text
        assert ("once <code>hacpo worker</code> runs" in text) == is_stuck


def test_silent_or_missing_server_is_a_notice_and_the_page_works(runs_dir: Path) -> None:
    write_run(runs_dir)

    def silent() -> Schedule:
        raise ServerError("refused")

    for connect, words in ((silent, "does not answer (ServerError)"), (lambda: None, "No Prefect server runs")):
        page = TestClient(create_app(runs_dir, connect=connect), base_url=ORIGIN)
        text = page.get("/").text
        assert words in text and "1 run</a> in no grid" in text
        name = next((runs_dir / "experiments").iterdir()).name
        assert "refused, " in act(page, "retry", name)


def test_actions_reach_the_schedule(page: TestClient, runs_dir: Path, schedule: RememberingSchedule) -> None:
    failed = write_run(runs_dir, seed=0, step=3, state="failed", failure=Failure("E", "m", ""))
    missing = write_run(runs_dir, seed=1, step=0, state="missing")
    done = write_run(runs_dir, seed=2)
    assert "retry: requested for 1" in act(page, "retry", failed)
    text = act(page, "run", missing, done)
    assert (
        "run: requested for 1" in text
        and f"<b>{done}</b>: refused, it is done; only missing experiments are run" in text
    )
    act(page, "cancel", missing)
    assert schedule.asked == [("start", failed), ("start", missing), ("cancel", missing)]


def test_refusals_of_the_schedule_are_shown(page: TestClient, runs_dir: Path, schedule: RememberingSchedule) -> None:
    name = write_run(runs_dir, step=3, state="missing")
    schedule.refusals = {name: "a live run cannot be retried"}
    assert "refused, a live run cannot be retried" in act(page, "cancel", name)
    assert "refused, it is missing; only failed experiments are retried" in act(page, "retry", name)
    with hold_lock(runs_dir / "experiments" / name):
        assert "refused, it is running" in act(page, "run", name)


def test_run_page_shows_error(page: TestClient, runs_dir: Path) -> None:
    failure = Failure("ValueError", "bad", "Traceback (most recent call last):\nValueError: bad\n")
    name = write_run(runs_dir, step=6, state="failed", with_steps=True, config={"clip": 0.8}, failure=failure)
    text = page.get(f"/run/{name}").text
    assert "ValueError: bad" in text and "clip&#34;: 0.8" in text


def test_run_page_links_into_prefect_and_mlflow(
    open_page: Callable[..., TestClient], runs_dir: Path, schedule: RememberingSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_run(runs_dir, step=3, state="missing")
    (runs_dir / "experiments" / name / "mlflow.json").write_text('{"run": "abc123"}', encoding="utf-8")
    schedule.known = {name: scheduled(name, "Crashed")}
    monkeypatch.setattr("dashboards.site.find_server", lambda _: PrefectServer("http://127.0.0.1:4299", ""))
    text = open_page(mlflow_url=lambda: "http://127.0.0.1:5099").get(f"/run/{name}").text
    assert f"http://127.0.0.1:4299/runs/flow-run/run-of-{name}" in text
    assert 'href="http://127.0.0.1:5099/#/runs/abc123"' in text
    (runs_dir / "experiments" / name / "mlflow.json").write_text('{"run": "javascript:alert(1)"}', encoding="utf-8")
    assert "javascript:" not in open_page(mlflow_url=lambda: "http://127.0.0.1:5099").get(f"/run/{name}").text


def test_failure_of_a_run_arrives_without_reloading(page: TestClient, runs_dir: Path) -> None:
    name = write_run(runs_dir, step=3, state="missing")
    poll = poll_of(page.get(f"/run/{name}").text, "status")
    traceback = 'Traceback (most recent call last):\n  File "/b.py", line 7, in inner\n    fail()\nValueError: bad\n'
    write_run(runs_dir, step=3, state="missing", failure=Failure("ValueError", "bad", traceback))
    text = page.get(poll).text
    assert "Why it failed" in text and "ValueError: bad" in text
    assert page.get(poll_of(text, "status")).status_code == 204


def test_curve_is_sent_when_it_changed_and_as_files(page: TestClient, runs_dir: Path) -> None:
    name = write_run(runs_dir, step=6, with_steps=True)
    address = f"/run/{name}/curve.json?area="
    found = page.get(address).json()
    rows = [row for row in found["spec"]["data"]["values"] if (row["line"], row["metric"]) == ("qwen", "reward/mean")]
    assert [row["x"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert page.get(f"{address}&seen={found['version']}").status_code == 204
    assert page.get(f"/run/{name}/curve.csv?area=update").text.startswith("metric,line,x,value,")
    picture = page.get(f"/run/{name}/curve.svg")
    assert picture.headers["content-type"] == "image/svg+xml" and picture.text.startswith("<svg")
    assert "script-src" not in picture.headers["content-security-policy"]
    assert "<h1>Invalid address</h1>" in page.get("/runs?order=x").text
    assert "<h1>Page not found</h1>" in page.get("/nothing").text
    assert page.get(f"/run/{name}/curve.svg?area=nothing").status_code == 404
    shown = page.get(f"/run/{name}").text
    assert '<details class="area"><summary>update (' in shown
    assert "update/grad_norm: gradient norm before clipping, mean over the step&#39;s updates" in shown


@pytest.fixture
def answered(runs_dir: Path) -> str:
    """A run whose step 2 has two problems, the second with responses that try to break out."""
    name = write_run(runs_dir, agents=AGENTS, config=as_dict(compose("tiny", "hacpo")))
    evil = {"1+1": {AGENTS[0]: [("two", "correct")], AGENTS[1]: [("three", "wrong")]},
            EVIL: {AGENTS[0]: [(EVIL, "correct")], AGENTS[1]: [(EVIL, "correct")]}}  # fmt: skip
    write_answers(runs_dir / "experiments" / name, 2, evil)
    return name


@pytest.mark.slow
def test_samples_side_by_side_with_filters(page: TestClient, answered: str) -> None:
    text = page.get(f"/samples/{answered}").text
    assert "1 of 2" in text and "advantage +1.000" in text and "ratio 0.7500, clipped" in text
    assert text.index('aria-label="qwen-tiny"') < text.index('aria-label="llama-tiny"')
    for address in ("right=qwen-tiny&wrong=llama-tiny", "right=any&wrong=any", "text=THREE", "verdict=wrong"):
        assert "1 of 1 (of 2 problems)" in page.get(f"/samples/{answered}?{address}").text
    assert "matches this filter" in page.get(f"/samples/{answered}?verdict=unscored&step=").text
    assert page.get(f"/samples/{answered}?step=3").status_code == 404
    assert page.get(f"/samples/{answered}?verdict=x").status_code == 422
    assert page.get(f"/samples/{answered}?step=two").status_code == 422


def test_samples_offer_the_next_step_when_it_comes(page: TestClient, runs_dir: Path) -> None:
    name = write_run(runs_dir, agents=AGENTS, step=0, state="missing", config=as_dict(compose("tiny", "hacpo")))
    text = page.get(f"/samples/{name}").text
    assert "No step is complete yet" in text
    problems = {"1+1": {agent: [("two", "correct")] for agent in AGENTS}}
    write_answers(runs_dir / "experiments" / name, 1, problems)
    text = page.get(poll_of(text, "responses")).text
    assert "1 of 1" in text and "step-after" not in text
    poll = poll_of(text, "responses")
    assert page.get(poll).status_code == 204
    write_answers(runs_dir / "experiments" / name, 2, problems)
    text = page.get(poll).text
    assert 'id="step-after"' in text and "step=1" in poll_of(text, "responses")


def test_nothing_that_was_written_elsewhere_becomes_markup(page: TestClient, runs_dir: Path, answered: str) -> None:
    write_run(runs_dir, seed=7, step=1, state="failed", config={"note": EVIL, EVIL: 1}, with_steps=True,
              failure=Failure(EVIL, EVIL, f'  File "{EVIL}", line 3, in {EVIL}\n    {EVIL}\n'))  # fmt: skip
    failed = next(path.name for path in (runs_dir / "experiments").glob("*-s7-*"))
    write_grid(runs_dir, pair=EVIL.replace("/", "|"), agents=(EVIL.replace("/", "|"), "b"))
    pages = ["/", "/runs", f"/run/{failed}", "/grid/small_grid"]
    pages += [f"/samples/{answered}?problem=2", f"/run/{EVIL}", "/grid/small_grid/changes"]
    for path in pages:
        text = page.get(path).text
        assert "<script>" not in text and "<img src=x" not in text, path
    assert "&lt;script&gt;alert(1)" in page.get(f"/samples/{answered}?problem=2").text


def test_templates_hold_no_inline_script_style_or_foreign_address() -> None:
    folder = Path(__file__).parents[2] / "dashboards" / "templates"
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|https?://|\|\s*safe", text), path.name


def test_paths_do_not_leave_the_listing(page: TestClient, runs_dir: Path) -> None:
    write_run(runs_dir)
    for path in ("/run/..%2F..%2Fetc%2Fpasswd", "/samples/%2e%2e", "/static/../app.py", "/static/..%2fapp.py",
                 "/grid/..%2f..", "/run/%00"):  # fmt: skip
        response = page.get(path)
        assert response.status_code == 404 and "root:" not in response.text, path
