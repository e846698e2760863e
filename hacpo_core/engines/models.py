"""Model folders: checked before they are opened, loaded safely, and made ready for reinforcement learning."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from hacpo_core.engines.logprobs import TokenScores, scores_of_logits, token_scores
from hacpo_core.errors import ConfigError, ModelError

_log = logging.getLogger(__name__)
_SAMPLES, _SAMPLE_BYTES = 16, 4096


def find_model(path: str, *, agent: str) -> Path:
    """Folder of a model: the path itself, or the local copy of a hub name.

    Raises:
        ModelError: neither a folder nor a hub name that can be had from here.
    """
    folder = Path(path)
    if folder.is_dir():
        return folder
    remedy = f"set pair.agents.{agent}.path to a local model folder"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", path) or folder.is_absolute():
        raise ModelError(f"pair.agents.{agent}.path: {path} is no folder; {remedy}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(path, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py"])
        )
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ModelError(
            f"pair.agents.{agent}.path: {path} is no folder here and no hub answers for it; "
            f"copy the model to this machine and {remedy}"
        ) from error


def check_model_folder(folder: Path, *, agent: str, has_template_override: bool) -> None:
    """Everything that can be seen without loading: configuration, safetensors weights, tokenizer, chat template.

    Raises:
        ModelError: one sentence that names what is missing and the remedy.
    """
    prefix = f"pair.agents.{agent}: model folder {folder}"
    if not (folder / "config.json").is_file():
        raise ModelError(f"{prefix} has no config.json; point path to a folder written by save_pretrained")
    if not any(folder.glob("*.safetensors")):
        other = next((path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)), None)
        found = f"has {other}, a pickle, but no *.safetensors" if other else "has no weights (*.safetensors)"
        raise ModelError(f"{prefix} {found}; save the model with save_pretrained(safe_serialization=True)")
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
    return bool(_read_settings(folder / "tokenizer_config.json").get("chat_template"))


def _read_settings(path: Path) -> dict[str, Any]:
    """A JSON file of the model folder; {} where there is none."""
    if not path.is_file():
        return {}
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON ({error}); copy it again") from error
    return settings


def model_fingerprint(folder: Path) -> str:
    """Digest of a model: its small files and code whole, of each weight file the header, the size and 16 samples."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja", ".txt", ".model", ".py"):
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            size = path.stat().st_size
            digest.update(f"{path.name}{size}".encode())
            with path.open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
                digest.update(file.read(min(header, 2**24)))
                for sample in range(_SAMPLES):
                    file.seek(max(0, (size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1)))
                    digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def load_tokenizer(
    folder: Path, *, chat_template: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Tokenizer of a model folder, with a pad token in any case (the EOS where it has none of its own).

    Raises:
        ModelError: the files cannot be read, or there is no EOS token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{folder}: the tokenizer cannot be loaded ({error}); save it again with transformers"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{folder}: the tokenizer has no EOS token; set eos_token in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def eos_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end a response: the tokenizer's, the model configuration's and the generation configuration's."""
    ids = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        found = _read_settings(folder / name).get("eos_token_id")
        ids.update(found if isinstance(found, list) else [found])
    return frozenset(int(i) for i in ids if i is not None)


def check_device(device: str) -> None:
    """Raise a ConfigError when this machine lacks the device: "cpu", "cuda" or "cuda:N"."""
    if device == "cpu":
        return
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= num_gpus:
        raise ConfigError(f"engine.device: got {device}, but PyTorch sees {num_gpus} GPUs here; set engine.device=cpu")


def load_model(
    folder: Path, *, dtype: str = "float32", device: str = "cpu", trust_remote_code: bool = False
) -> PreTrainedModel:
    """A causal language model without dropout, from safetensors only.

    Raises:
        ModelError: the folder cannot be loaded, or its weights do not fill the model.
        ConfigError: this machine lacks the device.
    """
    check_device(device)
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"{folder}: the model cannot be loaded ({_first_line(error)}); copy or save it again"
        ) from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(f"{folder}: {len(missing)} weights are missing, such as {missing[0]}; save the model again")
    disable_dropout(model)
    return model.to(device)  # type: ignore[no-any-return]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0: ratios compare policies, and random state must not depend on history."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, agent: str) -> None:
    """Raise a ModelError when the tokenizer knows ids that the model has no row for."""
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"pair.agents.{agent}: the tokenizer has {len(tokenizer)} tokens but the model only {rows} embeddings; "
            "they do not belong together"
        )


class Head(Protocol):
    """Turns token ids into scores; see `ScoringHead.scores`."""

    def scores(
        self, input_BT: Tensor, select_BT: Tensor, target_N: Tensor, *, temperature: float, chunk_mb: int
    ) -> TokenScores:
        """Scores of the targets at the selected positions."""


@dataclass(frozen=True, slots=True)
class ScoringHead:
    """How a model's last hidden states become log-probabilities.

    `is_linear` is True where the model's logits are its output embedding applied to its last hidden states and nothing
    else; other models (soft-capped or scaled logits) are scored from their full logits.
    """

    model: PreTrainedModel
    is_linear: bool

    def scores(
        self, input_BT: Tensor, select_BT: Tensor, target_N: Tensor, *, temperature: float, chunk_mb: int
    ) -> TokenScores:
        """Scores of the targets at the selected positions (rows padded on the right; attention is causal).

        Args:
            input_BT: token ids.
            select_BT: True at the N positions whose next token is scored.
            target_N: those next tokens.
            temperature: > 0.
            chunk_mb: see `token_scores`.
        """
        if not self.is_linear:
            logits_NV = self.model(input_ids=input_BT, use_cache=False).logits[select_BT]
            return scores_of_logits(logits_NV, target_N, temperature=temperature)
        hidden_ND = self.model.base_model(input_ids=input_BT, use_cache=False).last_hidden_state[select_BT]
        head: Any = self.model.get_output_embeddings()
        bias_V = getattr(head, "bias", None)
        return token_scores(hidden_ND, head.weight, bias_V, target_N, temperature=temperature, chunk_mb=chunk_mb)


def scoring_head(model: PreTrainedModel) -> ScoringHead:
    """Find out, with one short forward pass, whether the head is linear."""
    head: Any = model.get_output_embeddings()
    # A soft cap bends small logits too little for the probe below to see.
    is_linear = isinstance(head, nn.Linear) and not getattr(model.config, "final_logit_softcapping", None)
    if is_linear:
        device = head.weight.device
        probe_BT = torch.arange(4, device=device)[None] % model.config.get_text_config().vocab_size
        with torch.no_grad():
            expected = model(input_ids=probe_BT, use_cache=False).logits.float()
            got = head(model.base_model(input_ids=probe_BT, use_cache=False).last_hidden_state).float()
        is_linear = bool(torch.allclose(got, expected, rtol=1e-2, atol=1e-3))
    if not is_linear:
        _log.warning("%s has no plain linear head: full logits are held", type(model).__name__)
    return ScoringHead(model, is_linear)
