"""Phase metrics: computes the figures that every step logs; `definitions.py` says what each one means.

Shapes: R response of one agent, B row of the mini-batches, N token of one agent's responses.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hacpo_core.algo.correction import LOG_BOUND
from hacpo_core.experiment import Experiment
from hacpo_core.methods.build import ROW_FIGURES, TrainedRows
from hacpo_core.methods.objective import RowKind
from hacpo_core.responses import ORDINARY, SEARCHED, Responses
from hacpo_core.store.ledger import Committed, Ledger, TaughtBatch, UpdateRecord


def metrics(experiment: Experiment, step: int) -> None:
    """Commit the step's metrics with their timestamp, which a later run of the phase does not change."""
    if experiment.ledger.store.is_intact(step, "metrics"):
        return
    values = step_metrics(experiment.ledger, step)
    experiment.ledger.store.commit(step, "metrics", {"metrics.json": values})


def step_metrics(ledger: Ledger, step: int) -> dict[str, Any]:
    """All metrics of a step.

    Args:
        ledger: the experiment's.
        step: all its other phases are committed.

    Returns:
        {"timestamp_ms": ..., "run": {name: value}, "agents": {agent: {name: value}}}. Metrics that this step does not
        have (no rows of a source) are left out.
    """
    agents = {agent: _agent_metrics(ledger, step, agent) for agent in ledger.agents}
    estimate = ledger.estimate(step)
    run = {
        "progress/step": float(step),
        "reward/mean": float(np.mean([agent["reward/mean"] for agent in agents.values()])),
        "time/advantage_s": estimate.cost.seconds,
        "tokens/sampled": sum(agent["tokens/sampled"] for agent in agents.values()),
        "tokens/trained": sum(agent["tokens/trained"] for agent in agents.values()),
        **estimate.value.run_figures,
    }
    return {"timestamp_ms": int(time.time() * 1000), "run": run, "agents": agents}


def _agent_metrics(ledger: Ledger, step: int, agent: str) -> dict[str, float]:
    values = {
        **ledger.estimate(step).value.figures.get(agent, {}),
        **_response_metrics(ledger.rollouts(step, agent), ledger.verdicts(step, agent)),
        **_update_metrics(ledger.update(step, agent), ledger.agents),
    }
    if f"teach.{agent}" in ledger.store.committed(step):
        values |= _teaching_metrics(ledger.taught(step, agent))
    return {name: float(value) for name, value in values.items()}


def _response_metrics(rollout: Committed[Responses], verification: Committed[Responses]) -> dict[str, float]:
    reward_R, is_scored_R = verification.value.raw_reward_R, verification.value.is_scored_R
    return {
        "reward/mean": float(np.mean(reward_R[is_scored_R])),
        "reward/num_unscored": int((~is_scored_R).sum()),
        "reward/unscored_share": float((~is_scored_R).mean()),
        "response/length_tokens": len(rollout.value.token_ids.value_N) / len(rollout.value),
        "response/cut_share": float(np.mean([reason == "length" for reason in rollout.value.finish_reason])),
        "tokens/sampled": rollout.cost.num_tokens,
        "time/rollout_s": rollout.cost.seconds,
        "time/verify_s": verification.cost.seconds,
        "gpu/rollout_s": rollout.cost.gpu_seconds,
        **_search_metrics(verification.value),
        **rollout.value.sampler_figures,
    }


def _update_metrics(update: UpdateRecord, agents: Sequence[str]) -> dict[str, float]:
    minibatches, rows = update.outcome.minibatches, update.outcome.rows
    num_rows = sum(m.num_rows for m in minibatches)
    is_own, is_foreign = rows.kind_B == RowKind.OWN, rows.kind_B == RowKind.FOREIGN
    values = {
        **update.figures,
        "update/grad_norm": float(np.mean([m.grad_norm for m in minibatches])),
        "update/learning_rate": minibatches[-1].learning_rate,
        "update/own_objective": float(np.mean([m.own_objective for m in minibatches])),
        "update/cross_objective": float(np.mean([m.cross_objective for m in minibatches])),
        "update/skipped_share": sum(m.num_skipped for m in minibatches) / num_rows if num_rows else 0.0,
        "tokens/trained": sum(m.num_trained_tokens for m in minibatches),
        "time/update_s": update.cost.seconds,
        "gpu/update_s": update.cost.gpu_seconds,
        **_row_metrics("own", rows, is_own),
        **_row_metrics("old", rows, rows.kind_B == RowKind.OLD),
        **_row_metrics("cross", rows, is_foreign),
    }
    if len(agents) > 2:
        agent_B = np.array([key.agent for key in rows.key_B], object)
        for other in agents:
            values |= _row_metrics(f"from_{other}", rows, is_foreign & (agent_B == other))
    values |= {f"ratio_from_{other}/log_center": center for other, center in update.outcome.log_centers.items()}
    if len(is_own):
        values["update/entropy_nats"] = float(rows.figures["entropy"].mean())
        values["update/kl_nats"] = float(rows.figures["kl"][is_own].mean()) if is_own.any() else 0.0
        if is_own.any():
            values |= _sampler_metrics(rows, is_own)
        first_log_ratios = np.log(rows.figures["ratio"][is_own & (rows.update_B == 0)])
        if len(first_log_ratios):
            values["ratio/own_noise_rms"] = math.sqrt(float(np.mean(first_log_ratios**2)))
        correction = rows.figures["correction"][is_own]
        if (correction != 1.0).any():
            values["correction/weight_mean"] = float(correction.mean())
            values["correction/zero_share"] = float((correction == 0.0).mean())
        objective_figures = sorted(set(rows.figures).difference(ROW_FIGURES))
        values |= {f"objective/{name}": float(rows.figures[name].mean()) for name in objective_figures}
    return values


def _sampler_metrics(rows: TrainedRows, is_own: NDArray[np.bool_]) -> dict[str, float]:
    """How far the sampler is from the learner, and how many responses would be left if weights corrected for it.

    effective share = (sum w)^2 / (n sum w^2),   log w = old log-probability - sampler's, of a whole response
    """
    bias_B, num_tokens_B = rows.figures["sampler_bias"][is_own], rows.num_tokens_B[is_own]
    weight_B = np.exp(np.clip(bias_B * num_tokens_B, -LOG_BOUND, LOG_BOUND))
    return {
        "sampler/logprob_difference_mean": float(rows.figures["sampler_difference"][is_own].mean()),
        "sampler/logprob_bias_mean": float(bias_B.mean()),
        "sampler/effective_share": float(weight_B.sum() ** 2 / (len(weight_B) * (weight_B**2).sum())),
    }


def _teaching_metrics(teaching: TaughtBatch) -> dict[str, float]:
    values = {"time/teach_s": teaching.cost.seconds, "gpu/teach_s": teaching.cost.gpu_seconds}
    difference_N = teaching.difference.value_N[~np.isnan(teaching.difference.value_N)]
    if len(difference_N):
        values["teacher/difference_mean"] = float(difference_N.mean())
    return values


def _search_metrics(responses: Responses) -> dict[str, float]:
    is_searched_R = np.array([tag == SEARCHED for tag in responses.tag])
    if not is_searched_R.any() or responses.num_sampled_R is None:
        return {}
    rewards = {"search": is_searched_R, "ordinary": np.array([tag == ORDINARY for tag in responses.tag])}
    is_scored_R, reward_R = responses.is_scored_R, responses.raw_reward_R
    num_sampled = int(responses.num_sampled_R[is_searched_R].sum())
    return {
        "search/num_responses": int(is_searched_R.sum()),
        "search/stopped_share": float(np.mean(np.array(responses.finish_reason)[is_searched_R] == "stop")),
        "search/sampled_tokens": num_sampled,
        "search/kept_share": int(responses.token_ids.lengths[is_searched_R].sum()) / num_sampled,
        **{
            f"reward/{kind}_mean": float(reward_R[is_kind_R & is_scored_R].mean())
            for kind, is_kind_R in rewards.items()
            if (is_kind_R & is_scored_R).any()
        },
    }


def _row_metrics(source: str, rows: TrainedRows, is_counted: NDArray[np.bool_]) -> dict[str, float]:
    if not is_counted.any():
        return {}
    ratio = rows.figures["ratio"][is_counted]
    return {
        f"ratio_{source}/mean": float(ratio.mean()),
        f"ratio_{source}/min": float(ratio.min()),
        f"ratio_{source}/max": float(ratio.max()),
        **{
            f"clip_{source}/{share}": float(rows.figures[share][is_counted].mean())
            for share in ("below_share", "above_share", "stopped_share")
        },
    }
