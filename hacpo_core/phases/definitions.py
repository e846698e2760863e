"""Meaning of the figures that every step logs, per agent and per source; needs neither torch nor an experiment.

Names are `area/name_unit`. A source is "own", "cross" (all other agents together), "old" (the agent's own rows of
earlier steps) or, with more than two agents, "from_<agent>". Ratio and clip metrics cover the rows that an update
passed through the model; with `engine.skip_zero_advantage`, those are the rows with an advantage. With objective
`self_normalised`, ratio and clip metrics of other agents' rows are of s~, the ratio that the bounds see; s itself is
s~ exp(log_center). Estimators add metrics of their own.
"""

import re
from collections.abc import Mapping
from functools import cache

DEFINITIONS: Mapping[str, str] = {
    "reward/mean": "mean verified reward of the agent's scored responses",
    "reward/ordinary_mean": "mean verified reward of the sampled responses; only in steps with searched responses",
    "reward/search_mean": "mean verified reward of the searched responses",
    "reward/num_unscored": "responses without a verdict",
    "reward/unscored_share": "share of responses without a verdict",
    "capability/batch": "capability of the agent in this step's batch (Eq. 9)",
    "capability/smoothed": "mean capability over the last K steps",
    "capability/ratio_to_<agent>": "bounded capability ratio w[this, agent] (Eq. 8)",
    "capability/num_floored": "agents whose capability was raised to the floor",
    "capability/num_clipped": "ordered pairs whose capability ratio was clipped",
    "difficulty/anchor": "running mean reward of the agent, against which a problem is easy or hard (HA-DW)",
    "difficulty/weight_mean": "mean weight of the agent's own scored rows (HA-DW)",
    "difficulty/advantage_sum": "sum of the weighted advantages of the agent's own rows (HA-DW)",
    "advantage/baseline_mean": "mean over problems of the agent's baseline",
    "advantage/own_mean": "mean advantage of the agent's own scored responses (Theorem 4.1: 0 on average)",
    "advantage/own_std": "standard deviation of the advantages of the agent's own scored responses",
    "advantage/uniform_share": "share of problems whose rewards are all equal",
    "advantage/num_guarded": "baselines that the binary guard replaced, all agents",
    "ratio_<source>/mean": "mean sequence importance ratio of the source's rows, before their update",
    "ratio_<source>/min": "smallest sequence importance ratio of the source's rows, before their update",
    "ratio_<source>/max": "largest sequence importance ratio of the source's rows, before their update",
    "ratio_from_<agent>/log_center": "c, nats per token: mean log-ratio of that agent's rows before the step's first "
    "update, over the last steps; ratio and clip metrics of its rows are of s~ = s / exp(c) (self_normalised)",
    "ratio/own_noise_rms": "root mean square of log s of own rows at the step's first update, when s should be 1; 0 "
    "where the update takes old log-probabilities from its own passes",
    "clip_<source>/below_share": "share of the source's rows (or tokens) whose ratio is below the lower bound",
    "clip_<source>/above_share": "share of the source's rows (or tokens) whose ratio is above the upper bound",
    "clip_<source>/stopped_share": "share of the source's rows (or tokens) whose gradient clipping set to 0",
    "text/length_drift": "(learner tokens - source tokens) / source tokens, mean over retokenised responses",
    "text/num_truncated": "cross-agent responses cut at the learner's limit",
    "text/num_empty": "cross-agent responses left out because they have no tokens after retokenisation",
    "update/num_unscored": "rows left out because they have no verdict",
    "update/masked_share": "share of the mini-batches' rows that left the loss and its denominators because they were "
    "cut at a token limit (mask_truncated)",
    "teacher/difference_mean": "mean log-probability of the agent's tokens under its teacher minus that under itself, "
    "in nats; per aligned span of text where the tokenizers differ",
    "time/teach_s": "wall-clock seconds in which the agent's teacher scored",
    "gpu/teach_s": "GPU-seconds in which the agent's teacher scored",
    "correction/weight_mean": "mean weight that corrects own rows for the difference between sampler and learner",
    "correction/zero_share": "share of own rows whose correction weight is 0",
    "update/grad_norm": "gradient norm before clipping, mean over the step's updates",
    "update/learning_rate": "learning rate of the step's last update",
    "update/own_objective": "J_homo, mean over the step's updates",
    "update/cross_objective": "J_hete, mean over the step's updates; rows whose gradient clipping set to 0 count as 0",
    "update/kl_nats": "KL to the reference, mean over own rows",
    "update/entropy_nats": "entropy of the learner's next-token distribution, mean over rows",
    "update/skipped_share": "share of rows left out of the forward and backward passes because their advantage is 0",
    "response/length_tokens": "mean length of the agent's responses, in tokens",
    "response/cut_share": "share of responses cut at the token limit",
    "search/num_responses": "searched responses",
    "search/stopped_share": "share of searched responses that ended before the token limit",
    "search/sampled_tokens": "tokens that the searches sampled, discarded ones included",
    "search/kept_share": "tokens of the searched responses, as a share of search/sampled_tokens",
    "sampler/logprob_difference_mean": "mean |old log-probability - sampler's| of own tokens, in nats; 0 where the "
    "sampler's are the old ones",
    "sampler/logprob_bias_mean": "mean old log-probability - sampler's of own tokens, in nats: a drift has a sign, "
    "noise has none",
    "sampler/effective_share": "effective sample size of own responses, as a share of them, if each were weighted by "
    "its probability under the learner over that under the sampler",
    "vllm/cache_tokens": "tokens that fit into the cache of a vLLM engine",
    "vllm/preemptions": "times that vLLM set a response aside because its cache was full, and computed its tokens "
    "again later; the maximum over engines and calls",
    "tokens/sampled": "tokens that the agent sampled",
    "tokens/trained": "response tokens in the agent's updates",
    "time/rollout_s": "wall-clock seconds of the rollout phase",
    "time/vllm_waiting_s": "longest time that a response waited in vLLM's queue, in seconds",
    "time/verify_s": "wall-clock seconds of the verify phase",
    "time/update_s": "wall-clock seconds of the update phase",
    "gpu/rollout_s": "GPU-seconds of the rollout phase",
    "gpu/update_s": "GPU-seconds of the update phase",
    "time/advantage_s": "wall-clock seconds of the advantage phase, all agents together",
    "evaluate/<benchmark>_accuracy": "avg@k: mean over problems of the share of correct answers among scored responses",
    "evaluate/<benchmark>_best_at_<k>": "share of problems that at least one of k responses solves",
    "evaluate/<benchmark>_bootstrap_best_at_<k>": "probability that k draws with replacement from the k responses "
    "include a correct one, mean over problems (verl's best@k)",
    "evaluate/<benchmark>_pass_at_<k>": "pass@k: unbiased estimate of the share of problems that at least one of k "
    "responses solves, from more than k responses",
    "evaluate/<benchmark>_cut_share": "share of responses cut at the token limit",
    "evaluate/<benchmark>_unscored_share": "share of responses without a verdict",
    "progress/step": "number of the step, from 1",
}


def definition(metric: str) -> str:
    """Meaning of a metric; "" if it is an estimator's own."""
    return next((meaning for pattern, meaning in _patterns() if pattern.fullmatch(metric)), "")


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Names as patterns; the longest first, since `<benchmark>_best_at_<k>` also matches `..._bootstrap_best_at_30`."""
    names = sorted(DEFINITIONS, key=len, reverse=True)
    return [(re.compile(re.sub("<[a-z]+>", "[^/]+", re.escape(name))), DEFINITIONS[name]) for name in names]
