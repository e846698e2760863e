"""Responses of all agents, in a training step (with advantages and ratios per learner) or on a benchmark."""

import logging
from collections.abc import Sequence

import pandas as pd

from flows.planning.plans import Plan
from hacpo_core.data.training import load_training
from hacpo_core.errors import ConfigError, HacpoError
from hacpo_core.evaluation.results import result_phase
from hacpo_core.evaluation.table import read_responses
from hacpo_core.store.steps import StepStore, phase_name

_log = logging.getLogger(__name__)


def step_samples(plan: Plan, step: int) -> pd.DataFrame:
    """One row per response of a training step.

    Columns: problem with its text and gold answer (nan if its file is gone), agent, text, number of tokens, verdict,
    raw and shaped reward, and for each learner the response's advantage, ratio and stopped share; nan where the learner
    cannot train on the response.

    Raises:
        ConfigError: the step has no committed advantages.
    """
    store, names = StepStore(plan.root), list(plan.config.pair.agents)
    if "advantage" not in store.committed(step):
        raise ConfigError(
            f"--step: got {step}, but {plan.id} has not completed it; its last step is {store.last_step()}"
        )
    keys = ["problem_id", "agent", "sample"]
    rounds = [(agent, n) for agent in names for n in range(store.num_rounds(step, "verify", agent))]

    def tables(phase: str, file: str, columns: Sequence[str]) -> pd.DataFrame:
        parts = [(phase_name(phase, *round_key), f"{phase_name(file, *round_key)}.parquet") for round_key in rounds]
        return pd.concat([store.read_table(step, *part, columns=[*keys, *columns]) for part in parts])

    frame = tables("rollout", "rollouts", ["tag", "text", "token_ids", "finish_reason"]).merge(
        tables("verify", "verdicts", ["status", "raw_reward", "extracted", "reason"]), on=keys
    )
    frame["num_tokens"] = frame.pop("token_ids").map(len)
    advantages = store.read_table(step, "advantage", "advantages.parquet")
    frame = frame.merge(advantages[[*keys, "reward"]].drop_duplicates(keys), on=keys, how="left")
    for agent in names:
        sources = names if plan.config.method.shares_rollouts else [agent]  # an estimator may know more than is taken
        part = advantages[(advantages.learner == agent) & advantages["agent"].isin(sources)].rename(
            columns={"advantage": f"advantage_for_{agent}"}
        )
        frame = frame.merge(part[[*keys, f"advantage_for_{agent}"]], on=keys, how="left")
        if f"update.{agent}" in store.committed(step):
            rows = store.read_table(step, f"update.{agent}", f"update.{agent}.parquet")
            rows = rows[rows["step"] == step].drop_duplicates(keys)  # first update of a row, if it has several
            ratios = rows[[*keys, "ratio", "stopped_share"]]
            ratios = ratios.rename(columns={"ratio": f"ratio_for_{agent}", "stopped_share": f"stopped_for_{agent}"})
            frame = frame.merge(ratios, on=keys, how="left")
    return frame.merge(_problems(plan), on="problem_id", how="left")


def _problems(plan: Plan) -> pd.DataFrame:
    """Texts and gold answers of the training problems."""
    try:
        problems = load_training(plan.config.data).problems
    except (HacpoError, OSError) as error:
        _log.info("problems are shown without their texts: %s", error)
        problems = []
    rows = [(problem.id, problem.messages[-1].content, problem.gold.answer) for problem in problems]
    return pd.DataFrame(rows, columns=["problem_id", "question", "answer"])


def benchmark_samples(plan: Plan, benchmark: str, step: int) -> pd.DataFrame:
    """One row per response of an evaluation after a step: the columns of `read_responses`, and the agent.

    Raises:
        StoreError: there is no such evaluation.
    """
    agents, phases = list(plan.config.pair.agents), StepStore(plan.root).committed(step)
    evaluated = [agent for agent in agents if result_phase(benchmark, agent) in phases] or agents
    frames = [read_responses(plan.root, step=step, benchmark=benchmark, agent=agent) for agent in evaluated]
    parts = [frame.assign(agent=agent) for frame, agent in zip(frames, evaluated, strict=True)]
    return pd.concat(parts, ignore_index=True)


def print_samples(frame: pd.DataFrame, num_problems: int) -> None:
    """Print the responses to the first problems of a training step."""
    print("[learner: A advantage, s importance ratio; stopped: clipping set the gradient to 0]")
    for problem_id in list(dict.fromkeys(frame["problem_id"]))[:num_problems]:
        rows = frame[frame.problem_id == problem_id].to_dict(orient="records")
        print(f"=== {problem_id}")
        if not pd.isna(rows[0]["answer"]):
            print(f"{rows[0]['question']}\ngold answer: {rows[0]['answer']}")
        for row in rows:
            effects = []
            for name in (
                column.removeprefix("advantage_for_") for column in row if str(column).startswith("advantage_")
            ):
                if pd.isna(row[f"advantage_for_{name}"]):
                    continue
                ratio, stopped = row.get(f"ratio_for_{name}"), row.get(f"stopped_for_{name}")
                effect = f"{name}: A {row[f'advantage_for_{name}']:+.2f}"
                if ratio is not None and not pd.isna(ratio):
                    effect += f" s {ratio:.3f}{' stopped' if stopped else ''}"
                effects.append(effect)
            answer = "no answer" if pd.isna(row["extracted"]) else f"answer {row['extracted']}"
            verdict = f"{row['status']} {row['reason']}".strip()
            print(f"--- {row['agent']} #{row['sample']} {verdict}, {answer}  [{'; '.join(effects)}]")
            print(row["text"])
