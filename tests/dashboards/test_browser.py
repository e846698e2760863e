"""The pages in a real browser: live cells, keyboard, phone, dark mode, axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.planning.compose import compose
from flows.records.failures import Failure
from hacpo_core.config import as_dict
from tests.dashboards.browsing import DESK, PHONE, chromium, listening, reason_to_skip, screenshots, wait_until
from tests.dashboards.conftest import RememberingSchedule
from tests.dashboards.stores import hold_lock, write_answers, write_grid, write_run, write_steps

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "a browser is there"),
]
AGENTS = ("qwen-tiny", "llama-tiny")
FOCUSED = "(({ tagName, className, name }) => `${tagName} ${className || name || ''}`)(document.activeElement)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def served(runs_dir: Path, schedule: RememberingSchedule) -> Iterator[str]:
    with listening(runs_dir, connect=lambda: schedule) as url:
        yield url


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab that notes what the browser complains about: refused by the policy, scripts that fail."""
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]})
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    context.close()


@pytest.fixture
def full(runs_dir: Path) -> dict[str, str]:
    """A grid with one of everything; addresses of its pages by name."""
    write_grid(runs_dir, agents=AGENTS, config=as_dict(compose("tiny", "hacpo")), with_steps=True)
    failure = Failure("EngineError", "out of memory", '  File "/a.py", line 3, in go\n    run()\n')
    failed = write_run(runs_dir, seed=2, agents=AGENTS, step=7, state="failed", with_steps=True, failure=failure)
    (runs_dir / "experiments" / failed / "result.json").unlink()
    done = next(p.name for p in (runs_dir / "experiments").glob("tiny-hacpo-s0-*"))
    right, wrong = [(r"it is $\frac{6}{2}$, so \boxed{3}", "correct")], [("no idea\n" * 5, "wrong")]
    answers = {f"{n}+1": dict(zip(AGENTS, (right, wrong), strict=True)) for n in range(3)}
    for step in (39, 40):
        write_answers(runs_dir / "experiments" / done, step, answers)
    return {
        "grid": "/grid/small_grid",
        "run": f"/run/{failed}?against={done}",
        "compare": "/compare?grid=small_grid",
        "runs": "/runs?q=step%3E0",
        "samples": f"/samples/{done}?step=39",
    }


def open_page(tab: Any, url: str) -> None:
    tab.goto(url)
    tab.wait_for_load_state("networkidle")


def test_cell_advances_while_selection_focus_and_menu_stay(
    tab: Any, served: str, runs_dir: Path, schedule: RememberingSchedule
) -> None:
    name = write_run(runs_dir, step=3, state="missing")
    other = write_run(runs_dir, seed=1, step=1, state="failed", failure=Failure("E", "m", ""))
    root = runs_dir / "experiments" / name
    lock = hold_lock(root)
    open_page(tab, f"{served}/")
    tab.evaluate("window.untouched = true")
    cell = tab.locator("td", has=tab.get_by_label(f"open {name}")).locator(".live")
    assert "3/40" in cell.inner_text() and "running" in cell.inner_text()
    tab.locator(f'input[value="{other}"]').check()
    tab.locator(f'input[value="{name}"]').focus()
    write_run(runs_dir, step=17, state="missing")
    wait_until(lambda: "17/40" in cell.inner_text())
    assert tab.evaluate("document.activeElement.value") == name
    assert tab.locator(f'input[value="{other}"]').is_checked() and tab.locator("#num-selected").inner_text() == "1"
    tab.get_by_label(f"actions for {name}").click()
    lock.close()
    write_run(runs_dir, step=20, state="failed", failure=Failure("KilledError", "its process died", ""))
    wait_until(lambda: "KilledError" in cell.inner_text())
    assert tab.locator("#menu").is_visible()
    tab.locator("#menu").get_by_role("button", name="Retry failed").click()
    wait_until(lambda: "retry: requested for 1" in tab.locator("#menu-outcome").inner_text())
    assert schedule.asked == [("start", name, "normal")]
    tab.keyboard.press("Escape")
    assert not tab.locator("#menu").is_visible()
    wait_until(lambda: "queued" in cell.inner_text())
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == f"actions for {name}"
    write_run(runs_dir, seed=9)  # the matrix grows
    wait_until(lambda: tab.locator("td .live").count() == 3)
    assert tab.locator(f'input[value="{other}"]').is_checked()
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == f"actions for {name}"
    assert tab.evaluate("window.untouched") is True  # never loaded again
    assert tab.complaints == []


def test_refusal_is_shown_for_a_selection(tab: Any, served: str, runs_dir: Path, schedule: RememberingSchedule) -> None:
    failed = write_run(runs_dir, step=1, state="failed", failure=Failure("E", "m", ""))
    write_run(runs_dir, seed=1)
    open_page(tab, served)
    tab.get_by_role("button", name="all", exact=True).click()
    tab.locator("#actions").get_by_role("button", name="Retry failed").click()
    outcome = tab.locator("#outcome")
    wait_until(lambda: "requested for 1" in outcome.inner_text())
    assert "refused, it is done; only failed experiments are retried" in outcome.inner_text()
    assert schedule.asked == [("start", failed, "normal")]


def test_running_run_draws_new_steps_of_the_metrics_that_were_chosen(tab: Any, served: str, runs_dir: Path) -> None:
    name = write_run(runs_dir, step=12, state="missing", with_steps=True)
    open_page(tab, f"{served}/run/{name}")
    wait_until(lambda: tab.locator("figure.chart[data-drawn]").count() == 12)
    tab.locator("#choose summary").click()
    tab.get_by_label("search").fill("entropy next-token")
    assert tab.locator("#metrics .metric:visible").count() == 1
    assert tab.locator("#metric-count").inner_text() == "1 found"
    tab.get_by_label("search").fill("norm")
    tab.get_by_role("checkbox", name="update/grad_norm").check()
    wait_until(lambda: tab.locator("figure.chart[data-drawn]").count() == 13)
    assert "shown=update%2Fgrad_norm" in tab.url
    chart = tab.locator("figure.chart", has_text="update/grad_norm")
    before = int(chart.get_attribute("data-drawn"))
    write_steps(runs_dir / "experiments" / name, ("qwen", "llama"), range(13, 16))
    write_run(runs_dir, step=15, state="missing")
    wait_until(lambda: int(chart.get_attribute("data-drawn")) > before)
    wait_until(lambda: "step 15 of 40" in tab.locator("#status").inner_text())
    tab.get_by_label("from step").fill("1")
    tab.get_by_role("button", name="Show").click()
    wait_until(lambda: "Steps 1 to" in tab.locator("#timeline").inner_text())
    assert tab.complaints == []


def test_run_page_follows_its_run_to_its_failure(tab: Any, served: str, runs_dir: Path) -> None:
    name = write_run(runs_dir, step=6, state="missing", with_steps=True)
    open_page(tab, f"{served}/run/{name}")
    tab.evaluate("document.getElementById('status').untouched = true")
    tab.evaluate("document.querySelector('#timeline svg').untouched = true")
    tab.locator("#samples").focus()
    tab.wait_for_timeout(5000)
    assert tab.evaluate("document.getElementById('status').untouched") is True  # nothing changed
    assert tab.evaluate("document.querySelector('#timeline svg').untouched") is True
    write_steps(runs_dir / "experiments" / name, ("qwen", "llama"), [7])
    wait_until(lambda: "Steps 3 to 7" in tab.locator("#timeline").inner_text())
    trace = '  File "/a.py", line 3, in go\n    run()\n'
    write_run(runs_dir, step=7, state="missing", failure=Failure("EngineError", "out of memory", trace))
    wait_until(lambda: "/a.py:3" in tab.locator("#status").inner_text())
    assert tab.evaluate("document.activeElement.id") == "samples"
    tab.locator("#traceback-title").click()
    write_run(runs_dir, step=8, state="missing", failure=Failure("EngineError", "out of memory", trace))
    wait_until(lambda: "step 8 of 40" in tab.locator("#status").inner_text())
    assert tab.evaluate("document.activeElement.id") == "traceback-title"
    assert tab.locator("#traceback-text").is_visible()
    assert tab.complaints == []


def test_comparison_and_samples_follow_without_losing_the_focus(
    tab: Any, served: str, runs_dir: Path, full: dict[str, str]
) -> None:
    open_page(tab, served + full["compare"])
    tab.evaluate("document.getElementById('results').untouched = true")
    tab.locator("#table-csv").focus()
    tab.locator("#choice-cost").select_option("hours")  # chosen, not yet asked for
    tab.locator("#table-csv").focus()
    tab.wait_for_timeout(6000)
    assert tab.evaluate("document.getElementById('results').untouched") is True
    write_run(runs_dir, seed=0, agents=AGENTS, last=0.9)
    wait_until(lambda: "0.805" in tab.locator("#results").inner_text())
    assert tab.evaluate("document.activeElement.id") == "table-csv"
    assert tab.locator("#choice-cost").input_value() == "hours"
    live = write_run(runs_dir, seed=7, agents=AGENTS, step=1, state="missing", config=as_dict(compose("tiny", "hacpo")))
    answers = {f"{n}+1": {agent: [("it is three", "correct")] for agent in AGENTS} for n in range(2)}
    write_answers(runs_dir / "experiments" / live, 1, answers)
    open_page(tab, f"{served}/samples/{live}")
    tab.locator("#next").focus()
    write_answers(runs_dir / "experiments" / live, 2, answers)
    wait_until(lambda: tab.locator("#step-after").count() == 1)
    assert tab.evaluate("document.activeElement.id") == "next"
    tab.keyboard.press("n")
    tab.wait_for_url("**step=2**")
    assert tab.complaints == []


def test_first_grid_appears_in_an_open_comparison(tab: Any, served: str, runs_dir: Path) -> None:
    open_page(tab, f"{served}/compare")
    assert "Nothing to compare yet" in tab.locator("#results").inner_text()
    write_grid(runs_dir)
    wait_until(lambda: tab.locator("#results tbody tr").count() == 9)
    assert tab.locator("#choice-grid").input_value() == "small_grid"
    for picture in tab.locator("#results img").all():
        wait_until(lambda picture=picture: picture.evaluate("img => img.naturalWidth > 0"))
    assert tab.complaints == []


def test_samples_by_keyboard(tab: Any, served: str, full: dict[str, str]) -> None:
    open_page(tab, served + full["samples"])

    def heading() -> str:
        return str(tab.locator("h2").inner_text())

    assert heading() == "0+1"
    assert tab.locator("math").count() == 2
    assert tab.locator("mfrac").count() == 1
    tab.get_by_label("formulas").uncheck()
    assert r"so \boxed{3}" in tab.locator("pre.math").first.inner_text()
    for key, expected in (("j", "1+1"), ("ArrowRight", "2+1"), ("j", "2+1"), ("k", "1+1"), ("ArrowLeft", "0+1")):
        before = tab.url
        tab.keyboard.press(key)
        if expected != "2+1" or key != "j":
            tab.wait_for_url(lambda url, before=before: url != before)
        tab.wait_for_load_state("domcontentloaded")
        assert heading() == expected
    tab.keyboard.press("n")
    tab.wait_for_url("**step=40**")
    tab.get_by_label("step", exact=True).focus()
    tab.keyboard.press("p")  # inside a field it is a letter
    tab.wait_for_timeout(200)
    assert "step=40" in tab.url


def test_wrong_answers_of_the_weaker_agent_to_what_the_stronger_solves(
    tab: Any, served: str, full: dict[str, str]
) -> None:
    open_page(tab, served + full["samples"])
    tab.locator("select[name=right]").select_option(AGENTS[0])
    tab.locator("select[name=wrong]").select_option(AGENTS[1])
    tab.get_by_label("with the text").fill("1+1")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**right=qwen-tiny&wrong=llama-tiny**")
    assert tab.locator("nav[aria-label=problems]").inner_text().startswith("1 of 1 (of 3 problems)")
    assert tab.complaints == []


def test_filtered_table_of_runs_is_shared_by_its_address_and_a_run_is_tagged(
    tab: Any, served: str, full: dict[str, str], runs_dir: Path
) -> None:
    open_page(tab, f"{served}/runs")
    tab.get_by_label("filter").fill("method=hacpo seed<2")
    wait_until(lambda: tab.locator("#table tbody tr").count() == 2)
    tab.get_by_label("add a column").fill("update/grad_norm")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url("**update%2Fgrad_norm**")
    other = tab.context.new_page()
    open_page(other, tab.url)
    assert other.locator("#table tbody tr").count() == 2
    assert other.locator("#table tbody td").last.inner_text() == "0.5"
    other.close()
    tab.locator("#table input").first.check()
    tab.get_by_role("textbox", name="tags").fill("best")
    tab.get_by_role("button", name="Add tags").click()
    wait_until(lambda: tab.locator("#table .tag").count() == 1)
    assert tab.locator("#table input").first.is_checked()
    assert tab.locator("#num-selected").inner_text() == "1"
    assert tab.complaints == []


def test_pages_are_reached_by_keyboard_alone(tab: Any, served: str, full: dict[str, str]) -> None:
    open_page(tab, served + full["grid"])
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        seen.add(tab.evaluate(FOCUSED))
    assert {"BUTTON pick", "BUTTON action", "INPUT experiment", "BUTTON more", "DIV scroll"} <= seen


@pytest.mark.parametrize("name", ["grid", "runs", "run", "compare", "samples", "empty", "error"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits_a_phone(
    name: str, scheme: str, browser: Any, served: str, runs_dir: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    special = {"empty": "/", "error": "/run/nope"}
    path = special[name] if name in special else request.getfixturevalue("full")[name]
    complaints: list[str] = []
    for width, height in (DESK, PHONE):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        tab = context.new_page()
        tab.on("console", lambda m: complaints.append(m.text) if "ontent Security Policy" in m.text else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        open_page(tab, served + path)
        for details in tab.locator("details > summary").all():
            details.click()
        tab.screenshot(path=str(screenshots(tmp_path) / f"{name}-{scheme}-{width}.png"), full_page=True)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{width} px: scrolls sideways"
        bright = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (bright == "rgb(255, 255, 255)") == (scheme == "light")
        for picture in tab.locator("img").all():
            assert picture.evaluate("img => img.complete && img.naturalWidth > 0")
        found = Axe().run(tab).response["violations"]
        grave = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert grave == []
        context.close()
    assert complaints == []


def test_log_in_in_a_browser(tab: Any, runs_dir: Path, schedule: RememberingSchedule) -> None:
    from dashboards.app import LOOPBACK
    from dashboards.security import Access

    write_run(runs_dir)
    with listening(runs_dir, connect=lambda: schedule, access=Access(LOOPBACK, "a token of the test")) as url:
        open_page(tab, f"{url}/grid/all")
        assert tab.url.endswith("/login")
        tab.get_by_label("Token").fill("wrong")
        tab.keyboard.press("Enter")
        wait_until(lambda: "Wrong token" in tab.locator("#answer").inner_text())
        tab.get_by_label("Token").fill("a token of the test")
        tab.keyboard.press("Enter")
        wait_until(lambda: tab.locator(".matrix").count() == 1)
