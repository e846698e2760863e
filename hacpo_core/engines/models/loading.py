"""Safe loading of models and tokenizers, and their preparation for reinforcement learning.

Shapes: B sequence, T token.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from hacpo_core.config.counts import recomputed_layers
from hacpo_core.engines.models.folders import read_settings
from hacpo_core.engines.passes.attention import rotations
from hacpo_core.errors import ConfigError, ModelError, first_line

_SAMPLE = "Janet has 3 eggs, so\n$x = 3$."
_log = logging.getLogger(__name__)


def load_tokenizer(folder: Path, *, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Tokenizer of a model folder; its pad token defaults to EOS.

    Raises:
        ModelError: the files cannot be read, it is a slow tokenizer, or there is no EOS token.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{folder}: the tokenizer cannot be loaded ({error}); save it again with transformers"
        ) from error
    tokenizer = _as_saved(tokenizer, folder)
    if not tokenizer.is_fast:
        raise ModelError(f"{folder}: {type(tokenizer).__name__} is a slow tokenizer; add a tokenizer.json")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{folder}: the tokenizer has no EOS token; set eos_token in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def _as_saved(tokenizer: PreTrainedTokenizerBase, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer, or a plain fast one where its class loses text that tokenizer.json keeps.

    tokenizer_config.json of DeepSeek's models names Llama's class, which transformers 5 builds anew with Llama's rules
    for spaces: "Janet has 3 eggs" comes back as "Janethas3eggs".
    """

    def keeps(candidate: PreTrainedTokenizerBase) -> bool:
        ids = candidate(_SAMPLE, add_special_tokens=False)["input_ids"]
        return candidate.decode(ids, clean_up_tokenization_spaces=False) == _SAMPLE

    if keeps(tokenizer) or not (folder / "tokenizer.json").is_file():
        return tokenizer
    plain: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(folder)
    if not keeps(plain):
        return tokenizer
    _log.warning("%s: %s loses spaces; tokenizer.json is used as it is", folder, type(tokenizer).__name__)
    return plain


def eos_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end a response: the tokenizer's, the model configuration's and the generation configuration's."""
    ids = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        eos = read_settings(folder / name).get("eos_token_id")
        ids.update(eos if isinstance(eos, list) else [eos])
    return frozenset(int(i) for i in ids if i is not None)


def check_device(device: str) -> None:
    """Raise ConfigError if this machine lacks the device ("cpu" or "cuda")."""
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ConfigError(f"engine.device: got {device}, but PyTorch sees no GPU here; set engine.device=cpu")


def use_deterministic_kernels() -> None:
    """Use deterministic CUDA kernels; torch raises RuntimeError for an operation that has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first matrix product on CUDA
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def load_model(folder: Path, *, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """A causal language model without dropout, from safetensors only.

    Raises:
        ModelError: the folder cannot be loaded, or weights are missing.
        ConfigError: this machine lacks the device.
    """
    check_device(device)
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"{folder}: the model cannot be loaded ({first_line(error)}); copy or save it again"
        ) from error
    model, info = loaded
    missing_keys = sorted(info["missing_keys"])
    if missing_keys:
        raise ModelError(
            f"{folder}: {len(missing_keys)} weights are missing, such as {missing_keys[0]}; save the model again"
        )
    disable_noise(model)
    _fix_generation_settings(model, folder)
    return model.to(device)  # type: ignore[no-any-return]


def _fix_generation_settings(model: PreTrainedModel, folder: Path) -> None:
    """Reduce contradictory generation settings to their token ids.

    They could not be saved with a checkpoint, and nothing in hacpo samples with them.
    """
    settings = model.generation_config
    try:
        settings.validate(strict=True)
    except ValueError:
        _log.warning("%s: generation_config.json is contradictory; checkpoints keep only its token ids", folder)
        ids = {name: getattr(settings, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model.generation_config = GenerationConfig(**ids)


def disable_noise(model: nn.Module) -> None:
    """Set every dropout and router noise to 0, in the modules and in the configuration, which some modules read.

    Importance ratios compare deterministic policies, and training must not depend on a random state.
    """
    config = getattr(model, "config", None)
    for owner in (*model.modules(), *([config, config.get_text_config()] if config is not None else [])):
        if isinstance(owner, nn.Dropout):
            owner.p = 0.0
        for name, value in vars(owner).items():
            if isinstance(value, float) and any(word in name for word in ("drop", "jitter")):
                setattr(owner, name, 0.0)


def recompute_activations(model: PreTrainedModel, checkpointing: bool | int | str) -> None:
    """Let the backward pass recompute the activations of a model's first layers.

    Args:
        model: which it changes.
        checkpointing: value of `engine.gradient_checkpointing`.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers and checkpointing is not True:
        _log.warning("%s does not tell its layers apart: the activations of all are recomputed", type(model).__name__)
    for layer in layers[recomputed_layers(checkpointing, len(layers)) :]:
        layer.gradient_checkpointing = False


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, agent: str) -> None:
    """Raise ModelError if the tokenizer has ids without an embedding in the model."""
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"pair.agents.{agent}: the tokenizer has {len(tokenizer)} tokens, but the model only {rows} embeddings; "
            "use the model's own tokenizer"
        )


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Numbers of tokens of a sequence: the model's positions, and a limit beyond which it cannot be computed, or only
    with other values for the whole forward pass, so that log-probabilities would depend on the other rows of the pass.
    None: no limit.
    """

    positions: int | None
    hard: int | None


def length_limits(folder: Path) -> LengthLimits:
    """Limits of the model in a folder, whose weights are not read."""
    text = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    changing = [
        first
        for rotation in rotations(text)
        if rotation.get("rope_type") in ("dynamic", "longrope")
        and (first := rotation.get("original_max_position_embeddings") or positions)
    ]
    return LengthLimits(positions, min(changing, default=None) if rotations(text) else positions)


SEQUENCE_FIELDS = "rollout.max_prompt_tokens, rollout.max_response_tokens and the benchmarks' max_response_tokens"
"""fields that limit the length of sequences"""


def check_lengths(folder: Path, *, prompt: int, response: int, agent: str) -> None:
    """Check that the longest prompt plus response fits the model's positions; only log a warning if it may work.

    Args:
        folder: of the model whose positions they are.
        prompt, response: largest numbers of tokens.
        agent: its name.

    Raises:
        ConfigError: sequences may be longer than the hard limit of `LengthLimits`.
    """
    limits, text = length_limits(folder), f"a prompt may have {prompt} tokens and a response {response}"
    if limits.hard is not None and prompt + response > limits.hard:
        raise ConfigError(
            f"pair.agents.{agent}: {text}, but the model has learned {limits.hard} positions, or its rotary embeddings "
            f"change there; lower {SEQUENCE_FIELDS}, or use another model"
        )
    if limits.positions is not None and prompt + response > limits.positions:
        _log.warning("%s: %s, but the model has %d positions; lower %s", agent, text, limits.positions, SEQUENCE_FIELDS)
