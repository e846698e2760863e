"""Verdicts of a run, doubtful ones first, and gold answers of a file that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from flows.planning.plans import Plan
from flows.runs.samples import benchmark_samples, step_samples
from flows.runs.verifier import MEMORY_MB
from hacpo_core.data.rows import read_rows
from hacpo_core.data.training import load_training
from hacpo_core.errors import ConfigError
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.store.steps import StepStore
from hacpo_core.verify.doubts import DOUBTS, doubt
from hacpo_core.verify.pool import VerifierPool


def verdicts_of_run(plan: Plan) -> pd.DataFrame:
    """Every verdict of a run as it was recorded, in training and in evaluations: the table of `sorted_verdicts`.

    Raises:
        ConfigError: nothing of the run has been judged.
    """
    golds = {problem.id: problem.gold.answer for problem in load_training(plan.config.data).problems}
    frames, store = [], StepStore(plan.root)
    for step in range(1, store.last_step() + 1):
        if "advantage" in store.committed(step):
            frame = step_samples(plan, step)
            frames.append(frame.assign(gold=frame["problem_id"].map(golds), place=f"step {step}, "))
    evaluations = read_evaluations(plan.root)
    for step_after, benchmark in dict.fromkeys(zip(evaluations["step"], evaluations["benchmark"], strict=True)):
        frame = benchmark_samples(plan, benchmark, step_after).rename(columns={"answer": "gold"})
        frames.append(frame.assign(place=f"{benchmark} after step {step_after}, ", reason=""))
    if not frames:
        raise ConfigError(f"{plan.id}: no step is complete and no benchmark has been evaluated; train it first")
    frame = pd.concat(frames, ignore_index=True)
    frame["place"] += frame["agent"] + ", " + frame["problem_id"] + " #" + frame["sample"].astype(str)
    return sorted_verdicts(frame)


def unreadable_in_file(path: Path, answer_field: str) -> Iterator[str]:
    """How many gold answers of a JSONL or Parquet file cannot be read, and each of them with its place.

    Raises:
        DataError: the file or the column of gold answers is missing or broken.
    """
    places = {row.text(answer_field, numbers=True): row.place for row in reversed(list(read_rows(path)))}
    with VerifierPool(num_workers=2, timeout_s=5.0, memory_mb=MEMORY_MB, style="auto") as pool:
        unreadable_golds = pool.unreadable(places)
    yield f"{len(unreadable_golds)} of {len(places)} different gold answers cannot be read"
    yield from (f"{places[gold]}: {gold}" for gold in unreadable_golds)


def sorted_verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per different verdict, gold and extracted answer, doubtful ones first, then the most frequent.

    Columns: doubt (one of DOUBTS or ""), status, gold, extracted, reason, num (of responses), place (of the first).
    """
    frame = frame.assign(extracted=frame["extracted"].astype(object).where(frame["extracted"].notna(), None))
    frame["doubt"] = [doubt(*row) for row in zip(frame["status"], frame["extracted"], frame["gold"], strict=True)]
    keys = ["doubt", "status", "gold", "extracted", "reason"]
    groups = frame.groupby(keys, dropna=False, sort=False)
    table = groups.agg(num=("place", "size"), place=("place", "first")).reset_index()
    order = {name: rank for rank, name in enumerate((*DOUBTS, ""))}
    table = table.sort_values(
        ["doubt", "num"], key=lambda column: column.map(order) if column.name == "doubt" else -column, kind="stable"
    )
    return table.reset_index(drop=True)


def summary_lines(table: pd.DataFrame) -> Iterator[str]:
    """Counts of the table's responses by verdict and by doubt."""
    by_status = table.groupby("status")["num"].sum()
    yield f"{table['num'].sum()} responses: " + ", ".join(
        f"{by_status[name]} {name}" for name in sorted(by_status.index)
    )
    by_doubt = table.groupby("doubt")["num"].sum()
    for name in DOUBTS:
        if name in by_doubt.index:
            yield f"  {by_doubt[name]:6}  {name}"


def print_verdicts(table: pd.DataFrame, num_rows: int) -> None:
    """Print the counts and the first rows, doubtful ones first."""
    for line in summary_lines(table):
        print(line)
    for row in table.head(num_rows).to_dict(orient="records"):
        extracted = "no answer" if row["extracted"] is None else row["extracted"]
        times = "" if row["num"] == 1 else f"  ({row['num']} responses)"
        print(f"\n{row['doubt'] or row['status']}{times}  {row['reason']}".rstrip())
        print(f"  gold   {row['gold']}\n  found  {extracted}\n  {row['place']}")
