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
    gpu: Annotated[bool, typer.Option(help="test the engines of a hardware file step by step on a tiny model")] = False,
    hardware: Annotated[str, typer.Option(help="with --gpu: the hardware file")] = "one_gpu_vllm",
    model: Annotated[Path | None, typer.Option(help="with --gpu: a model folder to test as well")] = None,
) -> None:
    """Check the installation: packages, engines, ports, disk, GPU, data."""
    if gpu:
        _try_gpu(runs_dir, hardware, model, as_json)
        return
    from flows.doctor.machine import examine

    findings = examine(runs_dir)
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.is_ok else 'NO '} {finding.subject:<14} {finding.detail}")
    if any(not finding.is_ok and finding.is_required for finding in findings):
        raise typer.Exit(EXIT_RUN)


def _try_gpu(runs_dir: Path, hardware: str, model: Path | None, as_json: bool) -> None:
    """Print the result of each step of each trial, and save all of them as JSON."""
    from flows.doctor.engine_trial import trial_report
    from hacpo_core.store.files import write_json

    reports = []
    for folder in [None, model] if model is not None else [None]:
        report = trial_report(hardware, model=folder)
        reports.append(report)
        if not as_json:
            print(f"{report['model']} with --hardware {hardware} on {report['device']}")
            for step in report["steps"]:
                print(
                    f"{'ok ' if step['is_ok'] else 'NO '} {step['name']:<22} {step['seconds']:7.1f} s  {step['detail']}"
                )
    path = runs_dir / "doctor-gpu.json"
    write_json(path, reports)
    print(json.dumps(reports) if as_json else f"all figures: {path}")
    if not all(report["is_ok"] for report in reports):
        raise typer.Exit(EXIT_RUN)
