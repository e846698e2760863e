"""Schema of an experiment's configuration: frozen dataclasses that OmegaConf fills, one per section.

Sections about agents, engines and problems have files of their own. `hacpo_core.config.checks` checks what concerns
several fields; nothing here computes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from hacpo_core.config.agents import PairConfig
from hacpo_core.config.engine import EngineConfig, PlacementConfig
from hacpo_core.config.fields import setting
from hacpo_core.config.problems import DataConfig, EvaluateConfig, RewardConfig, VerifierConfig

SEAMS = ("plan", "estimate", "build", "objective")
"""sections of `method` that hold an implementation of a seam"""


@dataclass(frozen=True)
class MethodConfig:
    """What tells one algorithm from another: an implementation of each seam of `hacpo_core.methods.base`.

    In YAML a seam is a mapping of `name` and the implementation's own fields; `flows.planning.compose` puts the
    dataclass of that name in its place.
    """

    name: str = setting(
        "unnamed", "name of the method, a part of the experiment's id for people to read", identity=False
    )
    shares_rollouts: bool = setting(True, "whether learners train on other agents' responses")
    plan: Any = setting(None, "which responses an agent samples, and how")
    estimate: Any = setting(None, "advantage and weight of each row for each learner")
    build: Any = setting(None, "which rows make up which mini-batch")
    objective: Any = setting(None, "what an update maximises")


@dataclass(frozen=True)
class RetokenizeConfig:
    """How a response crosses from one tokenizer to another."""

    eos: str = setting(
        "keep",
        "what ends a response",
        choices={
            "keep": "the learner's EOS, where the response was finished",
            "drop": "as the official code: EOS is removed, own and cross alike, but for a response of EOS alone",
        },
    )


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling during training."""

    num_samples: int = setting(8, "G: responses per problem and agent", at_least=1, at_most=1e5)
    temperature: float = setting(
        1.0,
        "the policy is the softmax of logits / temperature, in the sampler and in the learner",
        above=0,
        at_most=1e3,
    )
    top_p: float = setting(1.0, "nucleus sampling", above=0, at_most=1)
    max_prompt_tokens: int = setting(
        1024, "a problem with a longer prompt is dropped from the data and counted", unit="tokens", at_least=1
    )
    max_response_tokens: int = setting(4096, "response limit", unit="tokens", at_least=1)
    batch_size: int = setting(256, "responses sampled side by side", at_least=1)


@dataclass(frozen=True)
class TrainConfig:
    """Length and width of training."""

    num_steps: int = setting(
        58, "rollout-and-update steps; 58 is one epoch of MATH at 128 problems", unit="steps", at_least=1
    )
    problems: int = setting(128, "P: problems per step", at_least=1)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = setting(1e-6, "peak of the schedule", above=0, at_most=1e3)
    beta1: float = setting(0.9, "decay of the mean of gradients", at_least=0, at_most=0.999999)
    beta2: float = setting(0.999, "decay of the mean of squared gradients", at_least=0, at_most=0.999999)
    epsilon: float = setting(1e-8, "added to the root of the squared gradients' mean", above=0, at_most=1)
    weight_decay: float = setting(
        0.01, "share of a weight that an update takes away, times the learning rate", at_least=0, at_most=1e3
    )
    max_grad_norm: float = setting(1.0, "the gradient is scaled down to this norm", above=0)
    schedule: str = setting(
        "constant",
        "learning rate after the rise",
        choices={"constant": "", "cosine": "falls to 0 after the last update"},
    )
    warmup_updates: int = setting(0, "linear rise of the learning rate", unit="updates", at_least=0)


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run that was broken off goes on from."""

    every: int = setting(10, "steps between checkpoints; the last step always has one", unit="steps", at_least=1)
    keep: int = setting(2, "newest checkpoints that are kept", at_least=1)
    accept_divergence: bool = setting(
        False, "go on when a replayed update is another one than the recorded, with a warning"
    )


def _mixes_nothing(_: Any, config: Any) -> str | None:
    engine = config.engine
    if engine.learner == "deepspeed" and engine.deepspeed.stage == 3:
        return "engine.deepspeed.stage is 3, where no rank holds a whole gradient"
    return None if config.method.build.mixes_sources else "no update of method.build has own and others' responses"


@dataclass(frozen=True)
class DiagnosticsConfig:
    """What is measured beside training."""

    every: int = setting(
        10,
        "steps between measurements of the cosine between the gradients of J_homo and J_hete; 0: never",
        unit="steps",
        at_least=0,
        inert=_mixes_nothing,
    )


@dataclass(frozen=True)
class TrackingConfig:
    """Where MLflow records runs."""

    enabled: bool = setting(True, "record the run in MLflow")
    uri: str | None = setting(
        None,
        "tracking URI, without a password; null: MLFLOW_TRACKING_URI, else <runtime.runs_dir>/mlflow.db",
    )
    experiment: str = setting("hacpo", "MLflow experiment")


@dataclass(frozen=True)
class RuntimeConfig:
    """Where things lie and how they are run; changes no result."""

    runs_dir: str = setting("runs", "folder of all experiments")
    runner: str = setting(
        "prefect",
        "what runs the phases",
        choices={"prefect": "as tasks of a flow, on the page", "direct": "as functions, agents one after another"},
    )
    phase_retries: int = setting(
        2,
        "times a failed phase is run again (never for a configuration or data error)",
        at_least=0,
        at_most=100,
    )
    retry_delay_s: float = setting(1.0, "wait before a retry", unit="s", at_least=0, at_most=3600)


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: these agents, this method, this seed."""

    seed: int = setting(0, "seed of all that is drawn", at_least=0, at_most=2**53)
    conformance: str = setting(
        "paper",
        "preset that was composed in; single fields may differ from it",
        choices={"paper": "what the paper says", "official": "what the authors' code does"},
    )
    old_logprobs: str = setting(
        "checked",
        "log-probabilities that ratios are taken against",
        choices={
            "learner": "recomputed by the training engine before the first update",
            "sampler": "as sampled, one pass saved",
            "checked": "as sampled where a few that the training engine recomputes are the same within 1e-5 nats, "
            "else learner",
        },
    )
    pair: PairConfig = setting(PairConfig, "agents that train together")
    method: MethodConfig = setting(MethodConfig, "algorithm")
    retokenize: RetokenizeConfig = setting(RetokenizeConfig, "from tokenizer to tokenizer")
    rollout: RolloutConfig = setting(RolloutConfig, "sampling during training")
    train: TrainConfig = setting(TrainConfig, "length and width of training")
    optimizer: OptimizerConfig = setting(OptimizerConfig, "AdamW")
    engine: EngineConfig = setting(EngineConfig, "what samples and what trains")
    placement: PlacementConfig = setting(PlacementConfig, "where agents live")
    data: DataConfig = setting(DataConfig, "training problems")
    verifier: VerifierConfig = setting(VerifierConfig, "when an answer is right")
    reward: RewardConfig = setting(RewardConfig, "what responses are rewarded for")
    evaluate: EvaluateConfig = setting(EvaluateConfig, "benchmarks")
    checkpoint: CheckpointConfig = setting(CheckpointConfig, "checkpoints", identity=False)
    diagnostics: DiagnosticsConfig = setting(DiagnosticsConfig, "measurements beside training", identity=False)
    tracking: TrackingConfig = setting(TrackingConfig, "MLflow", identity=False)
    runtime: RuntimeConfig = setting(RuntimeConfig, "folders, runner, retries", identity=False)


def as_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as nested dictionaries, ready for YAML or JSON."""
    return dataclasses.asdict(config)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one level of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def digest_of(tree: Any) -> str:
    """SHA-256 (hex) of a JSON-able value in canonical form."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
