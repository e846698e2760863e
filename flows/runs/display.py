"""Progress output of commands: bars and tables for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from flows.records.progress import Progress
from flows.records.watcher import Watcher
from hacpo_core.evaluation.results import EvaluationResult
from hacpo_core.phases.health import Finding

if TYPE_CHECKING:  # importing pandas takes half a second
    import pandas as pd


_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
LINE_EVERY_S = 30.0
"""shortest time between two lines of a bar that no terminal shows"""


class Bars:
    """Progress bars by name, on standard error; where that is no terminal, now and then a line."""

    def __init__(self) -> None:
        self._bars: dict[str, tqdm[Any]] = {}
        self._begun_at: dict[str, float] = {}
        self._told_at: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def show(self, name: str, position: int, total: int, note: str) -> None:
        """Move a bar, which appears with the first call and begins anew with another total."""
        if name in self._bars and self._bars[name].total != total:
            self._bars.pop(name).close()
        if name not in self._bars:
            # without a rate, which contradicts the time after a resume, and without redraws in a log
            options: Any = {"bar_format": _FORMAT, "disable": None, "dynamic_ncols": True, "leave": False}
            self._bars[name] = tqdm(total=total, desc=name, file=sys.stderr, **options)
            self._begun_at[name] = self._told_at[name] = time.monotonic()
        self._bars[name].set_postfix_str(note, refresh=False)
        self._bars[name].update(position - self._bars[name].n)
        if self._bars[name].disable and time.monotonic() - self._told_at[name] >= LINE_EVERY_S:
            self._told_at[name] = time.monotonic()
            self.tell(f"{name}: {position}/{total}{note and f', {note}'}")

    def finish(self, name: str, outcome: str) -> None:
        """Remove a bar, if it has appeared, and print how its work ended."""
        bar = self._bars.pop(name, None)
        seconds = "" if bar is None else f" ({time.monotonic() - self._begun_at[name]:.0f} s)"
        if bar is not None:
            bar.close()
        self.tell(f"{name}: {outcome}{seconds}")

    def tell(self, text: str) -> None:
        """Print a line above the bars."""
        tqdm.write(text, file=sys.stderr)


class TerminalWatcher(Bars, Watcher):
    """Shows the progress of one experiment."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """Move the bar of the agent's warm-up, which ends with its last step."""
        name, note = f"warm-up {agent}", f"loss {loss:.3f}"
        self.show(name, step, num_steps, note)
        if step == num_steps:
            self.finish(name, f"done, {note}")

    def stepped(self, progress: Progress) -> None:
        """Move the bar of the training steps."""
        self.show(self._title, progress.step, progress.num_steps, progress.reward)

    def evaluated(self, result: EvaluationResult) -> None:
        """Print the accuracy."""
        self.tell(str(result))

    def judged(self, finding: Finding) -> None:
        """Print the finding."""
        self.tell(f"health: {finding.message}")


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
