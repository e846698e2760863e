"""An experiment's configuration: schema, checks, identity and derived counts."""

from hacpo_core.config.agents import AgentConfig, TeamConfig, TinyModelConfig, WarmUpConfig
from hacpo_core.config.engine import (
    AUTO,
    DeepspeedConfig,
    EngineConfig,
    LoraConfig,
    PlacementConfig,
    RayConfig,
    VllmConfig,
)
from hacpo_core.config.problems import (
    BenchmarkConfig,
    DataConfig,
    EvaluateConfig,
    HubConfig,
    ProblemSetConfig,
    RewardConfig,
    TrainSetConfig,
    VerifierConfig,
)
from hacpo_core.config.schema import (
    PARTS,
    CheckpointConfig,
    ExperimentConfig,
    MethodConfig,
    OptimizerConfig,
    RetokenizeConfig,
    RolloutConfig,
    RuntimeConfig,
    TrackingConfig,
    TrainConfig,
    as_dict,
    digest_of,
    flatten,
)
