"""Checks of a complete configuration: values out of range, contradictions, and fields that cannot take effect."""

import math
import re
from collections.abc import Collection, Iterable, Iterator

from hacpo_core.config.addresses import has_password
from hacpo_core.config.agents import TinyModelConfig, WarmUpConfig
from hacpo_core.config.counts import num_samples, num_sources, train_set_counts
from hacpo_core.config.engine_checks import engine_problems
from hacpo_core.config.fields import fields_of
from hacpo_core.config.identity import inert_fields
from hacpo_core.config.problems import SHIPPED_REWARDS, VERIFIER
from hacpo_core.config.schema import PARTS, ExperimentConfig
from hacpo_core.errors import ConfigError, did_you_mean

_NAMES = {
    "agent": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"), "at most 64 letters, digits, '_', '.', '-'"),
    "pair": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}"), "at most 128 letters, digits, '_', '.', '+', '-'"),
    "method": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]{0,63}"), "at most 64 letters, digits, '_', '.', '+'"),
    "set": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"), "letters, digits, '_' and '-' only"),
}
"""names that become part of an id, of a file name or of a search in MLflow"""


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
    problem = next(_problems(config, overrides), None)
    if problem is not None:
        raise ConfigError(problem)


def _problems(config: ExperimentConfig, overrides: Iterable[str]) -> Iterator[str]:
    yield from _agent_problems(config)
    yield from _fit_problems(config)
    yield from _train_set_problems(config)
    yield from _benchmark_problems(config)
    yield from _answer_problems(config)
    yield from engine_problems(config)
    if has_password(config.tracking.uri or ""):
        yield (
            "tracking.uri: contains a password, and the configuration is saved and logged; set the environment "
            "variable MLFLOW_TRACKING_URI instead and leave tracking.uri out"
        )
    yield from _method_problems(config)
    yield from _teacher_problems(config)
    yield from _ineffective_overrides(config, overrides)


def _ineffective_overrides(config: ExperimentConfig, overrides: Iterable[str]) -> Iterator[str]:
    inert = inert_fields(config)
    sections: dict[str, tuple[Collection[str], str]] = {
        "evaluate.benchmarks.": (config.evaluate.benchmarks, "neither in evaluate.during nor in evaluate.final"),
        "data.sets.": (config.data.sets, "not in data.train"),
    }
    for name in overrides:
        for prefix, (names, where_absent) in sections.items():
            entry = name.removeprefix(prefix).partition(".")[0]
            if name.startswith(prefix) and entry not in names:
                yield f"{name} cannot take effect: {entry} is {where_absent}; add it there or leave it out"
        if name in inert:
            yield f"{name} cannot take effect: {inert[name]}; leave it out"


def _name_problems(field: str, name: str, kind: str) -> Iterator[str]:
    pattern, expected = _NAMES[kind]
    if not pattern.fullmatch(name):
        yield f"{field}: got {name!r}, expected {expected}"


def _agent_problems(config: ExperimentConfig) -> Iterator[str]:
    yield from _name_problems("pair.name", config.pair.name, "pair")
    yield from _name_problems("method.name", config.method.name, "method")
    if not config.pair.agents:
        yield "pair.agents: got none, expected at least one agent; choose a file of experiments/pairs"
    for name, agent in config.pair.agents.items():
        field = f"pair.agents.{name}"
        yield from _name_problems("pair.agents", name, "agent")
        if (agent.path is None) == (agent.tiny is None):
            yield f"{field}: expected exactly one of path and tiny; set path to a model folder"
        if agent.tiny is not None:
            yield from _tiny_problems(agent.tiny, f"{field}.tiny")
        if agent.warm_up is not None:
            yield from _warm_up_problems(agent.warm_up, f"{field}.warm_up")


def _tiny_problems(tiny: TinyModelConfig, field: str) -> Iterator[str]:
    # Rotary embeddings rotate the two halves of a head, so its size must be even.
    if tiny.hidden_size % (2 * tiny.num_heads):
        yield f"{field}.hidden_size: got {tiny.hidden_size}, set it to a multiple of {2 * tiny.num_heads}"
    if tiny.family != "gpt_neox" and tiny.num_heads % tiny.num_kv_heads:
        yield f"{field}.num_kv_heads: got {tiny.num_kv_heads}, set it to a divisor of num_heads={tiny.num_heads}"


def _warm_up_problems(warm_up: WarmUpConfig, field: str) -> Iterator[str]:
    if warm_up.kind == "weak_driven" and not warm_up.weak:
        yield f"{field}.weak: got none; set it to the model folder of an earlier checkpoint of the agent"
    if warm_up.source == "file" and not warm_up.file:
        yield (
            f"{field}.file: got none; set it to a JSONL or Parquet file in the data folder, or set source to an "
            "embedded task"
        )
    for name, size in {"misconceptions": 3, "spaces": 2}.items():
        shares = getattr(warm_up, name)
        if len(shares) != size or any(not 0 <= share <= 1 for share in shares):
            yield f"{field}.{name}: got {list(shares)}, expected {size} probabilities in [0, 1]"


def _fit_problems(config: ExperimentConfig) -> Iterator[str]:
    """What the parts of the method say about the numbers of problems and responses."""
    plan, samples = config.method.plan, config.rollout.num_samples
    reason = plan.why_unfit(num_samples=samples)
    if reason:
        yield f"method.plan.{reason}; or change rollout.num_samples ({samples})"
    reason = config.method.estimate.why_unfit(num_samples=num_samples(config))
    if reason:
        yield f"method.estimate.{reason}; or raise rollout.num_samples ({samples})"
    reason = config.method.build.why_unfit(
        num_problems=config.train.problems,
        num_samples=samples,
        samples_per_problem=num_samples(config),
        num_sources=num_sources(config),
    )
    if reason:
        yield f"method.build.{reason}; or change train.problems ({config.train.problems})"


def _train_set_problems(config: ExperimentConfig) -> Iterator[str]:
    data = config.data
    if not data.train:
        yield "data.train: got none, expected at least one training set; hacpo show lists them"
    for name, problems in data.sets.items():
        yield from _name_problems("data.sets", name, "set")
        yield from _file_problems(f"data.sets.{name}", problems.kind, problems.file or problems.hub.name)
    for name, count in train_set_counts(config).items():
        if count == 0:
            yield (
                f"data.sets.{name}.share: got {data.sets[name].share:g}, which is less than one of the "
                f"{config.train.problems} problems per step; raise it, or train.problems"
            )


def _file_problems(field: str, kind: str, file: str | None) -> Iterator[str]:
    if kind == "file" and not file:
        yield f"{field}.file: got none; set it to a JSONL or Parquet file in the data folder, or set {field}.hub"


def _benchmark_problems(config: ExperimentConfig) -> Iterator[str]:
    evaluate = config.evaluate
    for name, benchmark in evaluate.benchmarks.items():
        field = f"evaluate.benchmarks.{name}"
        yield from _name_problems("evaluate.benchmarks", name, "set")
        yield from _file_problems(field, benchmark.kind, benchmark.file or benchmark.hub.name)
        if benchmark.kind == "development" and config.data.development_share == 0:
            yield f"{field}.kind: got development with data.development_share=0, which holds out nothing; set a share"
        if benchmark.temperature == 0 and benchmark.num_samples > 1:
            yield (
                f"{field}.num_samples: got {benchmark.num_samples} with temperature 0, where all samples are equal; "
                "set a temperature or num_samples=1"
            )
    during = evaluate.during if evaluate.every else []
    metrics = {"checkpoint.keep_best": config.checkpoint.keep_best.metric, "train.stop": config.train.stop.metric}
    for field, metric in metrics.items():
        if metric is not None and metric not in during:
            yield (
                f"{field}.metric: got {metric}, which is not evaluated during training; expected one of "
                f"evaluate.during ({', '.join(evaluate.during) or 'empty'}), with evaluate.every above 0"
            )


def _answer_problems(config: ExperimentConfig) -> Iterator[str]:
    styles = {f"evaluate.benchmarks.{name}.style": each.style for name, each in config.evaluate.benchmarks.items()}
    for field, style in {"verifier.style": config.verifier.style, **styles}.items():
        if config.verifier.equality == "normalised" and style not in (None, "boxed"):
            yield (
                f"{field}: got {style} with verifier.equality=normalised, which reads the last \\boxed{{}}; "
                f"set {field}=boxed, or verifier.equality=math_verify"
            )
    functions, weights = config.reward.functions, config.reward.weights
    if not functions:
        yield f"reward.functions: got none, expected at least one, such as {VERIFIER}"
    for name in functions:
        if name not in SHIPPED_REWARDS and not all(name.partition(":")):
            hint = did_you_mean(name, SHIPPED_REWARDS)
            yield (
                f"reward.functions: got {name!r}, expected {', '.join(SHIPPED_REWARDS)}, or package.module:function of "
                f"your own{hint and f'; {hint}'}"
            )
    if weights is not None and len(weights) != len(functions):
        yield f"reward.weights: got {len(weights)} for {len(functions)} functions; give each one a weight"
    if weights is not None and not (all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0):
        yield f"reward.weights: got {list(weights)}, expected numbers >= 0, at least one of them > 0"


def _method_problems(config: ExperimentConfig) -> Iterator[str]:
    method, objective = config.method, config.method.objective
    if method.plan.changes_prompts and method.shares_rollouts:
        yield (
            f"method.plan.name: got {method.plan.name} with method.shares_rollouts=true, but its prompts differ from "
            "the partners' prompts; set method.shares_rollouts=false"
        )
    if objective.needs_token_ratios and method.shares_rollouts:
        yield (
            f"method.objective.name: got {objective.name}, which uses a ratio per token, with "
            "method.shares_rollouts=true, but tokens of different tokenizers do not align; set an objective with "
            "sequence ratios, such as sequence_clip"
        )
    for part in PARTS:
        implementation = getattr(method, part)
        if implementation.needs_shared_rollouts and not method.shares_rollouts:
            yield (
                f"method.{part}.name: got {implementation.name}, which is about other agents' rows, with "
                "method.shares_rollouts=false; set method.shares_rollouts=true, or another implementation"
            )
    if objective.correction != "none" and config.old_logprobs == "sampler":
        yield (
            f"method.objective.correction: got {objective.correction} with old_logprobs=sampler, which uses the "
            "sampler's log-probabilities instead of the learner's; set old_logprobs=learner"
        )
    if objective.correction != "none" and objective.correction_level == "token" and not objective.weighs_tokens:
        yield (
            f"method.objective.correction_level: got token with {objective.name}, which has no terms per token; set "
            "sequence"
        )


def _teacher_problems(config: ExperimentConfig) -> Iterator[str]:
    method = config.method
    if not method.estimate.has_teachers:
        return
    got = f"method.estimate.name: got {method.estimate.name}"
    if not method.objective.weighs_tokens:
        yield (
            f"{got}, which gives each token an advantage, with objective {method.objective.name}, which has no terms "
            "per token; set a token-level one, such as token_clip"
        )
    if len(config.pair.agents) == 1:
        yield f"{got} with one agent, which has no teacher; add an agent"
    if method.plan.changes_prompts:
        yield (
            f"method.plan.name: got {method.plan.name} with method.estimate.name={method.estimate.name}, whose teacher "
            "scores with the original prompts; set method.plan.name=every_problem"
        )
    if method.build.drops_by_reward:
        yield (
            f"method.build: got a builder that drops rows by their rewards with method.estimate.name="
            f"{method.estimate.name}, whose rows also have a teacher's advantages; set "
            "method.build.drops_equal_rewards=false"
        )
