"""Wait for what another process does, with a deadline: no test relies on how long something takes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    look: Callable[[], T],
    what: str = "",
    *,
    limit_s: float = 120.0,
    every_s: float = 0.05,
    meanwhile: Callable[[], object] = lambda: None,
    said: Callable[[], str] = str,
) -> T:
    """Call `look` until it returns something true, which is returned.

    Args:
        look: what is waited for.
        what: says in the failure what was missing.
        limit_s: the test fails after this time.
        every_s: pause between two calls.
        meanwhile: called before each pause; may raise to end the wait.
        said: called when the test fails; returns more to show, such as the end of a log.
    """
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what or 'not so'} within {limit_s:g} s. {said()}"
        meanwhile()
        time.sleep(every_s)
    return found
