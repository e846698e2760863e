"""Work in the background: in order, awaited, and never failing silently."""

from __future__ import annotations

import threading

import pytest

from hacpo_core.store.background import Background


def test_work_is_done_in_its_order_and_awaited() -> None:
    may_begin, done = threading.Event(), list[int]()
    thread = Background("test")
    thread.do(lambda: done.append(int(may_begin.wait(30))))
    for number in (2, 3):
        thread.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [], "nobody waited for it"
    may_begin.set()
    thread.wait()
    assert done == [1, 2, 3]


def test_failure_is_raised_once_and_what_fails_after_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    may_begin, done = threading.Event(), list[str]()

    def fail(message: str) -> None:
        may_begin.wait(30)
        raise OSError(message)

    thread = Background("test")
    thread.do(lambda: fail("disk full"))
    thread.do(lambda: fail("still full"))
    thread.do(lambda: done.append("later"))
    may_begin.set()
    with pytest.raises(OSError, match="disk full"):
        thread.wait()
    assert "another error in the background thread: still full" in caplog.text
    assert done == ["later"]
    thread.wait()


def test_failure_is_raised_by_the_next_work_which_is_done_all_the_same() -> None:
    thread, done, ended = Background("test"), list[str](), threading.Event()

    def fail() -> None:
        threading.Timer(0.2, ended.set).start()  # when this work has long ended
        raise OSError("disk full")

    thread.do(fail)
    assert ended.wait(30)
    with pytest.raises(OSError, match="disk full"):
        thread.do(lambda: done.append("next"))
    thread.wait()
    assert done == ["next"]
