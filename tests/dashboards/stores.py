"""Writes folders of runs as trainings leave them, quickly: no model, no fsync, the same files and digests."""

from __future__ import annotations

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
from hacpo_core.phases.health import Finding
from hacpo_core.store.steps import StepStore
from tests.dashboards.report.finished import evaluate

START = 1_800_000_000.0
STEP_S = 2.0


def write_file(path: Path, value: Any) -> str:
    """A JSON file, and its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(value).encode()
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def metrics_of(agents: Sequence[str], step: int) -> dict[str, Any]:
    """A step's metrics, smooth in the step and different by agent."""
    found = {}
    for place, agent in enumerate(agents):
        level = 0.3 + 0.1 * place + 0.4 * (1 - math.exp(-step / 100))
        values = {
            "reward/mean": level + 0.03 * math.sin(step * (place + 1)),
            "capability/smoothed": level,
            "response/length_tokens": 40.0 + place + step / 50,
            "sampler/logprob_difference_mean": 1e-6,
            "tokens/sampled": 1000.0,
            "time/rollout_s": 0.5,
            "time/verify_s": 0.1,
            "time/update_s": 0.6,
            "gpu/rollout_s": 0.0,
            "gpu/update_s": 0.0,
            "advantage/own_mean": 0.0,
            "advantage/own_std": 1.0,
            "advantage/uniform_share": 0.2,
            "update/grad_norm": 0.5,
            "update/learning_rate": 2e-4,
            "update/own_objective": -0.01,
            "update/cross_objective": 0.02,
            "update/skipped_share": 0.2,
            "update/entropy_nats": 0.1,
            "ratio_own/mean": 1.0,
            "clip_own/below_share": 0.0,
            "clip_own/above_share": 0.0,
        }
        for other in agents:
            if other != agent:
                values[f"capability/ratio_to_{other}"] = 0.9 + 0.1 * place
                values |= {"ratio_cross/mean": 0.93, "clip_cross/below_share": 0.15, "clip_cross/above_share": 0.4}
        if step % 10 == 0:
            values["update/kl_nats"] = 0.2
        found[agent] = values
    joint = {"progress/step": float(step), "reward/mean": 0.5, "time/advantage_s": 0.1, "advantage/num_guarded": 4.0}
    return {"timestamp_ms": int(1000 * START), "run": joint, "agents": found}


def write_steps(root: Path, agents: Sequence[str], steps: Sequence[int]) -> None:
    """Metrics and the phases' costs; the second agent verifies a tenth of a second after the first."""
    for step in steps:
        folder = root / "steps" / f"{step:06d}"
        start = START + STEP_S * step
        phases: dict[str, Any] = {}

        def commit(name: str, file: str, value: Any, at: float, folder: Path = folder, phases: Any = phases) -> None:
            phases[name] = {"files": {file: write_file(folder / file, value)}, "committed_at": at}

        for place, k in enumerate(agents):
            commit(f"rollout.{k}", f"rollouts.{k}.json", cost(0.5), start + 0.5 + 0.1 * place)
            commit(f"verify.{k}", f"verdicts.{k}.json", cost(0.1), start + 0.6 + 0.1 * place)
        joint = start + 0.6 + 0.1 * len(agents)
        commit("advantage", "advantages.json", {"cost": cost(0.1)}, joint)
        for k in agents:
            commit(f"update.{k}", f"update.{k}.json", {"cost": cost(0.6)}, joint + 0.6)
        commit("metrics", "metrics.json", metrics_of(agents, step), joint + 0.61)
        write_file(folder / "manifest.json", {"step": step, "phases": phases})


def cost(seconds: float) -> dict[str, float]:
    """A phase's."""
    return {"seconds": seconds, "gpu_seconds": 0.0, "num_tokens": 0}


def evaluations(
    agents: Sequence[str], step: int, *, every: int = 10, last: float = 0.7, gpu_s: float = 0.0
) -> list[Evaluation]:
    """On benchmark "dev", from 0.5 before training to `last` (the second agent 0.1 below) at step 40."""
    return [
        Evaluation(at, "dev", k, 0.5 + (last - 0.1 * n - 0.5) * at / 40, Spent(1000 * at, 1.2 * at, gpu_s * at))
        for at in range(0, step + 1, every)
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
    gpu_s: float = 0.0,
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
    write_progress(root, pair=pair, method=method, seed=seed, agents=agents, step=step, num_steps=num_steps, last=last,
                   gpu_s=gpu_s, findings=findings)  # fmt: skip
    if state == "done":
        write_file(root / RESULT_FILE, {"id": experiment, "table": []})
    if failure is not None:
        write_file(root / FAILURE_FILE, asdict(failure))
    if with_steps:
        write_steps(root, agents, range(1, step + 1))
    for end in evaluations(agents, step, last=last) if with_answers else []:
        if end.step == num_steps:
            right = np.arange(100)[:, None] < round(100 * end.value)
            evaluate(StepStore(root), end.step, "dev", end.agent, right.astype(float))
    return experiment


def write_progress(
    root: Path,
    *,
    pair: str = "tiny",
    method: str = "hacpo",
    seed: int = 0,
    agents: Sequence[str] = ("qwen", "llama"),
    step: int,
    num_steps: int = 40,
    last: float = 0.7,
    gpu_s: float = 0.0,
    findings: Sequence[Finding] = (),
) -> None:
    """The progress file, in place of an earlier one."""
    spent = {k: Spent(1000 * step, 1.2 * step, gpu_s * step) for k in agents}
    progress = Progress(
        pair=pair,
        method=method,
        seed=seed,
        step=step,
        num_steps=num_steps,
        updated_at=START,
        seconds_left=2.4 * (num_steps - step),
        rewards=dict.fromkeys(agents, 0.5),
        spent=spent,
        evaluations=evaluations(agents, step, last=last, gpu_s=gpu_s),
        findings=list(findings),
    )
    temporary = root / "progress.tmp"
    temporary.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    temporary.rename(root / PROGRESS_FILE)


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
    agents = list(next(iter(problems.values())))
    folder = root / "steps" / f"{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    phases: dict[str, Any] = {}

    def commit(name: str, file: str, frame: pd.DataFrame) -> None:
        frame.to_parquet(folder / file, index=False)
        digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        phases[name] = {"files": {file: digest}, "committed_at": START + step}

    rows = [
        {"problem_id": p, "agent": k, "sample": i, "text": text, "status": status}
        for p, answers in problems.items()
        for k in agents
        for i, (text, status) in enumerate(answers[k])
    ]
    keys = ["problem_id", "agent", "sample"]
    for k in agents:
        own = pd.DataFrame([row for row in rows if row["agent"] == k])
        tokens = own["text"].map(lambda text: list(text.encode()))  # a token per byte
        rollouts = own[[*keys, "text"]].assign(token_ids=tokens, finish_reason="stop", tag="")
        commit(f"rollout.{k}", f"rollouts.{k}.parquet", rollouts)
        raw = (own["status"] == "correct").astype(float)
        verdicts = own[[*keys, "status"]].assign(raw_reward=raw, extracted="3", reason="")
        commit(f"verify.{k}", f"verdicts.{k}.parquet", verdicts)
    advantages = [
        {
            "learner": k,
            **{name: row[name] for name in keys},
            "reward": 1.0 if row["status"] == "correct" else 0.0,
            "advantage": 1.0 if row["status"] == "correct" else -0.5,
        }
        for k in agents
        for row in rows
    ]
    commit("advantage", "advantages.parquet", pd.DataFrame(advantages))
    for k in agents:
        frame = pd.DataFrame(
            [
                {"step": step, **{name: r[name] for name in keys},
                 "ratio": 1.0 if r["agent"] == k else 0.75, "stopped_share": 0.0 if r["agent"] == k else 1.0}
                for r in rows
            ]
        )  # fmt: skip
        commit(f"update.{k}", f"update.{k}.parquet", frame)
    write_file(folder / "manifest.json", {"step": step, "phases": phases})


def touch_later(path: Path) -> None:
    """A time of change that differs, on clocks of any coarseness."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))
