"""`hacpo audit-verifier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, RunsDir
from hacpo_core.records import AnswerStyle


def audit_verifier(
    source: Annotated[str, typer.Argument(help="id of an experiment, or a JSONL or Parquet file of responses")],
    text_field: Annotated[
        str | None, typer.Option(help="column of a file's responses; without it, only its gold answers are checked")
    ] = None,
    answer_field: Annotated[str, typer.Option(help="column of a file's gold answers")] = "answer",
    style: Annotated[AnswerStyle, typer.Option(help="which part of a file's responses is the answer")] = "auto",
    timeout_s: Annotated[float, typer.Option(min=0.1, help="limit of one comparison, s")] = 5.0,
    num: Annotated[int, typer.Option(min=0, help="number of rows that are printed")] = 20,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show verdicts with the gold and the extracted answer, those that a reader should check first.

    First come answers that were refused though they have the gold answer's letters, accepted though they have other
    numbers, and unscored ones. --json prints every row.
    """
    from flows.planning.plans import find_plan
    from flows.runs.verdicts import print_verdicts, verdicts_of_file, verdicts_of_run

    if Path(source).is_file():
        table = verdicts_of_file(
            Path(source), text_field=text_field, answer_field=answer_field, style=style, timeout_s=timeout_s
        )
    else:
        table = verdicts_of_run(find_plan(runs_dir, source))
    if as_json:
        print(table.to_json(orient="records", lines=True), end="")
    else:
        print_verdicts(table, num)
