"""Progress output of commands: bars and tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from flows.records.progress import Progress
from flows.records.watcher import Watcher
from hacpo_core.evaluation.results import EvaluationResult
from hacpo_core.phases.health import Finding

if TYPE_CHECKING:  # importing pandas takes half a second
    import pandas as pd


class TerminalWatcher(Watcher):
    """Shows progress bars on standard error."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bars: dict[str, tqdm[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def _bar(self, name: str, total: int) -> tqdm[Any]:
        if name in self._bars and self._bars[name].total != total:  # an agent's second warm-up
            self._bars.pop(name).close()
        if name not in self._bars:
            self._bars[name] = tqdm(total=total, desc=name, file=sys.stderr, dynamic_ncols=True)
        return self._bars[name]

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """Update the bar of the agent's warm-up."""
        move(self._bar(f"warm-up {agent}", num_steps), step, f"loss {loss:.3f}")

    def stepped(self, progress: Progress) -> None:
        """Update the bar of the training steps."""
        move(self._bar(self._title, progress.num_steps), progress.step, progress.reward)

    def evaluated(self, result: EvaluationResult) -> None:
        """Print the accuracy above the bars."""
        tqdm.write(str(result), file=sys.stderr)

    def judged(self, finding: Finding) -> None:
        """Print the finding above the bars."""
        tqdm.write(f"health: {finding.message}", file=sys.stderr)


class JobBars:
    """Shows an overall progress bar, and one for each running job, on standard error."""

    def __init__(self, num_all: int) -> None:
        self._all = tqdm(total=num_all, desc="all", position=0)
        self._bars: dict[str, tqdm[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for bar in [*self._bars.values(), self._all]:
            bar.close()

    def show(self, name: str, position: int, total: int, note: str) -> None:
        """Move a job's bar, which appears with the first call."""
        if name not in self._bars:
            lines_in_use = {bar.pos for bar in self._bars.values()}
            free_line = next(line for line in range(1, len(lines_in_use) + 2) if -line not in lines_in_use)
            self._bars[name] = tqdm(total=total, desc=name, position=free_line, leave=False)
        move(self._bars[name], position, note)

    def finish(self, name: str, reason: str) -> None:
        """Remove a job's bar and print how it ended; an empty reason: it is done."""
        bar = self._bars.pop(name, None)
        if bar is not None:
            bar.close()
        seconds = "" if bar is None else f" ({bar.format_dict['elapsed']:.0f} s)"
        tqdm.write(f"{name}: {f'FAILED, {reason}' if reason else 'done'}{seconds}", file=sys.stderr)
        self._all.update()


def move(bar: tqdm[Any], position: int, note: str) -> None:
    """Set a bar's position and the note beside it."""
    bar.set_postfix_str(note, refresh=False)
    bar.update(position - bar.n)


_OF_ESTIMATES = ("value", "low", "high")
"""columns of `read_evaluations` that are fractions"""


def format_table(rows: Sequence[Mapping[str, Any]] | pd.DataFrame) -> str:
    """Format rows as text: fractions with three decimals, large numbers with thousands separators."""
    import pandas as pd

    frame = pd.DataFrame(rows).drop(columns=["gpu_seconds"], errors="ignore")

    def formatter(name: str) -> Callable[[float], str]:
        """One for all numbers of a column; times are not fractions, even if all are short."""
        if pd.api.types.is_integer_dtype(frame[name]):
            return lambda value: f"{value:,}" if abs(value) >= 1000 else str(value)
        is_fraction = name in _OF_ESTIMATES or (name != "seconds" and not frame[name].abs().max() > 1.5)
        return lambda value: f"{value:.3f}" if is_fraction else f"{value:,.1f}"

    formatters = {name: formatter(name) for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])}
    return str(frame.to_string(index=False, formatters=formatters))
