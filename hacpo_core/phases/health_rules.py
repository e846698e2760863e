"""Rules that say what is wrong with a training while it runs: thresholds, criteria, sentences and remedies.

Rules read committed metrics and the configuration; they need neither torch nor an experiment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hacpo_core.config import ExperimentConfig

MAX_STOPPED_SHARE = 0.95
"""share of another agent's rows that bounds may stop; with more, its responses teach next to nothing"""
MAX_UNIFORM_SHARE = 0.9
"""share of problems that may have equal rewards; with more, a step trains on less than a tenth of its responses"""
MAX_CUT_SHARE = 0.3
"""share of responses that may be cut at the token limit"""
MAX_UNSCORED_SHARE = 0.01
"""share of responses that may be unscored: a fifth of what stops a run by default"""
MAX_NOISE_EPS = 5
"""mean |sampler - learner| log-probability, in eps of the data type. Measured in bfloat16 (eps 7.8e-3 nats): 0.9 to 3.3
eps between one model's passes, 2.3 eps between vLLM and a learner; 174 eps with weights from before an update"""
HARMLESS_NATS = 1e-3
"""mean |sampler - learner| log-probability that is allowed in every data type. float32 has 1e-6 to 1e-5"""
EPS: Mapping[str, float] = {"float32": 2.0**-23, "bfloat16": 2.0**-7}
"""distance from 1 to the next larger number, by value of `engine.dtype`"""

IN_A_ROW = 3
"""steps in a row that a finding needs to end, and most rules to begin: one step may be an accident"""
RECENT, MEAN_OF, MIN_STEPS = 20, 5, 10
"""steps that count as recent, over which levels are averaged, and before which no trend is judged"""
COLLAPSED_SHARE, LENGTH_FACTOR, JUMP_FACTOR = 0.1, 2.0, 10.0
FEW_RIGHT, NEARLY_SOLVED = 0.1, 0.9
"""mean rewards below which there is little, and above which there is no more, to learn from"""
PATIENCE, PATIENCE_FEW_RIGHT, SMALL_RISE = 30, 10, 0.05
"""steps in which the mean reward must have risen, the second if it is below FEW_RIGHT; and what would be a rise"""

Values = Mapping[str, float]
"""an agent's metrics of one step"""


@dataclass(frozen=True, slots=True)
class Case:
    """What a rule judges.

    Attributes:
        past: the agent's metrics, of all steps so far that have the rule's metrics; the last are the current step's.
        config: of the experiment.
        source: part of a metric's name that stands for "<source>": "cross", "from_<agent>" or a benchmark; "" for most
            rules.
        partner: the agent or benchmark that the source stands for.
    """

    past: Sequence[Values]
    config: ExperimentConfig
    source: str = ""
    partner: str = ""

    def latest(self, metric: str) -> float:
        """A metric of the current step, nan if it has none."""
        return self.past[-1].get(metric.replace("<source>", self.source), math.nan)

    def series(self, metric: str, last: int | None = None) -> list[float]:
        """A metric of the last steps, or of all."""
        return [values[metric] for values in (self.past if last is None else self.past[-last:])]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong.

    Attributes:
        name: a noun phrase with underscores.
        metrics: that it reads. A step without one of them says nothing about the rule.
        criterion: when it holds, in words.
        remedy: what to do.
        why_bad: returns a sentence without a subject's name if it holds in the current step, else None.
        num_steps: steps in a row in which it must hold.
    """

    name: str
    metrics: tuple[str, ...]
    criterion: str
    remedy: str
    why_bad: Callable[[Case], str | None]
    num_steps: int = IN_A_ROW

    @property
    def is_about_sources(self) -> bool:
        """Whether it judges the rows of each other agent, or each benchmark, separately."""
        return any("<source>" in metric for metric in self.metrics)


def sampler_limit(dtype: str) -> float:
    """Largest mean |sampler - learner| log-probability (nats) that rounding in this data type explains."""
    return max(MAX_NOISE_EPS * EPS[dtype], HARMLESS_NATS)


@dataclass(frozen=True, slots=True)
class Trend:
    """Rise of a least-squares line from the first to the last of some values, and its standard error."""

    rise: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Trend:
        """Trend of at least three values."""
        x = np.arange(len(values)) - (len(values) - 1) / 2
        y = np.asarray(values) - np.mean(values)
        slope = float(x @ y) / float(x @ x)
        rest = float(np.sum((y - slope * x) ** 2)) / (len(values) - 2)
        return cls((len(values) - 1) * slope, (len(values) - 1) * math.sqrt(rest / float(x @ x)))

    @property
    def low(self) -> float:
        """The rise minus two standard errors: above 0, it is more than noise."""
        return self.rise - 2 * self.error

    @property
    def high(self) -> float:
        """The rise plus two standard errors."""
        return self.rise + 2 * self.error


def _why_cross_rows_stopped(case: Case) -> str | None:
    share, ratio = case.latest("clip_<source>/stopped_share"), case.latest("ratio_<source>/mean")
    if share < MAX_STOPPED_SHARE:
        return None
    return f"bounds stop {share:.0%} of {case.partner}'s rows, whose mean ratio is {ratio:.2f}"


def _why_no_signal(case: Case) -> str | None:
    share, reward = case.latest("advantage/uniform_share"), case.latest("reward/mean")
    if share < MAX_UNIFORM_SHARE:
        return None
    return f"all rewards are equal for {share:.0%} of the problems; the mean reward is {reward:.3f}"


def _why_responses_cut(case: Case) -> str | None:
    share = case.latest("response/cut_share")
    return f"{share:.0%} of the responses are cut at the token limit" if share >= MAX_CUT_SHARE else None


def _why_responses_unscored(case: Case) -> str | None:
    share = case.latest("reward/unscored_share")
    return f"{share:.1%} of the responses are unscored" if share >= MAX_UNSCORED_SHARE else None


def _is_stalled(case: Case) -> bool:
    rewards = case.series("reward/mean", RECENT)
    return statistics.fmean(rewards[-MEAN_OF:]) < NEARLY_SOLVED and Trend.of(rewards).low <= 0


def _why_entropy_collapsed(case: Case) -> str | None:
    entropy = case.series("update/entropy_nats")
    if len(entropy) < MIN_STEPS:
        return None
    first_mean, last_mean = statistics.fmean(entropy[:MEAN_OF]), statistics.fmean(entropy[-MEAN_OF:])
    if last_mean >= COLLAPSED_SHARE * first_mean or not _is_stalled(case):
        return None
    return f"entropy fell from {first_mean:.3g} to {last_mean:.3g} nats, and the mean reward no longer rises"


def _why_length_running_away(case: Case) -> str | None:
    length = case.series("response/length_tokens", RECENT)
    if len(length) < MIN_STEPS:
        return None
    first_mean, last_mean = statistics.fmean(length[:MEAN_OF]), statistics.fmean(length[-MEAN_OF:])
    if last_mean < LENGTH_FACTOR * first_mean or not _is_stalled(case):
        return None
    growth = f"responses grew from {first_mean:.0f} to {last_mean:.0f} tokens in {len(length)} steps"
    return f"{growth}, and the mean reward did not"


def _why_reward_stuck(case: Case) -> str | None:
    reward = case.series("reward/mean")
    level = statistics.fmean(reward[-MEAN_OF:])
    patience = PATIENCE_FEW_RIGHT if level < FEW_RIGHT else PATIENCE
    if len(reward) < patience or level >= NEARLY_SOLVED:
        return None
    trend = Trend.of(reward)
    if trend.low > 0 or trend.high >= min(SMALL_RISE, level / 2):
        return None
    return f"the mean reward, {level:.3f}, has not risen in {len(reward)} steps"


def _why_gradient_jumps(case: Case) -> str | None:
    *earlier_norms, last_norm = case.series("update/grad_norm", RECENT + 1)
    valid_norms = [norm for norm in earlier_norms if norm > 0 and math.isfinite(norm)]
    if len(valid_norms) < MEAN_OF or last_norm <= JUMP_FACTOR * statistics.median(valid_norms):
        return None
    factor = last_norm / statistics.median(valid_norms)
    return f"the gradient's norm is {last_norm:.3g}, {factor:.0f} times that of the steps before"


def _why_own_ratios_noisy(case: Case) -> str | None:
    noise, width = case.latest("ratio/own_noise_rms"), case.config.method.objective.own_clip_width
    if width is None or noise <= width:
        return None
    return f"before any update, own ratios are off by {noise:.1e}, but are clipped {width:.1e} from 1"


def _why_sampler_differs(case: Case) -> str | None:
    nats, dtype = case.latest("sampler/logprob_difference_mean"), case.config.engine.dtype
    if nats <= sampler_limit(dtype):
        return None
    expected = f"in {dtype} expected at most {sampler_limit(dtype):.1e}"
    return f"sampler and learner differ by {nats:.1e} nats a token, {expected}"


def _why_accuracy_falls(case: Case) -> str | None:
    first, last = (case.past[at][f"evaluate/{case.source}"] for at in (0, -1))
    error = math.hypot(*(case.past[at][f"evaluate/{case.source}_error"] for at in (0, -1)))
    if not last < first - 2 * error:
        return None
    return f"accuracy on {case.source} fell from {first:.3f} before training to {last:.3f}"


_STALLED = (
    f"and the mean reward, below {NEARLY_SOLVED}, has not risen by two standard errors in the last {MIN_STEPS} to "
    f"{RECENT} steps"
)
_ROW = f"in {IN_A_ROW} steps in a row"
RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "cross_rows_stopped",
            ("clip_<source>/stopped_share", "ratio_<source>/mean"),
            f"bounds stop {MAX_STOPPED_SHARE:.0%} or more of another agent's rows {_ROW}",
            "train each agent alone, which costs less, or choose agents that are more alike; bounds that let such rows "
            "through cost toys 7 to 15 points (docs/results.md); near a ratio of 1 lower method.objective.cross_step",
            _why_cross_rows_stopped,
        ),
        Rule(
            "no_signal",
            ("advantage/uniform_share", "reward/mean"),
            f"all rewards are equal for {MAX_UNIFORM_SHARE:.0%} or more of the problems {_ROW}",
            "choose problems that the agent solves at times, warm it up, or raise rollout.num_samples",
            _why_no_signal,
        ),
        Rule(
            "responses_cut",
            ("response/cut_share",),
            f"{MAX_CUT_SHARE:.0%} or more of the responses are cut at the token limit {_ROW}",
            "raise rollout.max_response_tokens, or see whether the agent ends its responses (`hacpo samples`)",
            _why_responses_cut,
        ),
        Rule(
            "responses_unscored",
            ("reward/unscored_share",),
            f"{MAX_UNSCORED_SHARE:.0%} or more of the responses are unscored {_ROW}",
            "read the reasons on the page of responses; raise verifier.timeout_s or reward.timeout_s",
            _why_responses_unscored,
        ),
        Rule(
            "entropy_collapsed",
            ("update/entropy_nats", "reward/mean"),
            f"entropy (mean of {MEAN_OF} steps) is below {COLLAPSED_SHARE} of that of the first {MEAN_OF} steps "
            f"{_STALLED}",
            "lower optimizer.learning_rate, or raise the upper bound of own ratios or method.objective.kl_coef",
            _why_entropy_collapsed,
        ),
        Rule(
            "length_running_away",
            ("response/length_tokens", "reward/mean"),
            f"responses (mean of {MEAN_OF} steps) are {LENGTH_FACTOR:g} times as long as {MIN_STEPS} to {RECENT} steps "
            f"before {_STALLED}",
            "read what fills them (`hacpo samples`); lower optimizer.learning_rate, or penalise length with "
            "method.estimate.overlong_share",
            _why_length_running_away,
        ),
        Rule(
            "reward_stuck",
            ("reward/mean",),
            f"the mean reward, below {NEARLY_SOLVED}, has not risen by two standard errors since step 1, and with two "
            f"added its rise is below {SMALL_RISE} and below half of the reward; {PATIENCE} steps are done, or "
            f"{PATIENCE_FEW_RIGHT} if the reward is below {FEW_RIGHT}",
            "raise optimizer.learning_rate, or choose problems that the agent solves at times",
            _why_reward_stuck,
        ),
        Rule(
            "accuracy_falls",
            ("evaluate/<source>", "evaluate/<source>_error"),
            "the accuracy on a benchmark that the training evaluates is below the one before training by more than two "
            "standard errors, whatever the reward does",
            "keep and export the best step (checkpoint.keep_best.metric), lower optimizer.learning_rate, or train on "
            "problems that are more like the benchmark's",
            _why_accuracy_falls,
            num_steps=1,
        ),
        Rule(
            "gradient_jumps",
            ("update/grad_norm",),
            f"the gradient's norm is more than {JUMP_FACTOR:g} times its median over the {RECENT} steps before",
            "read the step's responses (`hacpo samples`); if it comes back, lower optimizer.learning_rate or "
            "optimizer.max_grad_norm",
            _why_gradient_jumps,
            num_steps=1,
        ),
        Rule(
            "own_ratios_noisy",
            ("ratio/own_noise_rms",),
            "before a step's first update, where own ratios should be 1, their logarithm's root mean square is above "
            f"the distance from 1 to the bounds of own ratios {_ROW}",
            "set old_logprobs=learner, or wider bounds of own ratios",
            _why_own_ratios_noisy,
        ),
        Rule(
            "sampler_differs",
            ("sampler/logprob_difference_mean",),
            f"sampler and learner differ by more than {MAX_NOISE_EPS} eps of engine.dtype per token, and by more than "
            f"{HARMLESS_NATS:g} nats: {sampler_limit('float32'):g} in float32, {sampler_limit('bfloat16'):g} in "
            "bfloat16",
            "run `hacpo doctor`, which checks that the sampler gets new weights; in the meantime "
            "method.objective.correction=mask reweights own rows",
            _why_sampler_differs,
            num_steps=1,
        ),
    )
}
"""by name"""
