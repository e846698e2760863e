"""What is measured every step, per agent and per source: names, meaning, computation.

Names are `area/name_unit`. A source is "own", "cross" (all other agents together) or, with more than two agents,
"from_<agent>". Ratios and bounds are of the rows that an update passed through the model: with
`engine.skip_zero_advantage` those that carry an advantage.
"""

from __future__ import annotations

import math
import time
from statistics import fmean
from typing import Any

import numpy as np

from hacpo_core.engines.base import RowOutcome
from hacpo_core.ledger import Ledger, SampledBatch

DEFINITIONS: dict[str, str] = {
    "reward/mean": "mean verified reward of the agent's scored responses",
    "reward/num_unscored": "responses without a verdict",
    "capability/batch": "capability of the agent in this step's batch (Eq. 9)",
    "capability/smoothed": "mean of the last K steps' capability",
    "capability/ratio_to_<agent>": "bounded capability ratio w[this, agent] (Eq. 8)",
    "capability/num_floored": "agents whose capability met the floor",
    "capability/num_clipped": "ordered pairs whose capability ratio met a bound",
    "advantage/baseline_mean": "mean over problems of the agent's baseline",
    "advantage/own_mean": "mean advantage of the agent's own scored responses (Theorem 4.1: 0 on average)",
    "advantage/own_std": "standard deviation of the same",
    "advantage/uniform_share": "share of problems whose group ranks nothing",
    "advantage/num_guarded": "baselines that the binary guard replaced, all agents",
    "ratio_<source>/mean": "mean sequence ratio of the source's rows, before their update",
    "ratio_<source>/min": "least of the same",
    "ratio_<source>/max": "largest of the same",
    "ratio/own_noise_rms": "root mean square of log s of own rows at the step's first update, before any learning",
    "clip_<source>/below_share": "share of the source's rows under the lower bound",
    "clip_<source>/above_share": "share of the source's rows over the upper bound",
    "clip_<source>/stopped_share": "share of the source's rows (or tokens) whose gradient a bound took away",
    "text/length_drift": "(learner tokens - source tokens) / source tokens, mean over retokenised responses",
    "text/num_truncated": "cross-agent responses cut at the learner's limit",
    "text/num_empty": "responses left out because nothing of them was left",
    "text/num_control_dropped": "control tokens that others' texts spelled and that the learner cannot write as text",
    "update/num_unscored": "rows left out because they have no verdict",
    "update/grad_norm": "gradient norm before clipping, mean over the step's updates",
    "update/learning_rate": "learning rate of the step's last update",
    "update/own_objective": "J_homo, mean over the step's updates",
    "update/cross_objective": "J_hete, mean over the step's updates",
    "update/kl_nats": "KL to the reference, mean over own rows",
    "update/entropy_nats": "entropy of the learner's next-token distribution, mean over rows",
    "update/skipped_share": "share of rows without advantage, left out of the passes",
    "update/gradient_cosine": "cosine between the gradients of J_homo and J_hete (Theorem 4.3: positive)",
    "response/length_tokens": "mean length of the agent's responses",
    "response/cut_share": "share of responses cut at the limit",
    "sampler/logprob_difference_mean": "mean |sampler - learner| log-probability of sampled tokens, in nats",
    "sampler/logprob_difference_max": "largest of the same",
    "sampler/ratio_error_mean": "mean |s - 1| between sampler and learner before any update, of the ratios that the "
    "method uses: of tokens or of sequences; over a few responses where the others need no scores of the learner",
    "tokens/sampled": "tokens that the agent sampled",
    "tokens/trained": "response tokens in the agent's updates",
    "time/rollout_s": "wall seconds of the phase",
    "time/verify_s": "wall seconds of the phase",
    "time/update_s": "wall seconds of the phase",
    "gpu/rollout_s": "GPU-seconds of the phase",
    "gpu/update_s": "GPU-seconds of the phase",
    "time/advantage_s": "wall seconds of the joint phase",
    "evaluate/<benchmark>_accuracy": "avg@k: mean over problems of the share of right answers among the scored ones",
    "evaluate/<benchmark>_best_at_<k>": "share of problems that any of k samples solves",
    "evaluate/<benchmark>_bootstrap_best_at_<k>": "share of draws of k from the k samples, with replacement, that hold "
    "a right one, mean over problems (verl's best@k)",
    "evaluate/<benchmark>_pass_at_<k>": "unbiased estimate of the same for fewer samples than were drawn",
    "evaluate/<benchmark>_cut_share": "share of responses cut at the limit",
    "evaluate/<benchmark>_unscored_share": "share of responses without a verdict",
    "progress/step": "the step",
}


def step_metrics(ledger: Ledger, step: int, *, is_token_level: bool) -> dict[str, Any]:
    """All metrics of a step.

    Args:
        ledger: of the experiment.
        step: whose phases are all committed.
        is_token_level: whether the method's ratios are of tokens.

    Returns:
        {"timestamp_ms": ..., "run": {name: value}, "agents": {agent: {name: value}}}; values that do not exist in this
        step (no row of a source, no cosine measured) are left out.
    """
    agents = {k: _agent_metrics(ledger, step, k, is_token_level) for k in ledger.agents}
    joint = ledger.advantages(step)
    run = {
        "progress/step": float(step),
        "reward/mean": float(np.mean([agent["reward/mean"] for agent in agents.values()])),
        "capability/num_floored": float(joint.capability.num_floored),
        "capability/num_clipped": float(joint.capability.num_clipped),
        "advantage/num_guarded": float(joint.capability.num_guarded),
        "time/advantage_s": joint.cost.seconds,
        "tokens/sampled": sum(agent["tokens/sampled"] for agent in agents.values()),
        "tokens/trained": sum(agent["tokens/trained"] for agent in agents.values()),
    }
    return {"timestamp_ms": int(time.time() * 1000), "run": run, "agents": agents}


def _agent_metrics(ledger: Ledger, step: int, k: str, is_token_level: bool) -> dict[str, float]:
    sampled, verified = ledger.rollouts(step, k), ledger.verdicts(step, k)
    joint, update = ledger.advantages(step), ledger.update(step, k)
    own = ledger.agents.index(k)
    rewards = [verdict.reward for verdict in verified.verdicts if verdict.reward is not None]
    is_scored = [verdict.reward is not None for verdict in verified.verdicts]
    own_advantage = joint.advantages.advantage_LPAG[own, :, own].flatten().numpy()[is_scored]
    minibatches, rows = update.outcome.minibatches, update.outcome.rows
    cosines = [m.gradient_cosine for m in minibatches if m.gradient_cosine is not None]
    num_rows = sum(m.num_rows for m in minibatches)
    values = {
        "reward/mean": float(np.mean(rewards)),
        "reward/num_unscored": len(verified.verdicts) - len(rewards),
        "capability/batch": joint.capability.batch[k],
        "capability/smoothed": joint.capability.smoothed[k],
        **{f"capability/ratio_to_{j}": ratio for j, ratio in joint.capability.ratio[k].items() if j != k},
        "advantage/baseline_mean": float(joint.advantages.baseline.mean_PA[:, own].mean()),
        "advantage/own_mean": float(own_advantage.mean()),
        "advantage/own_std": float(own_advantage.std()),
        "advantage/uniform_share": joint.capability.uniform_share[k],
        "text/length_drift": update.counts.length_drift_mean,
        "text/num_truncated": update.counts.num_truncated,
        "text/num_empty": update.counts.num_empty,
        "text/num_control_dropped": update.counts.num_control_dropped,
        "update/num_unscored": update.counts.num_unscored,
        "update/grad_norm": float(np.mean([m.grad_norm for m in minibatches])),
        "update/learning_rate": minibatches[-1].learning_rate,
        "update/own_objective": float(np.mean([m.own_objective for m in minibatches])),
        "update/cross_objective": float(np.mean([m.cross_objective for m in minibatches])),
        "update/skipped_share": sum(m.num_skipped for m in minibatches) / num_rows if num_rows else 0.0,
        "response/length_tokens": sampled.cost.num_tokens / len(sampled.rollouts),
        "response/cut_share": float(np.mean([r.finish_reason == "length" for r in sampled.rollouts])),
        "tokens/sampled": sampled.cost.num_tokens,
        "tokens/trained": sum(m.num_trained_tokens for m in minibatches),
        "time/rollout_s": sampled.cost.seconds,
        "time/verify_s": verified.cost.seconds,
        "time/update_s": update.cost.seconds,
        "gpu/rollout_s": sampled.cost.gpu_seconds,
        "gpu/update_s": update.cost.gpu_seconds,
        **_sampler_metrics(sampled, is_token_level),
        **_row_metrics("own", [row for row in rows if row.is_own]),
        **_row_metrics("cross", [row for row in rows if not row.is_own]),
    }
    if len(ledger.agents) > 2:
        for j, name in enumerate(ledger.agents):
            values |= _row_metrics(f"from_{name}", [row for row in rows if row.source == j and not row.is_own])
    first = [math.log(row.ratio) for row in rows if row.is_own and row.update == 0]
    if first:
        values["ratio/own_noise_rms"] = math.sqrt(fmean(log_ratio**2 for log_ratio in first))
    if rows:
        values["update/entropy_nats"] = float(np.mean([row.entropy for row in rows]))
        values["update/kl_nats"] = float(np.mean([row.kl for row in rows if row.is_own] or [0.0]))
    if cosines:
        values["update/gradient_cosine"] = float(np.mean(cosines))
    return {name: float(value) for name, value in values.items()}


def _sampler_metrics(sampled: SampledBatch, is_token_level: bool) -> dict[str, float]:
    learned = [r.old_logprobs or sampled.probes.get(place) for place, r in enumerate(sampled.rollouts)]
    pairs = [(r.logprobs, learner) for r, learner in zip(sampled.rollouts, learned, strict=True) if learner]
    if not pairs:
        return {}
    differences = [np.asarray(sampler) - np.asarray(learner) for sampler, learner in pairs]
    whole = np.concatenate(differences)
    flat = np.abs(whole)
    compared = whole if is_token_level else np.asarray([d.mean() for d in differences])  # as the ratios that are used
    return {
        "sampler/logprob_difference_mean": float(flat.mean()),
        "sampler/logprob_difference_max": float(flat.max()),
        "sampler/ratio_error_mean": float(np.abs(np.exp(-compared) - 1.0).mean()),
    }


def _row_metrics(source: str, rows: list[RowOutcome]) -> dict[str, float]:
    if not rows:
        return {}
    ratio = np.asarray([row.ratio for row in rows])
    return {
        f"ratio_{source}/mean": float(ratio.mean()),
        f"ratio_{source}/min": float(ratio.min()),
        f"ratio_{source}/max": float(ratio.max()),
        f"clip_{source}/below_share": float(np.mean([row.ratio < row.floor for row in rows])),
        f"clip_{source}/above_share": float(np.mean([row.ratio > row.ceiling for row in rows])),
        f"clip_{source}/stopped_share": float(np.mean([row.stopped_share for row in rows])),
    }
