"""Schema of an experiment's configuration: frozen dataclasses that OmegaConf fills, one per section.

Sections about agents, engines and problems are in their own files. `hacpo_core.config.checks` checks combinations of
fields.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from hacpo_core.config.agents import TeamConfig
from hacpo_core.config.engine import EngineConfig, PlacementConfig
from hacpo_core.config.fields import setting, when
from hacpo_core.config.problems import DataConfig, EvaluateConfig, RewardConfig, VerifierConfig
from hacpo_core.records import EosRule, SamplingLimits

PARTS = ("plan", "estimate", "build", "objective")
"""fields of `method` that hold the implementation of a part"""


@dataclass(frozen=True)
class MethodConfig:
    """The algorithm: an implementation of each part of `hacpo_core.methods.base`.

    In YAML, a part is a mapping of `name` and the implementation's own fields. `flows.planning.compose` replaces it by
    the dataclass with that name.
    """

    name: str = setting("unnamed", "name of the method, a readable part of the experiment's id", identity=False)
    shares_rollouts: bool = setting(True, "whether learners train on other agents' responses")
    plan: Any = setting(None, "which responses an agent samples, and how")
    estimate: Any = setting(None, "advantage and weight of each row for each learner")
    build: Any = setting(None, "which rows make up which mini-batch")
    objective: Any = setting(None, "what an update maximises")


@dataclass(frozen=True)
class RetokenizeConfig:
    """Conversion of a response from one tokenizer to another."""

    eos: EosRule = setting(
        "keep",
        "end-of-sequence (EOS) token of a response",
        choices={
            "keep": "finished responses end with the token that ends a turn in the learner's chat template, or its "
            "tokenizer's EOS if the template writes none",
            "drop": "official code: EOS is removed from own and others' responses, unless it is the only token",
            "as_text": "original code: own responses stay as sampled; others' are decoded with their control tokens, "
            "only padding removed, and encoded again",
        },
    )


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling during training.

    `top_p` leaves out unlikely tokens. Importance ratios use the probabilities before that, for the learner's policy,
    too. A repetition penalty is not offered: docs/decisions.md#narrowed-sampling.
    """

    num_samples: int = setting(8, "G: responses per problem and agent", at_least=1, at_most=1e5)
    temperature: float = setting(
        1.0,
        "sampling temperature; the learner's policy, too, is the softmax of logits / temperature",
        above=0,
        at_most=1e3,
    )
    top_p: float = setting(1.0, "cumulative probability of nucleus sampling", above=0, at_most=1)
    max_prompt_tokens: int = setting(
        1024, "longest prompt; problems with longer ones are dropped and counted", unit="tokens", at_least=1
    )
    max_response_tokens: int = setting(4096, "response limit", unit="tokens", at_least=1)
    stops_at_turn_end: bool = setting(
        True,
        "the token with which an agent's chat template ends a turn ends a response, too; false: only the EOS ids of "
        "its tokenizer, config.json and generation_config.json do",
    )
    batch_size: int = setting(256, "responses sampled concurrently", at_least=1)

    @property
    def limits(self) -> SamplingLimits:
        """How responses are sampled."""
        return SamplingLimits(self.temperature, self.top_p, self.max_response_tokens)


@dataclass(frozen=True)
class StopConfig:
    """An earlier end of the training, when the accuracy has stopped rising."""

    metric: str | None = setting(None, "benchmark of evaluate.during whose mean over agents decides; null: never")
    patience: int = setting(
        3,
        "evaluations in a row without a new best accuracy that end the training",
        unit="evaluations",
        at_least=1,
        inert=when(".metric", None),
    )


@dataclass(frozen=True)
class TrainConfig:
    """Length of training and size of a step."""

    num_steps: int = setting(
        58, "training steps; 58 is one epoch of MATH with 128 problems per step", unit="steps", at_least=1
    )
    problems: int = setting(128, "P: problems per step", at_least=1)
    stop: StopConfig = setting(StopConfig, "an earlier end")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = setting(1e-6, "peak learning rate", above=0, at_most=1e3)
    beta1: float = setting(0.9, "decay rate of the first moment", at_least=0, at_most=0.999999)
    beta2: float = setting(0.999, "decay rate of the second moment", at_least=0, at_most=0.999999)
    epsilon: float = setting(1e-8, "term added to the denominator for numerical stability", above=0, at_most=1)
    weight_decay: float = setting(
        0.01, "decoupled weight decay, multiplied by the learning rate", at_least=0, at_most=1e3
    )
    max_grad_norm: float = setting(1.0, "larger gradients are clipped to this norm", above=0)
    schedule: str = setting(
        "constant",
        "learning rate after the warm-up",
        choices={"constant": "", "cosine": "decays to 0 after the last update"},
    )
    warmup_updates: int = setting(0, "linear warm-up of the learning rate", unit="updates", at_least=0)


@dataclass(frozen=True)
class KeepBestConfig:
    """Checkpoints that stay because the accuracy after their step is among the best; they are written where needed."""

    metric: str | None = setting(
        None, "benchmark of evaluate.during whose mean over all agents decides; null: none stays"
    )
    num: int = setting(1, "number of best steps", at_least=1, inert=when(".metric", None))


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, from which an interrupted run resumes."""

    every: int = setting(
        10,
        "steps between checkpoints; the last step always has one. On a GPU at most 12, unless replays are exact",
        unit="steps",
        at_least=1,
    )
    keep: int = setting(2, "number of newest checkpoints to keep", at_least=1)
    keep_best: KeepBestConfig = setting(KeepBestConfig, "checkpoints that stay beside the newest ones")
    keep_optimizer: bool = setting(
        False, "keep the optimizer's states of a complete run, for `hacpo resume --steps`; adapters keep theirs"
    )
    accept_divergence: bool = setting(
        False, "continue with a warning, instead of stopping, if a replayed update differs from the recorded one"
    )


@dataclass(frozen=True)
class TrackingConfig:
    """Recording of runs in MLflow."""

    enabled: bool = setting(True, "record the run in MLflow")
    uri: str | None = setting(
        None, "tracking URI, without a password; null: MLFLOW_TRACKING_URI, else <runtime.runs_dir>/mlflow.db"
    )
    experiment: str = setting("hacpo", "MLflow experiment")


@dataclass(frozen=True)
class RuntimeConfig:
    """Folders and execution; does not change results."""

    runs_dir: str = setting("runs", "folder of all experiments")
    runner: str = setting(
        "prefect",
        "how phases are run",
        choices={
            "prefect": "as tasks of a Prefect flow, visible in the dashboard",
            "direct": "as function calls, one agent after another",
        },
    )
    server_idle_minutes: float = setting(
        10.0, "time without a request after which a Prefect server that a command started ends", unit="minutes", above=0
    )


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: agents, method and seed."""

    seed: int = setting(0, "seed of all random draws", at_least=0, at_most=2**53)
    conformance: str = setting(
        "paper",
        "preset that the configuration starts from; other fields may deviate from it",
        choices={
            "paper": "as described in the paper",
            "official": "as in the authors' code, branch V1",
            "original": "as in the authors' code for the paper's results, branch main",
        },
        identity=False,
    )
    old_logprobs: str = setting(
        "learner",
        "log-probabilities of the old policy in importance ratios of own rows; other agents' rows have their sampler's",
        choices={
            "learner": "the learner's before the first update; the sampler's if it samples from the learner's weights "
            "in float32",
            "sampler": "as reported by the sampler, which saves a forward pass",
        },
    )
    pair: TeamConfig = setting(TeamConfig, "agents that train together")
    method: MethodConfig = setting(MethodConfig, "algorithm")
    retokenize: RetokenizeConfig = setting(RetokenizeConfig, "conversion between tokenizers")
    rollout: RolloutConfig = setting(RolloutConfig, "sampling during training")
    train: TrainConfig = setting(TrainConfig, "length of training and size of a step")
    optimizer: OptimizerConfig = setting(OptimizerConfig, "AdamW")
    engine: EngineConfig = setting(EngineConfig, "sampling and training engines")
    placement: PlacementConfig = setting(PlacementConfig, "processes and devices of the agents")
    data: DataConfig = setting(DataConfig, "training problems")
    verifier: VerifierConfig = setting(VerifierConfig, "how answers are compared")
    reward: RewardConfig = setting(RewardConfig, "rewards in training")
    evaluate: EvaluateConfig = setting(EvaluateConfig, "benchmarks")
    checkpoint: CheckpointConfig = setting(CheckpointConfig, "checkpoints", identity=False)
    tracking: TrackingConfig = setting(TrackingConfig, "MLflow", identity=False)
    runtime: RuntimeConfig = setting(RuntimeConfig, "folder, runner", identity=False)


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
