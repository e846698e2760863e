"""Tiny models: created, warmed up and saved on this machine, cached by their configuration."""

from __future__ import annotations

import fcntl
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
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
from hacpo_core.data import arithmetic
from hacpo_core.data.prompts import render_prompts
from hacpo_core.engines.torch.lora import save_model
from hacpo_core.records import Message
from hacpo_core.seeds import derive_seed, generator
from hacpo_core.tiny.folders import tiny_model_folder
from hacpo_core.tiny.tokenizers import build_tokenizer

WarmupProgress = Callable[[int, int, float], None]


def ensure_tiny_model(config: TinyModelConfig, cache: Path, *, progress: WarmupProgress | None = None) -> Path:
    """Create and warm up the model unless it is in the cache. Several processes may call this at the same time.

    Args:
        config: of the model and its warm-up.
        cache: folder of all such models.
        progress: called with (step, steps, loss) during the warm-up.

    Returns:
        a Hugging Face model folder.
    """
    folder = tiny_model_folder(config, cache)
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        tokenizer = build_tokenizer(config.tokenizer)
        model = build_model(config, tokenizer)
        warm_up(model, tokenizer, config, progress=progress)
        transformers_logging.disable_progress_bar()
        temporary = Path(tempfile.mkdtemp(dir=cache, prefix=f".{folder.name}."))
        try:
            save_model(model, temporary)
            tokenizer.save_pretrained(temporary)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


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
    grouped: dict[str, Any] = {
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.hidden_size // config.num_heads,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("tiny-weights", config.family, config.warmup.seed) % 2**63)
        if config.family == "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**sizes, **grouped))
        if config.family == "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes, **grouped))
        return GPTNeoXForCausalLM(GPTNeoXConfig(**{**sizes, "intermediate_size": 3 * config.hidden_size}))


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    config: TinyModelConfig,
    *,
    progress: WarmupProgress | None = None,
) -> None:
    """Supervised training on noisy worked answers to training problems, in place.

    The loss is the mean cross-entropy of the answer's tokens, EOS included. AdamW with linear warm-up and cosine decay.
    """
    warmup = config.warmup
    if warmup.steps == 0:
        return
    rng = generator("tiny-demonstrations", warmup.seed)
    input_NT, label_NT = _demonstrations(tokenizer, config, rng)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=warmup.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # results depend on the number of threads, and this model is too small to benefit
    model.train()
    try:
        for step in range(warmup.steps):
            batch_B = torch.from_numpy(rng.integers(len(input_NT), size=warmup.batch_size))
            logits = model(input_ids=input_NT[batch_B], use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), label_NT[batch_B, 1:].flatten())
            rise = min(1.0, (step + 1) / 50)
            for group in optimizer.param_groups:
                group["lr"] = warmup.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / warmup.steps))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if progress is not None:
                progress(step + 1, warmup.steps, float(loss.detach()))
    finally:
        torch.set_num_threads(num_threads)
    model.eval()


def _demonstrations(
    tokenizer: PreTrainedTokenizerFast, config: TinyModelConfig, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Token ids of all demonstrations, padded on the right, and their labels (-100 outside the answers)."""
    train = arithmetic.split_expressions("train")
    drawn = [train[position] for position in rng.integers(len(train), size=config.warmup.num_demonstrations).tolist()]
    texts = [arithmetic.demonstrate(expression, config.warmup.misconceptions, rng) for expression in drawn]
    questions = [str(expression) for expression in drawn]
    distinct = list(dict.fromkeys(questions))
    rendered = render_prompts(tokenizer, [(Message("user", text),) for text in distinct])
    prompts = dict(zip(distinct, rendered, strict=True))
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    answers = [(*ids, tokenizer.eos_token_id) for ids in encoded]
    rows = [(prompts[question], answer) for question, answer in zip(questions, answers, strict=True)]
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    input_NT = torch.full((len(rows), longest), int(tokenizer.pad_token_id))
    label_NT = torch.full((len(rows), longest), -100)
    for n, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        input_NT[n, :end] = torch.tensor(prompt + answer)
        label_NT[n, len(prompt) : end] = torch.tensor(answer)
    return input_NT, label_NT
