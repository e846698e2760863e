"""Stands in for Prefect's client: flow runs and workers from memory, parsed at every request as Prefect's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType, Worker


class RememberedClient:
    """Answers what `Schedule` asks about runs and workers; `num_requests` counts the former."""

    def __init__(self, workers: Sequence[Worker] = ()) -> None:
        self._workers = list(workers)
        self._runs: dict[str, dict[str, Any]] = {}
        self.num_requests = 0

    def add(self, experiment: str, kind: StateType) -> str:
        """A flow run that starts after all others; returns its id."""
        run = FlowRun(flow_id=uuid4(), name=experiment, parameters={"experiment": experiment}, state=State(type=kind))
        self._runs[str(run.id)] = run.model_dump(mode="json") | {"state_type": kind.value, "work_queue_name": "normal"}
        return str(run.id)

    def set_state(self, run: str, kind: StateType) -> None:
        """Give a run another state."""
        state = State(type=kind).model_dump(mode="json")
        self._runs[run] |= {"state": state, "state_type": kind.value}

    def delete(self, run: str) -> None:
        """Forget a run."""
        del self._runs[run]

    def read_flow_runs(self, *, flow_run_filter: FlowRunFilter, limit: int, offset: int, **_: object) -> list[FlowRun]:
        """A page of the flow runs, the latest first."""
        self.num_requests += 1
        kinds = flow_run_filter.state.type.any_ if flow_run_filter.state and flow_run_filter.state.type else None
        ids = flow_run_filter.id.any_ if flow_run_filter.id else None
        found = [
            run
            for key, run in reversed(self._runs.items())
            if (kinds is None or run["state_type"] in [kind.value for kind in kinds])
            and (ids is None or key in map(str, ids))
        ]
        return [FlowRun.model_validate(run) for run in found[offset : offset + limit]]

    def read_workers_for_work_pool(self, _: str) -> list[Worker]:
        """The workers."""
        return self._workers
