"""A flow that Prefect cannot run."""

from typing import Any

import pytest
from prefect.exceptions import PrefectException
from prefect.states import Completed, Failed

from flows.runs.flow import run_flow
from hacpo_core.errors import DataError, ServerError


def flow_that(outcome: Any) -> Any:
    """Stands in for a flow; its call gives this state or raises this error."""

    def stub(*, return_state: bool) -> Any:
        assert return_state
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    stub.name = "stub"  # type: ignore[attr-defined]
    return stub


@pytest.mark.parametrize(
    "outcome",
    [
        RuntimeError("Failed to reach API at http://127.0.0.1:1/api/"),
        Failed(data=PrefectException("no such run\n  object_type=None")),
    ],
)
def test_error_of_prefect_is_one_sentence(outcome: Any) -> None:
    with pytest.raises(ServerError, match=r"^Prefect did not run the flow stub: .*; see `hacpo server status`$"):
        run_flow(flow_that(outcome))


def test_error_of_the_flow_is_raised_as_it_is() -> None:
    with pytest.raises(DataError, match="^no problems$"):
        run_flow(flow_that(Failed(data=DataError("no problems"))))
    assert run_flow(flow_that(Completed(data=3))) == 3
