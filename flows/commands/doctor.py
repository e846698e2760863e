"""`hacpo doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import EXIT_RUN, AsJson, RunsDir


def doctor(
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
    hardware: Annotated[str, typer.Option(help="hardware file whose engines train one step")] = "cpu",
) -> None:
    """Check the installation: packages, disk, GPU, data, and one real step with each engine."""
    from flows.doctor.machine import examine

    findings = []
    for finding in examine(runs_dir, hardware):
        findings.append(finding)
        if not as_json:
            print(f"{'ok ' if finding.is_ok else 'NO '} {finding.subject:<14} {finding.detail}", flush=True)
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings]))
    if any(not finding.is_ok and finding.is_required for finding in findings):
        raise typer.Exit(EXIT_RUN)
