"""The pages in a real browser: live cells, keyboard, phone, dark mode, axe-core."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.planning.compose import compose
from flows.records.failures import Failure
from flows.records.gridfile import GridCell, GridRecord, save_grid
from hacpo_core.config import as_dict
from tests.dashboards.browsing import DESK, PHONE, chromium, listening, reason_to_skip, screenshots
from tests.dashboards.conftest import RememberingSchedule
from tests.dashboards.stores import hold_lock, write_answers, write_grid, write_run, write_steps
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "a browser is there"),
    pytest.mark.system,
]
AGENTS = ("qwen-tiny", "llama-tiny")


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
        "overview": "/",
        "grid": "/grid/small_grid",
        "run": f"/run/{failed}",
        "runs": "/runs?order=-accuracy",
        "samples": f"/samples/{done}?step=39",
    }


def open_page(tab: Any, url: str) -> None:
    tab.goto(url)
    tab.wait_for_load_state("networkidle")


def cell_of(tab: Any, experiment: str) -> Any:
    return tab.locator(f'button.cell[data-ids="{experiment}"]')


def test_find_who_wins(tab: Any, served: str, runs_dir: Path) -> None:
    write_grid(runs_dir, agents=AGENTS, seeds=range(9))
    open_page(tab, served)
    assert "win HACPO is 5.0 points ahead of GSPO" in tab.locator(".verdicts").inner_text()
    tab.get_by_role("link", name="A small grid", exact=True).click()
    tab.wait_for_load_state("load")
    assert "HACPO is 5.0 points ahead of GSPO" in tab.locator("#verdicts").inner_text()
    assert tab.complaints == []


def save_cells(runs_dir: Path, *seeds: int) -> None:
    """A grid of HACPO's runs with these seeds."""
    names = {
        seed: next((runs_dir / "experiments").glob(f"tiny-hacpo-s{seed}-*"), Path(f"s{seed}")).name for seed in seeds
    }
    cells = [GridCell("tiny", "hacpo", "", seed, k, name) for seed, name in names.items() for k in ("qwen", "llama")]
    save_grid(runs_dir, GridRecord("some", "Some", "plain", ["dev"], cells))


def test_find_why_it_failed_and_retry_by_keyboard(
    tab: Any, served: str, runs_dir: Path, schedule: RememberingSchedule
) -> None:
    write_run(runs_dir, seed=2)
    failure = Failure("EngineError", "out of memory", '  File "/a.py", line 3, in go\n    run()\n')
    failed = [write_run(runs_dir, seed=seed, step=7, state="failed", failure=failure) for seed in (0, 1)]
    save_cells(runs_dir, 0, 1, 2)
    open_page(tab, f"{served}/grid/some")
    assert "2 × EngineError: out of memory" in tab.locator(".failures").inner_text().replace("\n", " ")
    cell_of(tab, failed[0]).focus()
    assert failed[0] in tab.locator("#peek").inner_text()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Space")
    assert tab.locator("#num-selected").inner_text() == "1"
    assert tab.locator("#act button[value=retry]").is_visible()
    assert tab.locator("#act button[value=cancel]").is_hidden()  # it does not fit
    tab.keyboard.press("r")
    wait_until(lambda: "retry: requested for 1" in tab.locator("#outcome").inner_text())
    assert schedule.asked == [("start", failed[1])]
    wait_until(lambda: cell_of(tab, failed[1]).get_attribute("data-state") == "queued")
    assert tab.evaluate("document.activeElement.dataset.ids") == failed[1]
    asked: list[str] = []
    tab.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    tab.keyboard.press("c")
    wait_until(lambda: ("cancel", failed[1]) in schedule.asked)
    assert len(asked) == 1 and "Cancel" in asked[0]
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/run/{failed[0]}")
    assert tab.complaints == []


def test_cell_advances_while_selection_and_focus_stay(tab: Any, served: str, runs_dir: Path) -> None:
    name = write_run(runs_dir, step=3, state="missing")
    other = write_run(runs_dir, seed=1, step=1, state="failed", failure=Failure("E", "m", ""))
    lock = hold_lock(runs_dir / "experiments" / name)
    save_cells(runs_dir, 0, 1)
    open_page(tab, f"{served}/grid/some")
    tab.evaluate("window.untouched = true")
    cell = cell_of(tab, name)
    assert cell.inner_text() == "▸7" and "step 3 of 40" in str(cell.get_attribute("aria-label"))
    tab.get_by_role("button", name="failed", exact=True).click()
    cell.focus()
    write_run(runs_dir, step=17, state="missing")
    wait_until(lambda: cell.inner_text() == "▸42")
    assert tab.evaluate("document.activeElement.dataset.ids") == name
    assert cell_of(tab, other).get_attribute("aria-pressed") == "true"
    lock.close()
    write_run(runs_dir, step=20, state="failed", failure=Failure("KilledError", "its process died", ""))
    wait_until(lambda: "KilledError" in str(cell.get_attribute("aria-label")))
    write_run(runs_dir, seed=9)
    save_cells(runs_dir, 0, 1, 9)  # the matrix grows
    wait_until(lambda: tab.locator("button.cell").count() == 3)
    assert cell_of(tab, other).get_attribute("aria-pressed") == "true"
    assert tab.evaluate("document.activeElement.dataset.ids") == name
    assert tab.evaluate("window.untouched") is True  # never loaded again
    assert tab.complaints == []


def test_running_run_draws_new_steps_and_folded_metrics_once_they_open(tab: Any, served: str, runs_dir: Path) -> None:
    name = write_run(runs_dir, step=12, state="missing", with_steps=True)
    open_page(tab, f"{served}/run/{name}")
    wait_until(lambda: tab.locator("figure.chart[data-drawn]").count() == 1)
    assert (tab.locator("#curves svg.marks").text_content() or "").count("reward/mean") == 1
    tab.locator("details.area summary", has_text="update").click()
    wait_until(lambda: tab.locator("figure.chart[data-drawn]").count() == 2)
    chart = tab.locator("#curves")
    chart.get_by_label("log y").check()
    before = int(chart.get_attribute("data-drawn"))
    write_steps(runs_dir / "experiments" / name, ("qwen", "llama"), range(13, 16))
    write_run(runs_dir, step=15, state="missing")
    wait_until(lambda: int(chart.get_attribute("data-drawn")) > before)
    wait_until(lambda: "step 15 of 40" in tab.locator("#status").inner_text())
    assert tab.complaints == []


def test_samples_follow_without_losing_the_focus(tab: Any, served: str, runs_dir: Path) -> None:
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
    before = tab.url
    tab.keyboard.press("n")
    tab.wait_for_url("**step=40**")
    tab.get_by_label("step", exact=True).focus()
    tab.keyboard.press("p")  # inside a field it is a letter
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("p")
    tab.wait_for_url(before)  # one step back, not two


@pytest.mark.parametrize("name", ["overview", "grid", "runs", "run", "samples", "empty", "error"])
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


def test_targets_are_large_enough_and_a_matrix_is_one_tab_stop(
    tab: Any, served: str, full: dict[str, str], runs_dir: Path
) -> None:
    small = """() => [...document.querySelectorAll("a[href], button, input, select, summary")].filter(element => {
        const {width, height} = element.getBoundingClientRect();
        const inText = getComputedStyle(element).display === "inline";
        return element.checkVisibility() && !inText && (width < 24 || height < 24);
    }).map(element => element.outerHTML)"""
    for name in ("overview", "grid", "runs", "run", "samples"):
        open_page(tab, served + full[name])
        assert tab.evaluate(small) == [], name
    write_grid(runs_dir, name="large", seeds=range(6))
    open_page(tab, f"{served}/grid/large")
    assert tab.locator("button.cell").count() >= 12
    assert tab.locator("button.cell[tabindex='0']").count() == 1
    assert tab.locator("button.cell:not([tabindex])").count() == 0
