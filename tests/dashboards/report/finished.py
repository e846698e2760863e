"""Complete experiments written by hand, in the files that a real one leaves: every figure of a report is known."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from flows.grids.planner import GridConfig, GridEntry, GridPlan, ReportConfig
from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.records.gridfile import GridCell
from flows.records.progress import PROGRESS_FILE, Evaluation, Progress, Spent
from flows.runs.experiment import RESULT_FILE
from flows.service.experiment_state import ExperimentState
from hacpo_core.config import TeamConfig
from hacpo_core.evaluation.metrics import estimates
from hacpo_core.evaluation.results import EvaluationResult, result_phase, results
from hacpo_core.files import write_json
from hacpo_core.phases.health import Finding
from hacpo_core.records import PhaseCost
from hacpo_core.store.steps import StepStore

AGENTS = ("qwen-tiny", "llama-tiny")
NUM_STEPS = 2
Rewards = Sequence[Sequence[float]]
"""By problem and sample; nan is unscored."""


def finished(
    root: Path,
    method: str,
    *,
    seed: int = 0,
    agents: Sequence[str] = AGENTS,
    rewards: Mapping[tuple[int, str, str], Rewards],
    metrics: Mapping[str, float],
    headline: str = "avg@1",
    is_tracked: bool = False,
    findings: Sequence[Finding] = (),
) -> Plan:
    """A complete experiment.

    Args:
        root: runs folder.
        method, seed: of the experiment.
        agents: of the tiny pair.
        rewards: by step, benchmark and agent.
        metrics: every agent's, the same in every step.
        headline: the benchmarks' metric.
        is_tracked: whether MLflow is told.
        findings: about its health.
    """
    words = [f"seed={seed}", f"train.num_steps={NUM_STEPS}", f"runtime.runs_dir={root}"]
    config = compose("tiny", method, overrides=[*words, f"tracking.enabled={str(is_tracked).lower()}"])
    pair = TeamConfig(name=config.pair.name, agents={name: config.pair.agents[name] for name in agents})
    config = replace(config, pair=pair)
    plan = Plan(f"{'+'.join(agents)}-{method}-s{seed}", config, root / f"{'+'.join(agents)}-{method}-s{seed}")
    plan.root.mkdir(parents=True)
    store = StepStore(plan.root)
    for (step, benchmark, agent), values in rewards.items():
        evaluate(store, step, benchmark, agent, np.asarray(values, dtype=np.float64), headline)
    for step in range(1, NUM_STEPS + 1):
        value = {"timestamp_ms": 10**12, "run": {}, "agents": {agent: dict(metrics) for agent in agents}}
        store.commit(step, "metrics", {"metrics.json": value})
    tokens, gpu_s = metrics.get("tokens/sampled", 0), metrics.get("gpu/rollout_s", 0.0)
    noted = [
        Evaluation(e.step, e.benchmark, e.agent, e.value, Spent(int(e.step * tokens), 0.0, e.step * gpu_s))
        for e in results(plan.root)
    ]
    write_json(
        plan.root / PROGRESS_FILE,
        asdict(
            Progress(pair.name, method, seed, NUM_STEPS, NUM_STEPS, 0.0, evaluations=noted, findings=list(findings))
        ),
    )
    cost = {"tokens_sampled": 1000, "tokens_trained": 400, "seconds": 36.0, "gpu_seconds": 0.0}
    table = [{"agent": agent, "seed": seed, **cost} for agent in agents]
    result: dict[str, Any] = {"id": plan.id, "table": table}
    write_json(plan.root / RESULT_FILE, result)
    return plan


def evaluate(
    store: StepStore, step: int, benchmark: str, agent: str, reward_PK: np.ndarray[Any, Any], headline: str = "avg@1"
) -> None:
    """Commit an agent's answers to a benchmark after a step, and their result."""
    num_problems, num_samples = reward_PK.shape
    shard = f"answer.{benchmark}.0-{num_problems}.{agent}"
    table = {
        "problem_id": [f"p{p}" for p in range(num_problems) for _ in range(num_samples)],
        "sample": [*range(num_samples)] * num_problems,
        "reward": reward_PK.ravel(),
        **dict.fromkeys(("question", "answer", "text", "finish_reason", "status", "extracted"), [""] * reward_PK.size),
        "num_tokens": [1] * reward_PK.size,
    }
    store.commit(step, shard, {f"{shard}.parquet": table})
    result = EvaluationResult(
        benchmark=benchmark,
        agent=agent,
        step=step,
        digest="",
        declaration={},
        estimates=tuple(estimates(reward_PK, seed=0)),
        headline=headline,
        num_problems=num_problems,
        num_samples=num_samples,
        cut_share=0.0,
        unscored_share=float(np.isnan(reward_PK).mean()),
        shards=((0, num_problems),),
        cost=PhaseCost(0.0),
    )
    phase = result_phase(benchmark, agent)
    store.commit(step, phase, {f"{phase}.json": asdict(result)})


def grid_of(
    plans: Sequence[Plan], *, pair: str = "tiny", extra: Mapping[GridCell, ExperimentState] = {}, **report: Any
) -> GridPlan:
    """A grid whose cells are complete experiments, and cells that are not."""
    cells = [
        GridCell(pair, p.config.method.name, "", p.config.seed, agent, p.id)
        for p in plans
        for agent in p.config.pair.agents
    ]
    seeds = sorted({p.config.seed for p in plans})
    config = GridConfig("A grid", [GridEntry([pair], ["hacpo"])], seeds=seeds, report=ReportConfig(**report))
    states = {p.id: ExperimentState("done", "") for p in plans}
    states |= {cell.experiment: state for cell, state in extra.items()}
    return GridPlan("grid", config, [*cells, *extra], {p.id: p for p in plans}, states)
