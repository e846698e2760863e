"""Failed experiments grouped by cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dashboards.models.grids.cells import StatusOf
from dashboards.models.grids.matrix import MatrixCell

_VARYING = re.compile(r"[0-9a-f]{8,}|\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Experiments with one cause: reasons that differ only in numbers and hashes. `trace` is the first one's."""

    reason: str
    experiments: tuple[str, ...]
    trace: str


def failure_groups(cells: Iterable[MatrixCell], status_of: StatusOf) -> list[FailureGroup]:
    """Causes of the failed cells, the most frequent first."""
    by_cause: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.state == "failed" and len(cell.experiments) == 1:
            by_cause.setdefault(_VARYING.sub("#", cell.reason), {})[cell.experiment] = cell.reason
    groups = []
    for members in by_cause.values():
        first, reason = next(iter(members.items()))
        failure = status_of(first).failure
        groups.append(FailureGroup(reason, tuple(members), failure.traceback if failure is not None else ""))
    return sorted(groups, key=lambda group: -len(group.experiments))
