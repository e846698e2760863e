"""Models warmed up against a weak checkpoint, created once and cached by the digest of their inputs."""

from __future__ import annotations

import fcntl
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from hacpo_core.columns import TokenRows
from hacpo_core.config import AgentConfig, WeakWarmupConfig, digest_of
from hacpo_core.data.prompts import check_template_arguments
from hacpo_core.data.solutions import read_solutions, solution_rows, solutions_file
from hacpo_core.engines.models.folders import find_weak_model, model_fingerprint
from hacpo_core.engines.models.loading import (
    check_vocabulary,
    load_model,
    load_tokenizer,
    use_deterministic_kernels,
)
from hacpo_core.engines.torch.lora import save_model
from hacpo_core.engines.torch.offload import release_unused
from hacpo_core.engines.torch.weak_warmup import train_against_weak
from hacpo_core.errors import DataError, ModelError
from hacpo_core.store.files import read_json, sha256_of, write_json
from hacpo_core.tiny.models import WarmupProgress

RECIPE_VERSION = 1
"""Raise it when the same inputs would give a different model, so that old caches are not used."""
MARKER_FILE = "weak_warmup.json"
"""file in a warmed-up model's folder with its inputs and the results of the warm-up"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WeakWarmupTask:
    """Inputs of one agent's warm-up.

    Attributes:
        name, agent: name and configuration of the agent, which has a `weak_warmup`.
        strong: folder of the model to warm up.
        directory: data folder, as for `data_path`.
        device: "cpu" or "cuda".
    """

    name: str
    agent: AgentConfig
    strong: Path
    directory: str | None
    device: str

    @property
    def field(self) -> str:
        """Field that declares the warm-up, for messages."""
        return f"pair.agents.{self.name}.weak_warmup"

    @property
    def warmup(self) -> WeakWarmupConfig:
        """Its declaration."""
        assert self.agent.weak_warmup is not None, "only agents with a weak_warmup have a task"
        return self.agent.weak_warmup

    def inputs(self) -> dict[str, Any]:
        """Everything that determines the warmed-up model, by contents rather than paths."""
        warmup = self.warmup
        fields = {key: value for key, value in asdict(warmup).items() if key not in ("weak", "file")}
        return {
            "recipe": RECIPE_VERSION,
            "strong": model_fingerprint(self.strong),
            "weak": model_fingerprint(find_weak_model(warmup.weak, agent=self.name)),
            "file": sha256_of(solutions_file(self.field, warmup, self.directory)),
            "fields": fields,
            "chat_template": self.agent.chat_template,
            "chat_template_kwargs": self.agent.chat_template_kwargs,
            "device": self.device,
        }


def ensure_warmed_model(task: WeakWarmupTask, cache: Path, *, progress: WarmupProgress | None = None) -> Path:
    """Warm up the model unless it is in the cache. Several processes may call this at the same time.

    Args:
        task: the warm-up.
        cache: folder of all such models.
        progress: called with (step, steps, loss).

    Returns:
        a Hugging Face model folder: fp32 weights, the strong model's tokenizer, and the marker.

    Raises:
        HacpoError: a folder or file cannot be used, or the two models have different vocabularies.
    """
    inputs = task.inputs()
    digest = digest_of(inputs)
    folder = cache / f"{task.strong.name[:40]}-weak-{digest[:10]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _make(task, folder, {"digest": digest, "inputs": inputs}, progress)
    marker = folder / MARKER_FILE
    if not marker.is_file() or read_json(marker).get("digest") != digest:
        raise ModelError(f"{folder} is not the model of {task.field}; remove the folder to create it again")
    return folder


def _make(task: WeakWarmupTask, folder: Path, marker: Mapping[str, Any], progress: WarmupProgress | None) -> None:
    """Warm up the model and write its folder; the caller holds the lock."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    trust = task.agent.trust_remote_code
    weak_folder = find_weak_model(task.warmup.weak, agent=task.name)
    try:
        tokenizer = load_tokenizer(task.strong, chat_template=task.agent.chat_template, trust_remote_code=trust)
        weak_tokenizer = load_tokenizer(weak_folder, trust_remote_code=trust)
        with _repeatable(task.device):
            strong = load_model(task.strong, device=task.device, trust_remote_code=trust)
            weak = load_model(weak_folder, device=task.device, trust_remote_code=trust).requires_grad_(False)
            check_vocabulary(strong, tokenizer, agent=task.name)
            _check_same_vocabulary(task, (strong, weak), (tokenizer, weak_tokenizer), weak_folder)
            rows, num_left_out = _rows(
                task, tokenizer, getattr(strong.config.get_text_config(), "max_position_embeddings", None)
            )
            figures = train_against_weak(strong, weak, rows, task.warmup, progress=progress)
        transformers_logging.disable_progress_bar()
        temporary.mkdir()
        save_model(strong, temporary)
        tokenizer.save_pretrained(temporary)
        counts = {"num_examples": len(rows), "num_left_out": num_left_out}
        write_json(temporary / MARKER_FILE, {**marker, **counts, **asdict(figures)})
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        strong = weak = None  # type: ignore[assignment]
        release_unused(torch.device(task.device))


@contextmanager
def _repeatable(device: str) -> Iterator[None]:
    """Compute deterministically: one thread on a CPU, deterministic kernels on a GPU; restore both afterwards."""
    num_threads, was_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    if device != "cpu":
        use_deterministic_kernels()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        torch.use_deterministic_algorithms(was_deterministic)


def _check_same_vocabulary(
    task: WeakWarmupTask,
    models: tuple[PreTrainedModel, PreTrainedModel],
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    weak_folder: Path,
) -> None:
    """Raise ModelError unless every token id means the same token for both models."""
    sizes = [model.config.get_text_config().vocab_size for model in models]
    strong, weak = (tokenizer.get_vocab() for tokenizer in tokenizers)
    if sizes[0] != sizes[1] or strong != weak:
        raise ModelError(
            f"{task.field}.weak: got {weak_folder} with {len(weak)} tokens and {sizes[1]} logits, expected the same "
            f"vocabulary as the agent's model ({len(strong)} tokens, {sizes[0]} logits); set it to an earlier "
            "checkpoint of the same model"
        )


def _rows(task: WeakWarmupTask, tokenizer: PreTrainedTokenizerBase, positions: int | None) -> tuple[TokenRows, int]:
    """Examples that are short enough for the configuration and the model, and the number of longer ones."""
    warmup = task.warmup
    arguments = {key: value for key, value in task.agent.chat_template_kwargs.items() if value is not None}
    check_template_arguments(tokenizer, arguments, agent=task.name)
    solutions = read_solutions(task.field, warmup, task.directory)
    rows = solution_rows(tokenizer, solutions, arguments=arguments)
    limit = warmup.max_tokens if positions is None else min(warmup.max_tokens, positions)
    kept = [row for row, length in enumerate(rows.lengths_B.tolist()) if length <= limit]
    num_left_out = len(rows) - len(kept)
    if not kept:
        raise DataError(
            f"{task.field}.max_tokens: all {len(rows)} examples have more than {limit} tokens, the smaller of "
            f"max_tokens ({warmup.max_tokens}) and the model's positions ({positions}); raise it, or use shorter ones"
        )
    if num_left_out:
        message = "%s: left out %d of %d examples with more than %d tokens"
        _log.warning(message, task.field, num_left_out, len(rows), limit)
    return rows.take(kept), num_left_out
