"""`hacpo doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import EXIT_RUN, AsJson, RunsDir
from hacpo_core.errors import ConfigError


def doctor(
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
    gpu: Annotated[
        bool, typer.Option(help="test the engines of a hardware file step by step: one tiny agent, then two in turn")
    ] = False,
    hardware: Annotated[str | None, typer.Option(help="with --gpu: the hardware file; default: one_gpu_vllm")] = None,
    model: Annotated[Path | None, typer.Option(help="with --gpu: a model folder to test as well")] = None,
) -> None:
    """Check the installation: packages, engines, ports, disk, GPU, data."""
    if gpu:
        _try_gpu(runs_dir, hardware or "one_gpu_vllm", model, as_json)
        return
    without_effect = [name for name, value in (("--hardware", hardware), ("--model", model)) if value is not None]
    if without_effect:
        raise ConfigError(f"{', '.join(without_effect)}: no effect without --gpu; add it")
    from flows.doctor.machine import examine

    findings = []
    for finding in examine(runs_dir):
        findings.append(finding)
        if not as_json:
            print(f"{'ok ' if finding.is_ok else 'NO '} {finding.subject:<14} {finding.detail}", flush=True)
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings]))
    if any(not finding.is_ok and finding.is_required for finding in findings):
        raise typer.Exit(EXIT_RUN)


def _try_gpu(runs_dir: Path, hardware: str, model: Path | None, as_json: bool) -> None:
    """Print the result of each step of each trial when it ends, and save all of them as JSON."""
    from flows.doctor.engine_trial import trial_report
    from flows.doctor.gpu import check_compiler, check_driver
    from flows.doctor.swap_trial import swap_report
    from flows.doctor.trials import TrialStep, trial_config
    from hacpo_core.files import write_json

    def show(line: TrialStep | str) -> None:
        if not as_json:
            print(line, flush=True)

    is_gpu = trial_config(hardware, model=None).engine.device != "cpu"
    findings = [check_driver(), check_compiler()] if is_gpu else []
    for finding in findings:
        show(f"{'ok ' if finding.is_ok else 'NO '} {finding.subject:<22} {finding.detail}")
    reports = []
    for folder in [None, model] if model is not None else [None]:
        show(f"{folder or 'tiny'} with --hardware {hardware}")
        reports.append(trial_report(hardware, model=folder, on_step=show))
        reports[-1]["machine"] = [finding.as_dict() for finding in findings]
        if not reports[-1]["is_ok"]:
            continue
        show(f"{folder or 'tiny'} twice, in turn")
        try:
            swaps = swap_report(hardware, model=folder, on_step=show)
        except ConfigError as error:  # a hardware file for one agent only
            show(f"not tried: {error}")
            continue
        if swaps is None:
            show("not tried: with this hardware file, agents have devices of their own")
        else:
            reports.append(swaps)
    path = runs_dir / "doctor-gpu.json"
    write_json(path, reports)
    print(json.dumps(reports) if as_json else f"all figures: {path}")
    if not all(report["is_ok"] for report in reports):
        raise typer.Exit(EXIT_RUN)
