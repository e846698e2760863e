"""Conversion of GGUF files (llama.cpp's format, usually quantised) to Hugging Face model folders with fp32 weights.

transformers dequantises the tensors and builds the tokenizer. Special tokens and the chat template are taken from the
file's own metadata, because transformers' releases read them differently.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from hacpo_core.engines.models.lora import save_model
from hacpo_core.errors import ModelError, first_line

_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
"""transformers' names of special tokens, and the metadata that hold their ids"""
_CHAT_TEMPLATE = "tokenizer.chat_template"
_log = logging.getLogger(__name__)


def convert(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into an existing folder.

    Takes 4 bytes a weight in memory, and again on the disk.

    Raises:
        ModelError: the extra gguf is missing, the file is damaged, or transformers does not know its architecture.
    """
    metadata = _metadata(file)
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except MemoryError:
        raise
    except Exception as error:  # converters of single architectures raise anything
        architecture = metadata.get("general.architecture", "without a name")
        raise ModelError(
            f"{file}: transformers cannot convert this GGUF file of architecture {architecture} "
            f"({first_line(error)}); use the model's own folder with safetensors weights"
        ) from error
    _set_special_tokens(tokenizer, metadata, file)
    for settings in (model.config, model.generation_config):
        settings.bos_token_id, settings.eos_token_id, settings.pad_token_id = (
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
        )
    # It names the file that these weights were dequantised from, and would be applied again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for name in ("is_quantized", "quantization_method", "hf_quantizer"):
        model.__dict__.pop(name, None)
    save_model(model, folder)
    tokenizer.save_pretrained(folder)


def _metadata(file: Path) -> dict[str, Any]:
    """The file's metadata by key; tensors are only checked to be there."""
    try:
        import accelerate  # noqa: F401  transformers reads the file with it
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelError(f"{file}: reading GGUF files needs the extra gguf; pip install 'hacpo[gguf]'") from error
    try:
        with file.open("rb") as opened:
            start = opened.read(4)
    except OSError as error:
        raise ModelError(f"{file} cannot be read ({error.strerror}); make it readable") from error
    if start != b"GGUF":
        raise ModelError(f"{file} is not a GGUF file: it begins with {start!r}, expected b'GGUF'; get the file again")
    try:
        return {key: field.contents() for key, field in GGUFReader(file).fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} is damaged or incomplete ({first_line(error)}); download it again") from error


def _set_special_tokens(tokenizer: PreTrainedTokenizerBase, metadata: dict[str, Any], file: Path) -> None:
    """Set the special tokens and the chat template that the metadata name; keep transformers' own for the others."""
    for name, key in _SPECIAL_TOKENS.items():
        token_id = metadata.get(key)
        if token_id is None:
            continue
        token = tokenizer.convert_ids_to_tokens(int(token_id))
        if not isinstance(token, str):
            raise ModelError(f"{file}: {key} is {token_id}, which no token has; get the file again")
        setattr(tokenizer, name, token)
    template = metadata.get(_CHAT_TEMPLATE)
    if template is not None:
        tokenizer.chat_template = template
