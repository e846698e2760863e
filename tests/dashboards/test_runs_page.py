"""The page with the table of runs: its address is its state; notes and deletion."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.notes import Notes, read_notes, write_notes
from tests.dashboards.conftest import RememberingSchedule, csrf_headers, scheduled
from tests.dashboards.stores import write_grid, write_run


def act(page: TestClient, action: str, *experiments: str, text: str = "") -> str:
    data = {"action": action, "experiment": list(experiments), "text": text}
    response = page.post("/runs/notes", data=data, headers=csrf_headers(page))
    assert response.status_code == 200
    return response.text


def test_one_run_is_not_runs(page: TestClient, runs_dir: Path) -> None:
    write_run(runs_dir, seed=0)
    assert "1 run." in page.get("/runs").text and "1 group." in page.get("/runs?group=method").text
    write_run(runs_dir, seed=1, state="missing", step=1)
    assert "2 runs." in page.get("/runs").text and "1 run of 2." in page.get("/runs?q=state%3Ddone").text


def test_address_holds_filter_columns_order_and_groups(page: TestClient, runs_dir: Path) -> None:
    write_grid(runs_dir, config={"train": {"num_steps": 40}})
    parameters = {"q": "method=hacpo", "columns": "run,seed", "add": "train.num_steps", "order": "-seed"}
    shown = page.get("/runs/table", params=parameters)
    assert shown.text.count("<tr id=") == 3
    pushed = shown.headers["hx-push-url"]
    assert pushed == "/runs?q=method%3Dhacpo&columns=run%2Cseed%2Ctrain.num_steps&order=-seed"
    again = page.get(pushed).text
    assert again.index("-s2-") < again.index("-s1-") < again.index("-s0-")
    grouped = page.get("/runs", params={"q": "pair=tiny", "group": "method"}).text
    assert "0.66 ± 0.025" in grouped
    assert '<a href="/runs?q=pair%3Dtiny+method%3D%3Dhacpo" aria-label="3 runs of hacpo">3</a>' in grouped
    assert page.get("/runs.csv", params={"q": "method=hacpo", "columns": "seed"}).text == "seed\n0\n1\n2\n"


def test_link_of_a_group_shows_its_runs_and_no_others(page: TestClient, runs_dir: Path) -> None:
    """For two tags, long floats, an agent's pairs, commas, quotes and missing values."""
    rates = [1.23456789e-5, 1.23456788e-5, 1.23456788e-5, "a 'quoted', text"]
    names = [write_run(runs_dir, seed=seed, config={"optimizer": {"learning_rate": r}}) for seed, r in enumerate(rates)]
    alone = [write_run(runs_dir, seed=9, pair="q")]
    places = [GridCell(pair, "hacpo", "", 9, "qwen", alone[0]) for pair in ("small", "large")]
    save_grid(runs_dir, GridRecord("g", "Two pairs", "plain", ["dev"], places))
    act(page, "tag", *names[:2], text="b a")
    act(page, "tag", names[2], text="b")

    def groups(columns: str) -> list[set[str]]:
        text = page.get("/runs", params={"group": columns}).text
        links = re.findall(r'<td class="number"><a href="(/runs\?[^"]*)" aria-label="\d+ run', text)
        shown = [page.get(link.replace("&amp;", "&")).text for link in links]
        return [{name for name in names + alone if f'href="/run/{name}"' in each} for each in shown]

    a, b, c, d = ({name} for name in names)
    assert sorted(map(sorted, groups("tags"))) == sorted(map(sorted, [a | b, c, d | set(alone)]))
    rated = groups("optimizer.learning_rate")
    assert sorted(map(sorted, rated)) == sorted(map(sorted, [a, b | c, d, set(alone)]))
    assert sorted(map(sorted, groups("pair,method"))) == sorted(map(sorted, [a | b | c | d, set(alone)]))


def test_groups_whose_names_join_to_one_text_are_two(page: TestClient, runs_dir: Path) -> None:
    for pair, method, seed in (("a b", "c", 0), ("a", "b c", 1)):
        write_run(runs_dir, pair=pair, method=method, seed=seed)
    text = page.get("/runs", params={"group": "pair,method"}).text
    assert len(set(re.findall(r'<tr id="(row-\w+)"', text))) == 2
    assert len(set(re.findall(r'href="(/runs\?q=[^"]*)" aria-label="1 run of a b c"', text))) == 2


def test_action_on_thousands_is_refused_in_the_page(page: TestClient, runs_dir: Path) -> None:
    headers = csrf_headers(page) | {"hx-request": "true"}
    data = {"experiment": [f"x{number}" for number in range(501)]}
    for path, action in (("/actions", "run"), ("/runs/notes", "archive")):
        answer = page.post(path, data=data | {"action": action}, headers=headers)
        assert (answer.status_code, answer.text) == (413, "got 501 experiments, expected at most 500; select fewer")


def test_wrong_filter_is_said_in_the_table_and_an_unchanged_table_is_not_sent(page: TestClient, runs_dir: Path) -> None:
    write_run(runs_dir)
    assert "no run has the column &#39;metod&#39;; did you mean method?" in page.get("/runs?q=metod=x").text
    text = page.get("/runs/table").text
    version = text.partition("seen=")[2].partition('"')[0]
    assert page.get("/runs/table", params={"seen": version}).status_code == 204
    write_run(runs_dir, seed=1)
    assert page.get("/runs/table", params={"seen": version}).status_code == 200


def test_tags_notes_and_archive_are_kept(page: TestClient, runs_dir: Path) -> None:
    first, second = (write_run(runs_dir, seed=seed) for seed in (0, 1))
    assert "2 runs: tagged" in act(page, "tag", first, second, text="good v2")
    assert "tag removed" in act(page, "untag", second, text="v2")
    assert "1 run: note kept" in act(page, "note", first, text="<b>looks fine</b>")
    assert "archived" in act(page, "archive", second)
    assert read_notes(runs_dir / "experiments" / second) == Notes(["good"], "", is_archived=True)
    shown = page.get("/runs", params={"q": "tag=good", "add": "note"}).text
    assert (first in shown, second in shown, "<b>looks" in shown) == (True, False, False)
    assert second in page.get("/runs?q=tag=good&archived=true").text
    refusal = act(page, "tag", first, text="a{}")
    assert "refused, tag: got &#39;a{}&#39;" in refusal


def test_deletion_is_asked_back_and_refused_for_what_is_queued(
    page: TestClient, runs_dir: Path, schedule: RememberingSchedule
) -> None:
    write_grid(runs_dir, seeds=(0,), alone=())
    kept = write_run(runs_dir, seed=5, state="missing", step=3)
    gone = write_run(runs_dir, seed=6)
    schedule.known[kept] = scheduled(kept, "Scheduled")
    page.get("/runs")
    asked = act(page, "preview", gone, kept)
    assert "are lost for good" in asked
    assert gone in page.get("/runs").text
    said = act(page, "delete", gone, kept)
    assert f"<b>{kept}</b>: refused, it is queued; cancel it first" in said
    assert (runs_dir / "experiments" / kept).is_dir()
    assert not (runs_dir / "experiments" / gone).exists()


def test_notes_are_changes_and_need_the_pages_token(open_page: Callable[..., TestClient], runs_dir: Path) -> None:
    experiment, page = write_run(runs_dir), open_page()
    assert page.post("/runs/notes", data={"action": "delete", "experiment": experiment}).status_code == 403
    write_notes(runs_dir / "experiments" / experiment, Notes())
    stranger = {"action": "delete", "experiment": "../experiments"}
    assert page.post("/runs/notes", data=stranger, headers=csrf_headers(page)).status_code == 404
    assert (runs_dir / "experiments" / experiment).is_dir()
