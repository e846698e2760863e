"""`hacpo show`, `prefetch`, `probe` and `doctor`: what a training would be, and whether it would work."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import EXIT_RUN, AsJson, Hardware, MethodName, Overrides, Pair, RunsDir, in_runs_dir
from hacpo_core.config import ProblemSetConfig
from hacpo_core.errors import ConfigError


def show(
    pair: Annotated[str | None, typer.Argument(help="pair; default: list everything")] = None,
    method: Annotated[str | None, typer.Argument(help="method")] = None,
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
) -> None:
    """Print the resolved configuration of a pair and a method. Without arguments, list what is there to choose from."""
    from flows.planning.compose import compose, to_yaml
    from flows.planning.declarations import DECLARATION_FOLDERS, available
    from flows.planning.plans import why_alone

    if pair is None:
        for kind in DECLARATION_FOLDERS:
            print(f"{kind}:", *available(kind), sep="\n  ")
        return
    if method is None:
        raise ConfigError("show: got a pair without a method; try `hacpo show tiny hacpo`")
    config = compose(pair, method, hardware=hardware, overrides=overrides or [])
    print(to_yaml(config), end="")
    reason_alone = why_alone(config)
    if reason_alone is not None:
        print(f"# {reason_alone}")


def prefetch(pair: Pair, overrides: Overrides = None) -> None:
    """Download a pair's models, training sets and benchmarks into the hub's cache, for machines without a network."""
    from flows.planning.compose import compose
    from flows.planning.plans import all_problems
    from hacpo_core.data.problem_sets import problem_file
    from hacpo_core.engines.models.folders import find_model

    config = compose(pair, "gspo", overrides=overrides or [])
    sets: dict[str, ProblemSetConfig] = {f"data.sets.{name}": config.data.sets[name] for name in config.data.train}
    sets |= {f"evaluate.benchmarks.{name}": each for name, each in config.evaluate.benchmarks.items()}
    finders: dict[str, Callable[[], Path | None]] = {
        agent.path: partial(find_model, agent.path, agent=name)
        for name, agent in config.pair.agents.items()
        if agent.path is not None
    }
    finders |= {
        field: partial(problem_file, field, each, config.data.directory)
        for field, each in sets.items()
        if each.kind == "file"
    }
    with all_problems() as check:
        for name, find in finders.items():
            check(partial(_tell_place, name, find))
    print("all is here; set HF_HUB_OFFLINE=1, and HF_HOME to this cache, on machines without a network")


def _tell_place(name: str, find: Callable[[], Path | None]) -> None:
    print(f"{name}  {find()}")


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

    measurements = measure(probe_plan, num_problems=problems, tell=lambda text: print(text, file=sys.stderr))
    cost = probe_cost(probe_plan.config, measurements)
    report = ProbeReport(
        probe_plan, hardware, measurements, cost, probe_findings(probe_plan.config, measurements, cost)
    )
    print(json.dumps(report.as_json()) if as_json else report.as_text())


def doctor(
    runs_dir: RunsDir = Path("runs"),
    hardware: Annotated[str, typer.Option(help="hardware file whose engines train one step")] = "cpu",
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="model: only rehearse an update of its longest rows, peak against plan")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Check the installation: packages, disk, GPU, data, and one real step with each engine."""
    if gpu is not None:
        from flows.doctor.rehearsal import rehearse

        print(rehearse(gpu, hardware, *(overrides or [])))
        return
    from flows.doctor.machine import examine

    findings = []
    for finding in examine(runs_dir, hardware, overrides or []):
        findings.append(finding)
        print(f"{'ok ' if finding.is_ok else 'NO '} {finding.subject:<14} {finding.detail}")
    if any(not finding.is_ok and finding.is_required for finding in findings):
        raise typer.Exit(EXIT_RUN)
