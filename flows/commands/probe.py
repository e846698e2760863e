"""`hacpo probe`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, Hardware, MethodName, Overrides, Pair, in_runs_dir


def probe(
    pair: Pair,
    method: MethodName = "hacpo",
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
    problems: Annotated[int, typer.Option(min=1, help="number of training problems, chosen by the seed")] = 64,
    runs_dir: Annotated[Path | None, typer.Option(help="folder of all runs; default: runtime.runs_dir")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure in minutes what a training would meet: signal, lengths, ratios against the bounds, time and memory.

    Samples with the real engines and trains nothing. A single agent works too.
    """
    from flows.planning.compose import compose
    from flows.planning.plans import plan

    if "=" in method:  # the method was left out
        method, overrides = "hacpo", [method, *(overrides or [])]
    probe_plan = plan(compose(pair, method, hardware=hardware, overrides=in_runs_dir(overrides, runs_dir)))
    from flows.probe.cost import probe_cost
    from flows.probe.findings import probe_findings
    from flows.probe.measure import probe as measure
    from flows.probe.report import ProbeReport

    measurements = measure(
        probe_plan, num_problems=problems, tell=lambda text: print(text, file=sys.stderr, flush=True)
    )
    cost = probe_cost(probe_plan.config, measurements)
    report = ProbeReport(
        probe_plan, hardware, measurements, cost, probe_findings(probe_plan.config, measurements, cost)
    )
    print(json.dumps(report.as_json()) if as_json else report.as_text())
