"""The log in an experiment's folder says what happened, attempt by attempt."""

import logging
from pathlib import Path

import pytest

from flows.records.runlog import LOG_FILE, log_entry, log_start, logged, read_log
from hacpo_core.errors import DataError


def test_attempts_warnings_and_their_end_are_read_back_in_order(tmp_path: Path) -> None:
    @logged(tmp_path)
    def attempt() -> None:
        log_start(17)
        logging.getLogger("anything").warning("the disk is %s", "slow")
        logging.getLogger("anything").info("not worth a line")
        log_entry("step", "step 18 of 20")
        raise DataError("train.jsonl: line 3\nis torn")

    with pytest.raises(DataError):
        attempt()
    with logged(tmp_path):
        log_start(18)
    lines = read_log(tmp_path)
    assert [line.kind for line in lines] == ["start", "warning", "step", "end", "start", "end"]
    assert "after step 17" in lines[0].text
    assert lines[1].text == "the disk is slow"
    assert lines[3].text == "ended by DataError: train.jsonl: line 3"
    assert lines[5].text.startswith("complete after ")
    assert lines[0].time <= lines[5].time


def test_nothing_is_written_when_no_experiment_is_trained(tmp_path: Path) -> None:
    with logged(tmp_path):
        pass
    log_entry("step", "step 1")
    logging.getLogger("anything").warning("too late")
    assert [line.kind for line in read_log(tmp_path)] == ["end"]


def test_line_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    with logged(tmp_path):
        log_start(0)
    with (tmp_path / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write('{"time": 1')
    assert [line.kind for line in read_log(tmp_path)] == ["start", "end"]
    assert read_log(tmp_path / "nowhere") == []


def test_log_that_cannot_be_written_ends_nothing_and_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG_FILE).mkdir()
    with logged(tmp_path):
        log_entry("step", "one")
        log_entry("step", "two")
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{tmp_path / LOG_FILE} cannot be written (Is a directory); its entries are lost until it can"]
    assert read_log(tmp_path) == []
