"""Tiny models with random weights, created on this machine."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging as transformers_logging

from hacpo_core.config import TinyModelConfig
from hacpo_core.engines.models.lora import save_model
from hacpo_core.seeds import derive_seed
from hacpo_core.tiny.tokenizers import build_tokenizer


def save_tiny_model(config: TinyModelConfig, folder: Path) -> None:
    """Write the model with random weights and its tokenizer into a folder."""
    tokenizer = build_tokenizer(config.tokenizer)
    transformers_logging.disable_progress_bar()
    save_model(build_model(config, tokenizer), folder)
    tokenizer.save_pretrained(folder)


def num_parameters(config: TinyModelConfig) -> int:
    """Number of parameters of the model, counted on the meta device."""
    with torch.device("meta"):
        model = build_model(config, build_tokenizer(config.tokenizer))
    return sum(parameter.numel() for parameter in model.parameters())


def build_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """The model with random weights that depend only on the configuration's family and seed."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": 2 * config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_positions,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    head_settings: dict[str, Any] = {
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.hidden_size // config.num_heads,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("tiny-weights", config.family, config.seed) % 2**63)
        if config.family == "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**sizes, **head_settings))
        if config.family == "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes, **head_settings))
        return GPTNeoXForCausalLM(GPTNeoXConfig(**{**sizes, "intermediate_size": 3 * config.hidden_size}))
