"""Model folders: finding, checking and fingerprinting them without loading the model; needs no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hacpo_core.errors import ModelError

_SAMPLE_BYTES = 4096


def find_model(path: str, *, agent: str) -> Path:
    """Folder of a model: the path itself, or the downloaded copy of a hub model.

    Raises:
        ModelError: the path is neither a folder nor a hub model that can be downloaded.
    """
    folder = Path(path)
    if folder.is_dir():
        return folder
    remedy = f"set pair.agents.{agent}.path to a local model folder"
    if not is_hub_name(path):
        raise ModelError(f"pair.agents.{agent}.path: {path} is not a folder; {remedy}")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(path, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py"])
        )
    except (OSError, ValueError) as error:  # no connection, or an invalid hub name such as `../model`
        raise ModelError(
            f"pair.agents.{agent}.path: {path} is not a folder here and cannot be downloaded from the hub; "
            f"copy the model to this machine and {remedy}"
        ) from error


def find_weak_model(path: str, *, agent: str) -> Path:
    """Folder of the weak checkpoint of an agent's warm-up.

    Raises:
        ModelError: there is no such folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"pair.agents.{agent}.weak_warmup.weak: {path} is not a folder; set it to the model folder of an earlier "
            f"checkpoint, such as runs/experiments/<id>/checkpoints/000010/{agent}"
        )
    return folder


def is_hub_name(path: str) -> bool:
    """Whether a path has the form of a hub name: owner/model."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None


def check_model_folder(folder: Path, *, agent: str, has_template_override: bool) -> None:
    """Check what can be checked without loading: configuration, safetensors weights, tokenizer, chat template.

    Raises:
        ModelError: something is missing.
    """
    prefix = f"pair.agents.{agent}: model folder {folder}"
    if not (folder / "config.json").is_file():
        raise ModelError(f"{prefix} has no config.json; point path to a folder written by save_pretrained")
    try:
        settings = read_settings(folder / "config.json")
    except ModelError as error:
        raise ModelError(f"pair.agents.{agent}: {error}") from error
    if not ({"model_type", "auto_map"} & set(settings)):
        raise ModelError(f"{prefix} has a config.json without model_type; copy the model's own config.json")
    if not any(folder.glob("*.safetensors")):
        other = next((path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)), None)
        problem = f"has {other}, a pickle, but no *.safetensors" if other else "has no weights (*.safetensors)"
        raise ModelError(f"{prefix} {problem}; save the model with save_pretrained(safe_serialization=True)")
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if not any((folder / name).is_file() for name in names):
        raise ModelError(f"{prefix} has no tokenizer (one of {', '.join(names)}); copy the tokenizer's files into it")
    if not has_template_override and not _has_chat_template(folder):
        raise ModelError(
            f"{prefix} has no chat template; add chat_template.jinja to it or set pair.agents.{agent}.chat_template"
        )


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    return bool(read_settings(folder / "tokenizer_config.json").get("chat_template"))


def read_settings(path: Path) -> dict[str, Any]:
    """A JSON file of the model folder; {} if it does not exist.

    Raises:
        ModelError: it is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        settings: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); copy it again") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path}: got {type(settings).__name__}, expected a JSON object; copy it again")
    return settings


def model_fingerprint(folder: Path) -> str:
    """Digest of a model folder: of small files and code completely; of weight files the size, the header, and the
    beginning, middle and end of each tensor.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja", ".txt", ".model", ".py"):
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            digest.update(f"{path.name}{path.stat().st_size}".encode())
            for sample in _samples(path):
                digest.update(sample)
    return digest.hexdigest()


def _samples(path: Path) -> Iterator[bytes]:
    """The header of a safetensors file (its length in 8 bytes, then JSON), then pieces of each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, 2**26))
        yield header
        try:
            offsets = sorted(
                entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelError(f"{path} is not a safetensors file ({error}); copy it again") from error
        for first, end in offsets:
            for start in (first, (first + end) // 2, max(first, end - _SAMPLE_BYTES)):
                file.seek(8 + length + start)
                yield file.read(min(_SAMPLE_BYTES, end - start))
