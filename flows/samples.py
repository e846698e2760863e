"""What the agents answered in a step, side by side, with verdicts and what each response did to each learner."""

from __future__ import annotations

import pandas as pd

from flows.build import Plan
from hacpo_core.errors import ConfigError
from hacpo_core.store import StepStore


def step_samples(plan: Plan, step: int) -> pd.DataFrame:
    """One row per response: problem, agent, text, verdict, and per learner its advantage, ratio and stopped share.

    Raises:
        ConfigError: the step has no committed advantages.
    """
    store, names = StepStore(plan.root), list(plan.config.pair.agents)
    if "advantage" not in store.committed(step):
        raise ConfigError(f"--step: {plan.id} has no complete step {step}; its last one is {store.last_step()}")
    keys = ["problem_id", "agent", "index"]
    rollouts = [store.read_table(step, f"rollout.{k}", f"rollouts.{k}.parquet") for k in names]
    verdicts = [store.read_table(step, f"verify.{k}", f"verdicts.{k}.parquet") for k in names]
    frame = pd.concat(rollouts)[[*keys, "text", "finish_reason"]].merge(
        pd.concat(verdicts)[[*keys, "status", "extracted", "reason"]], on=keys
    )
    advantages = store.read_table(step, "advantage", "advantages.parquet")
    problem_ids = list(dict.fromkeys(frame["problem_id"]))
    for k in names:
        part = advantages[advantages.learner == k].rename(columns={"advantage": f"advantage_for_{k}"})
        frame = frame.merge(part[[*keys, f"advantage_for_{k}"]], on=keys)
        if f"update.{k}" in store.committed(step):
            rows = store.read_table(step, f"update.{k}", f"update.{k}.parquet")
            seen = pd.DataFrame(
                {
                    "problem_id": [problem_ids[p] for p in rows["problem"]],
                    "agent": [names[j] for j in rows["source"]],
                    "index": rows["index"],
                    f"ratio_for_{k}": rows["ratio"],
                    f"stopped_for_{k}": rows["stopped_share"],
                }
            )
            frame = frame.merge(seen, on=keys, how="left")
    return frame


def print_samples(frame: pd.DataFrame, num_problems: int) -> None:
    """The first problems of a step as text."""
    for problem_id in list(dict.fromkeys(frame["problem_id"]))[:num_problems]:
        print(f"=== {problem_id}")
        for row in frame[frame.problem_id == problem_id].to_dict(orient="records"):
            effects = []
            for name in (
                column.removeprefix("advantage_for_") for column in row if str(column).startswith("advantage_")
            ):
                ratio, stopped = row.get(f"ratio_for_{name}"), row.get(f"stopped_for_{name}")
                effect = f"{name}: A {row[f'advantage_for_{name}']:+.2f}"
                if ratio is not None and not pd.isna(ratio):
                    effect += f" s {ratio:.3f}{' stopped' if stopped else ''}"
                effects.append(effect)
            print(f"--- {row['agent']} #{row['index']} {row['status']} {row['reason']}  [{'; '.join(effects)}]")
            print(row["text"])
