"""Checks of a complete configuration: values out of range, contradictions, and fields that cannot take effect."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable

from hacpo_core.config.addresses import has_password
from hacpo_core.config.agents import TinyModelConfig, WarmUpConfig
from hacpo_core.config.counts import num_samples, num_sources, train_set_counts
from hacpo_core.config.engine_checks import check_engines
from hacpo_core.config.fields import fields_of
from hacpo_core.config.identity import inert_fields
from hacpo_core.config.problems import SHIPPED_REWARDS, VERIFIER, BenchmarkConfig, ProblemSetConfig
from hacpo_core.config.schema import SEAMS, ExperimentConfig
from hacpo_core.errors import ConfigError, did_you_mean

_AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PAIR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
_METHOD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]{0,63}")
_SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def validate(config: ExperimentConfig, *, overrides: Iterable[str] = ()) -> None:
    """Check everything that can be known before a file or a model is opened.

    Args:
        config: the complete configuration; never changed.
        overrides: dotted names of the fields that the user set; one that cannot take effect is an error.

    Raises:
        ConfigError: one sentence that names the field, the value, what is expected and the remedy.
    """
    for field in fields_of(config):
        field.declared.check(field.name, field.value)
    _check_agents(config)
    _check_plan(config)
    _check_minibatches(config)
    _check_train_sets(config)
    _check_benchmarks(config)
    _check_equality(config)
    _check_reward(config)
    check_engines(config)
    if has_password(config.tracking.uri or ""):
        raise ConfigError(
            "tracking.uri: contains a password, and the configuration is saved and logged; set the environment "
            "variable MLFLOW_TRACKING_URI instead and leave tracking.uri out"
        )
    _check_metrics(config)
    if config.method.objective.needs_token_ratios and config.method.shares_rollouts:
        raise ConfigError(
            f"method.objective.name: got {config.method.objective.name}, which uses a ratio per token, with "
            "method.shares_rollouts=true, but tokens of different tokenizers do not align; set an objective with "
            "sequence ratios, such as sequence_clip"
        )
    for seam in SEAMS:
        part = getattr(config.method, seam)
        if part.needs_shared_rollouts and not config.method.shares_rollouts:
            raise ConfigError(
                f"method.{seam}.name: got {part.name}, which is about other agents' rows, with "
                "method.shares_rollouts=false; set method.shares_rollouts=true, or another implementation"
            )
    _check_correction(config)
    _check_teachers(config)
    inert = inert_fields(config)
    sections: dict[str, tuple[Collection[str], str]] = {
        "evaluate.benchmarks.": (config.evaluate.benchmarks, "neither in evaluate.during nor in evaluate.final"),
        "data.sets.": (config.data.sets, "not in data.train"),
    }
    for name in overrides:
        for prefix, (names, where_absent) in sections.items():
            entry = name.removeprefix(prefix).partition(".")[0]
            if name.startswith(prefix) and entry not in names:
                raise ConfigError(f"{name} cannot take effect: {entry} is {where_absent}; add it there or leave it out")
        if name in inert:
            raise ConfigError(f"{name} cannot take effect: {inert[name]}; leave it out")


def _check_correction(config: ExperimentConfig) -> None:
    objective = config.method.objective
    if objective.correction == "none":
        return
    if config.old_logprobs == "sampler":
        raise ConfigError(
            f"method.objective.correction: got {objective.correction} with old_logprobs=sampler, which uses the "
            "sampler's log-probabilities instead of the learner's; set old_logprobs=learner"
        )
    if objective.correction_level == "token" and not objective.weighs_tokens:
        raise ConfigError(
            f"method.objective.correction_level: got token with {objective.name}, which has no terms per token; set "
            "sequence"
        )


def _check_teachers(config: ExperimentConfig) -> None:
    method = config.method
    if not method.estimate.has_teachers:
        return
    if not method.objective.weighs_tokens:
        raise ConfigError(
            f"method.estimate.name: got {method.estimate.name}, which gives each token an advantage, with objective "
            f"{method.objective.name}, which has no terms per token; set a token-level one, such as token_clip"
        )
    if len(config.pair.agents) == 1:
        raise ConfigError(
            f"method.estimate.name: got {method.estimate.name} with one agent, which has no teacher; add an agent"
        )
    if method.plan.changes_prompts:
        raise ConfigError(
            f"method.plan.name: got {method.plan.name} with method.estimate.name={method.estimate.name}, whose teacher "
            "scores with the original prompts; set method.plan.name=every_problem"
        )
    if method.build.drops_by_reward:
        raise ConfigError(
            f"method.build: got a builder that drops rows by their rewards with method.estimate.name="
            f"{method.estimate.name}, whose rows also have a teacher's advantages; set "
            "method.build.drops_equal_rewards=false"
        )


def _check_metrics(config: ExperimentConfig) -> None:
    during = config.evaluate.during if config.evaluate.every else []
    for field, metric in (
        ("checkpoint.keep_best.metric", config.checkpoint.keep_best.metric),
        ("train.stop.metric", config.train.stop.metric),
    ):
        if metric is not None and metric not in during:
            raise ConfigError(
                f"{field}: got {metric}, which is not evaluated during training; expected one of evaluate.during "
                f"({', '.join(config.evaluate.during) or 'empty'}), with evaluate.every above 0"
            )
    stop, num_steps = config.train.stop, config.train.num_steps
    if stop.metric is not None and stop.patience * config.evaluate.every >= num_steps:
        raise ConfigError(
            f"train.stop.patience: got {stop.patience} with an evaluation every {config.evaluate.every} of {num_steps} "
            "steps, so it cannot end the training earlier; lower it, or evaluate.every"
        )


def _check_problem_set(field: str, problems: ProblemSetConfig) -> None:
    if problems.kind == "file" and not problems.file and not problems.hub.name:
        raise ConfigError(
            f"{field}.file: got none; set it to a JSONL or Parquet file in the data folder, or set {field}.hub"
        )
    if "{problem}" not in problems.template:
        raise ConfigError(f"{field}.template: got {problems.template!r}; write {{problem}} where the problem goes")
    if bool(problems.hub.name) != bool(problems.hub.file):
        raise ConfigError(f"{field}.hub: expected both name and file, or neither; set {field}.hub.file")


def _check_train_sets(config: ExperimentConfig) -> None:
    data = config.data
    if not data.train:
        raise ConfigError("data.train: got none, expected at least one training set; hacpo show lists them")
    for name in data.train:
        if name not in data.sets:
            raise ConfigError(f"data.train: {name} is not declared; add data.sets.{name}")
    for name, problems in data.sets.items():
        if not _SET_NAME.fullmatch(name):
            raise ConfigError(f"data.sets: got the name {name!r}, expected letters, digits, '_' and '-' only")
        _check_problem_set(f"data.sets.{name}", problems)
    for name, count in train_set_counts(config).items():
        if count == 0:
            raise ConfigError(
                f"data.sets.{name}.share: got {data.sets[name].share:g}, which is less than one of the "
                f"{config.train.problems} problems per step; raise it, or train.problems"
            )


def _check_benchmarks(config: ExperimentConfig) -> None:
    for name, benchmark in config.evaluate.benchmarks.items():
        field = f"evaluate.benchmarks.{name}"
        if not _SET_NAME.fullmatch(name):
            raise ConfigError(f"evaluate.benchmarks: got the name {name!r}, expected letters, digits, '_' and '-' only")
        _check_problem_set(field, benchmark)
        if benchmark.kind == "development" and config.data.development_share == 0:
            raise ConfigError(
                f"{field}.kind: got development with data.development_share=0, which holds out no problems; set a share"
            )
        _check_reference_field(f"{field}.reference_field", benchmark)
        if benchmark.temperature == 0 and benchmark.num_samples > 1:
            raise ConfigError(
                f"{field}.num_samples: got {benchmark.num_samples} with temperature 0, where all samples are equal; "
                "set a temperature or num_samples=1"
            )
        if benchmark.metric != "avg" and benchmark.num_samples == 1:
            raise ConfigError(
                f"{field}.metric: got {benchmark.metric} with num_samples 1; set num_samples, or metric=avg"
            )
    for name in (*config.evaluate.during, *config.evaluate.final):
        if name not in config.evaluate.benchmarks:
            raise ConfigError(f"evaluate: {name} is not declared; add evaluate.benchmarks.{name}")


def _check_reference_field(field: str, benchmark: BenchmarkConfig) -> None:
    name = benchmark.reference_field
    if name is None or benchmark.kind == "file":
        return
    if benchmark.kind == "development":
        raise ConfigError(
            f"{field}: got {name!r} with kind development, whose problems have no solutions; leave it out"
        )
    if name != "solution":
        raise ConfigError(
            f"{field}: got {name!r} with kind {benchmark.kind}, expected solution; set it, or leave it out"
        )


def _check_equality(config: ExperimentConfig) -> None:
    if config.verifier.equality != "normalised":
        return
    styles = {
        f"evaluate.benchmarks.{name}.style": benchmark.style for name, benchmark in config.evaluate.benchmarks.items()
    }
    for field, style in {"verifier.style": config.verifier.style, **styles}.items():
        if style not in (None, "boxed"):
            raise ConfigError(
                f"{field}: got {style} with verifier.equality=normalised, which reads the last \\boxed{{}}; "
                f"set {field}=boxed, or verifier.equality=math_verify"
            )


def _check_reward(config: ExperimentConfig) -> None:
    reward = config.reward
    if not reward.functions:
        raise ConfigError(f"reward.functions: got none, expected at least one, such as {VERIFIER}")
    for name in reward.functions:
        if name not in SHIPPED_REWARDS and not all(name.partition(":")):
            hint = did_you_mean(name, list(SHIPPED_REWARDS))
            raise ConfigError(
                f"reward.functions: got {name!r}, expected {', '.join(SHIPPED_REWARDS)}, or package.module:function of "
                f"your own{hint and f'; {hint}'}"
            )
    weights = reward.weights
    if weights is None:
        return
    if len(weights) != len(reward.functions):
        raise ConfigError(
            f"reward.weights: got {len(weights)} for {len(reward.functions)} functions; give each one a weight"
        )
    if not all(0 <= weight < math.inf for weight in weights) or sum(weights) == 0:
        raise ConfigError(f"reward.weights: got {list(weights)}, expected numbers >= 0, at least one of them > 0")


def _check_agents(config: ExperimentConfig) -> None:
    # Both names are part of the id, which is used as a folder name and in MLflow searches.
    if not _PAIR_NAME.fullmatch(config.pair.name):
        raise ConfigError(
            f"pair.name: got {config.pair.name!r}, expected at most 128 letters, digits, '_', '.', '+', '-'"
        )
    if not _METHOD_NAME.fullmatch(config.method.name):
        raise ConfigError(
            f"method.name: got {config.method.name!r}, expected at most 64 letters, digits, '_', '.', '+'"
        )
    if not config.pair.agents:
        raise ConfigError("pair.agents: got none, expected at least one agent; choose a file of experiments/pairs")
    for name, agent in config.pair.agents.items():
        if not _AGENT_NAME.fullmatch(name):
            raise ConfigError(f"pair.agents: got the name {name!r}, expected at most 64 letters, digits, '_', '.', '-'")
        if (agent.path is None) == (agent.tiny is None):
            raise ConfigError(f"pair.agents.{name}: expected exactly one of path and tiny; set path to a model folder")
        if agent.tiny is not None:
            _check_tiny(agent.tiny, f"pair.agents.{name}.tiny.")
        if agent.warm_up is not None:
            _check_warm_up(agent.warm_up, f"pair.agents.{name}.warm_up")


def _check_tiny(tiny: TinyModelConfig, prefix: str) -> None:
    # Rotary embeddings rotate the two halves of a head, so its size must be even.
    if tiny.hidden_size % (2 * tiny.num_heads):
        raise ConfigError(
            f"{prefix}hidden_size: got {tiny.hidden_size}, expected an even size for each of the {tiny.num_heads} "
            f"heads; set it to a multiple of {2 * tiny.num_heads}"
        )
    if tiny.family != "gpt_neox" and tiny.num_heads % tiny.num_kv_heads:
        raise ConfigError(
            f"{prefix}num_kv_heads: got {tiny.num_kv_heads}, which does not divide num_heads={tiny.num_heads}; "
            "set it to a divisor"
        )


def _check_plan(config: ExperimentConfig) -> None:
    reason = config.method.plan.why_unfit(num_samples=config.rollout.num_samples)
    if reason:
        raise ConfigError(f"method.plan.{reason}; or change rollout.num_samples ({config.rollout.num_samples})")
    reason = config.method.estimate.why_unfit(num_samples=num_samples(config))
    if reason:
        raise ConfigError(f"method.estimate.{reason}; or raise rollout.num_samples ({config.rollout.num_samples})")
    if config.method.plan.changes_prompts and config.method.shares_rollouts:
        raise ConfigError(
            f"method.plan.name: got {config.method.plan.name} with method.shares_rollouts=true, but its prompts differ "
            "from the partners' prompts; set method.shares_rollouts=false"
        )


def _check_warm_up(warm_up: WarmUpConfig, field: str) -> None:
    if warm_up.kind == "weak_driven" and not warm_up.weak:
        raise ConfigError(f"{field}.weak: got none; set it to the model folder of an earlier checkpoint of the agent")
    if warm_up.source == "file" and not warm_up.file:
        raise ConfigError(
            f"{field}.file: got none; set it to a JSONL or Parquet file in the data folder, or set source to an "
            "embedded task"
        )
    if "{problem}" not in warm_up.template:
        raise ConfigError(f"{field}.template: got {warm_up.template!r}; write {{problem}} where the problem goes")
    shares = warm_up.misconceptions
    if len(shares) != 3 or any(not 0 <= share <= 1 for share in shares):
        raise ConfigError(f"{field}.misconceptions: got {list(shares)}, expected three probabilities in [0, 1]")


def _check_minibatches(config: ExperimentConfig) -> None:
    reason = config.method.build.why_unfit(
        num_problems=config.train.problems,
        num_samples=config.rollout.num_samples,
        samples_per_problem=num_samples(config),
        num_sources=num_sources(config),
    )
    if reason:
        raise ConfigError(f"method.build.{reason}; or change train.problems ({config.train.problems})")
