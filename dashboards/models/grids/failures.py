"""Failed experiments grouped by cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dashboards.models.grids.matrix import MatrixCell

_VARYING = re.compile(r"[0-9a-f]{8,}|\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Experiments with one cause: reasons that differ only in numbers and hashes."""

    reason: str
    experiments: tuple[str, ...]


def failure_groups(cells: Iterable[MatrixCell]) -> list[FailureGroup]:
    """Causes of the failed experiments, the most frequent first."""
    by_cause: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.state == "failed":
            by_cause.setdefault(_VARYING.sub("#", cell.reason), {})[cell.experiment] = cell.reason
    groups = [FailureGroup(next(iter(members.values())), tuple(members)) for members in by_cause.values()]
    return sorted(groups, key=lambda group: -len(group.experiments))
