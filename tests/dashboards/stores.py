"""Writes folders of runs as trainings leave them, quickly: no model, no fsync."""

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from flows.records.failures import FAILURE_FILE, Failure
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.progress import PROGRESS_FILE, Evaluation, Progress, Spent
from flows.records.states import CONFIG_FILE, RESULT_FILE
from hacpo_core.files import write_json
from hacpo_core.phases.health import Finding
from hacpo_core.store.steps import StepStore
from tests.dashboards.report.finished import evaluate

START = 1_800_000_000.0


def metrics_of(agents: Sequence[str], step: int) -> dict[str, Any]:
    """A step's metrics, smooth in the step and different by agent."""
    found = {}
    for place, agent in enumerate(agents):
        level = 0.3 + 0.1 * place + 0.4 * (1 - math.exp(-step / 100))
        found[agent] = {
            "reward/mean": level,
            "capability/smoothed": level,
            "ratio_own/mean": 1.0,
            "ratio_cross/mean": 0.9,
        }
        found[agent] |= {"update/grad_norm": 0.5} | ({"update/kl_nats": 0.2} if step % 10 == 0 else {})
        found[agent] |= {f"capability/ratio_to_{other}": 0.9 for other in agents if other != agent}
    joint = {"progress/step": float(step), "reward/mean": 0.5, "time/advantage_s": 0.1, "advantage/num_guarded": 4.0}
    return {"timestamp_ms": int(1000 * START), "run": joint, "agents": found}


def write_steps(root: Path, agents: Sequence[str], steps: Sequence[int]) -> None:
    """Metrics of some steps."""
    store = StepStore(root)
    for step in steps:
        store.commit(step, "metrics", {"metrics.json": metrics_of(agents, step)})


def evaluations(agents: Sequence[str], step: int, *, last: float = 0.7) -> list[Evaluation]:
    """On benchmark "dev", from 0.5 before training to `last` (the second agent 0.1 below) at step 40."""
    return [
        Evaluation(at, "dev", k, 0.5 + (last - 0.1 * n - 0.5) * at / 40, Spent(1000 * at, 1.2 * at, 0.0))
        for at in range(0, step + 1, 10)
        for n, k in enumerate(agents)
    ]


def write_run(
    runs_dir: Path,
    *,
    pair: str = "tiny",
    method: str = "hacpo",
    seed: int = 0,
    agents: Sequence[str] = ("qwen", "llama"),
    step: int = 40,
    num_steps: int = 40,
    state: str = "done",
    last: float = 0.7,
    config: Mapping[str, Any] | None = None,
    failure: Failure | None = None,
    with_steps: bool = False,
    findings: Sequence[Finding] = (),
    with_answers: bool = False,
) -> str:
    """One experiment; its id is made of its pair, method and seed; it answers the first ones of a hundred problems."""
    digest = hashlib.sha256(f"{pair} {method} {seed}".encode()).hexdigest()[:8]
    experiment = f"{pair}-{method}-s{seed}-{digest}"
    root = runs_dir / "experiments" / experiment
    root.mkdir(parents=True, exist_ok=True)
    tree = {"seed": seed, "pair": {"name": pair, "agents": {k: {"path": None} for k in agents}}, **(config or {})}
    (root / CONFIG_FILE).write_text(json.dumps(tree), encoding="utf-8")
    progress = Progress(
        pair=pair,
        method=method,
        seed=seed,
        step=step,
        num_steps=num_steps,
        updated_at=START,
        seconds_left=2.4 * (num_steps - step),
        rewards=dict.fromkeys(agents, 0.5),
        spent={k: Spent(1000 * step, 1.2 * step, 0.0) for k in agents},
        evaluations=evaluations(agents, step, last=last),
        findings=list(findings),
    )
    write_json(root / PROGRESS_FILE, asdict(progress), syncs=False)
    if state == "done":
        write_json(root / RESULT_FILE, {"id": experiment, "table": []})
    if failure is not None:
        write_json(root / FAILURE_FILE, asdict(failure))
    if with_steps:
        write_steps(root, agents, range(1, step + 1))
    for end in evaluations(agents, step, last=last) if with_answers else []:
        if end.step == num_steps:
            right = np.arange(100)[:, None] < round(100 * end.value)
            evaluate(StepStore(root), end.step, "dev", end.agent, right.astype(float))
    return experiment


def hold_lock(root: Path) -> IO[str]:
    """Make an experiment look as if a process trains it; close the file to end that."""
    root.mkdir(parents=True, exist_ok=True)
    file = (root / "lock").open("a+", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def write_grid(
    runs_dir: Path,
    *,
    name: str = "small_grid",
    pair: str = "tiny",
    methods: Sequence[str] = ("gspo", "hacpo"),
    seeds: Sequence[int] = (0, 1, 2),
    alone: Sequence[str] = ("gspo",),
    agents: Sequence[str] = ("qwen", "llama"),
    table: str = "plain",
    unavailable: str = "",
    **run: Any,
) -> GridRecord:
    """A grid and its complete runs; methods in `alone` train each agent in an experiment of its own."""
    places = []
    for place, method in enumerate(methods):
        for seed in seeds:
            groups = [(k,) for k in agents] if method in alone else [tuple(agents)]
            for group in groups:
                own = {"last": 0.6 + 0.1 * place + 0.01 * seed, "with_answers": True, **run}
                trained = group[0] if len(group) < len(agents) else pair
                experiment = write_run(runs_dir, pair=trained, method=method, seed=seed, agents=group, **own)
                places += [GridCell(pair, method, "", seed, agent, experiment, unavailable) for agent in group]
    record = GridRecord(name, "A small grid", table, ["dev"], places)
    save_grid(runs_dir, record)
    return record


def write_answers(root: Path, step: int, problems: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]]) -> None:
    """Rollouts, verdicts, advantages and updates of a step.

    Args:
        root: of the experiment.
        step: number.
        problems: by id, per agent its responses as (text, status).
    """
    agents, store = list(next(iter(problems.values()))), StepStore(root)
    rows = [
        {"problem_id": p, "agent": k, "sample": i, "text": text, "status": status}
        for p, answers in problems.items()
        for k in agents
        for i, (text, status) in enumerate(answers[k])
    ]
    frame, keys = pd.DataFrame(rows), ["problem_id", "agent", "sample"]
    frame = frame.assign(raw_reward=(frame.status == "correct").astype(float), extracted="3", reason="")

    def commit(phase: str, file: str, table: pd.DataFrame) -> None:
        store.commit(step, phase, {f"{file}.parquet": table.to_dict(orient="list")})

    for k in agents:
        own = frame[frame.agent == k]
        tokens = own["text"].map(lambda text: list(text.encode()))  # a token per byte
        rollouts = own[[*keys, "text"]].assign(token_ids=tokens, finish_reason="stop", tag="")
        commit(f"rollout.{k}", f"rollouts.{k}", rollouts)
        commit(f"verify.{k}", f"verdicts.{k}", own[[*keys, "status", "raw_reward", "extracted", "reason"]])
    advantages = frame[keys].assign(reward=frame.raw_reward, advantage=frame.raw_reward * 1.5 - 0.5)
    commit("advantage", "advantages", pd.concat([advantages.assign(learner=k) for k in agents]))
    for k in agents:
        is_other = (frame.agent != k).astype(float)
        commit(
            f"update.{k}", f"update.{k}", frame[keys].assign(step=step, ratio=1 - is_other / 4, stopped_share=is_other)
        )


def touch_later(path: Path) -> None:
    """A time of change that differs, on clocks of any coarseness."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))
