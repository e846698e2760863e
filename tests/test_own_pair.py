"""examples/own_pair runs as its README says, and its files are those of its script."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from examples.own_pair import make_problems
from flows.service.prefect_server import stop_server

FOLDER = Path(make_problems.__file__).parent
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.system
def test_commands_of_the_readme_train_the_pair_and_show_what_it_learnt(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    printed = []
    request.addfinalizer(lambda: stop_server(tmp_path))
    for command in re.findall(r"^hacpo (.*)$", README, re.MULTILINE):
        words = [sys.executable, "-m", "flows.cli", *shlex.split(command), "--runs-dir", str(tmp_path)]
        done = subprocess.run(words, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    table, listed, samples = printed
    row = r"own_pair +hacpo +0 +(\w+) +(0\.\d+) +([01]\.\d+) "
    assert [agent for agent, *_ in re.findall(row, table)] == ["qwen", "llama"], table
    assert all(0.3 < float(before) < float(after) for _, before, after in re.findall(row, table)), table
    assert re.match(r"own_pair-hacpo-s0-\w+ +done +12/12 ", listed), listed
    assert re.search(r"Is \d\d even\?\ngold answer: (yes|no)\n", samples), samples


def test_problems_are_those_of_the_script_and_none_is_held_out_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_problems, "FOLDER", tmp_path)
    make_problems.main()
    assert {file.name for file in FOLDER.glob("*.jsonl")} == {file.name for file in tmp_path.iterdir()}
    texts = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.jsonl")}
    assert texts == {file.stem: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert len(texts["problems"].splitlines()) == 60
    assert not set(texts["problems"].splitlines()) & set(texts["held_out"].splitlines())
