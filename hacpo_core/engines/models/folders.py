"""Models on the disk: finding, checking and fingerprinting them without loading them; needs no torch."""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hacpo_core.errors import ModelError
from hacpo_core.files import sha256_of

CONVERSION_VERSION = 1
"""of converted GGUF files; raise it when the same file would give another folder, so that old caches are not used"""
PACKAGE = "package:"
"""beginning of a path inside an installed package"""
_SAMPLE_BYTES = 4096


def find_model(path: str, *, agent: str) -> Path:
    """A model's folder or GGUF file: the path itself, a file in an installed package, or the copy of a hub model.

    Args:
        path: as `pair.agents.<name>.path`.
        agent: its name, for messages.

    Raises:
        ModelError: there is no such folder, file or package, or the hub's model cannot be downloaded.
    """
    field = f"pair.agents.{agent}.path"
    if path.startswith(PACKAGE):
        return _file_in_package(path, field)
    place = Path(path)
    if place.is_dir():
        return place
    remedy = f"set {field} to a local model folder"
    if is_gguf(path):
        if place.is_file():
            return place
        raise ModelError(f"{field}: {path} does not exist; set it to a .gguf file or a model folder")
    if place.is_file():
        raise ModelError(f"{field}: {path} is a file, expected a model folder or a .gguf file; {remedy}")
    if not is_hub_name(path):
        raise ModelError(f"{field}: {place.absolute()} is not a folder; {remedy}")
    try:
        return _downloaded(path)
    except (OSError, ValueError) as error:  # no connection, or an invalid hub name such as `../model`
        from huggingface_hub import constants, errors

        if isinstance(error, errors.GatedRepoError):
            raise ModelError(
                f"{field}: {path} is gated: accept its licence at {constants.ENDPOINT}/{path}, then set HF_TOKEN to a "
                "token of that account"
            ) from error
        raise ModelError(
            f"{field}: {path} is not a folder here and cannot be downloaded from the hub; "
            f"run `hacpo prefetch` where there is a network, or copy the model to this machine and {remedy}"
        ) from error


@cache
def _downloaded(name: str) -> Path:
    """Copy of a hub model, asked for once in a process."""
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py"]
    return Path(snapshot_download(name, allow_patterns=patterns))


def _file_in_package(path: str, field: str) -> Path:
    """The folder or file that package:NAME/FILE names; the package is not imported."""
    package, _, file = path.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier() or not file:
        raise ModelError(f"{field}: got {path}, expected package:NAME/FILE with the name by which Python imports it")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{field}: the package {package} is not installed; install it, or set another path")
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / file).exists():
        models = ", ".join(sorted(model_file.name for model_file in folder.glob("*.gguf"))) or "no .gguf file"
        raise ModelError(f"{field}: the package {package} has no {file}; it has {models}")
    return folder / file


def is_gguf(path: str | Path) -> bool:
    """Whether a path names a GGUF file, which may not exist."""
    return str(path).lower().endswith(".gguf")


def find_weak_model(path: str, *, agent: str) -> Path:
    """Folder of the weak checkpoint of an agent's warm-up.

    Raises:
        ModelError: there is no such folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"pair.agents.{agent}.warm_up.weak: {path} is not a folder; set it to the model folder of an earlier "
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
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); copy it again") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path}: got {type(settings).__name__}, expected a JSON object; copy it again")
    return settings


def model_fingerprint(folder: Path) -> str:
    """Digest of a model: of a GGUF file completely; of a folder's small files and code completely, of its weight files
    the size, the header, and the beginning, middle and end of each tensor.
    """
    if folder.is_file():
        return _digest_of_file(folder, folder.stat().st_mtime_ns, folder.stat().st_size)
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja", ".txt", ".model", ".py"):
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            digest.update(f"{path.name}{path.stat().st_size}".encode())
            for sample in _samples(path):
                digest.update(sample)
    return digest.hexdigest()


@cache
def _digest_of_file(path: Path, *_: int) -> str:
    """SHA-256 of a large file, read once while its time and size stay the same."""
    return sha256_of(path)


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
