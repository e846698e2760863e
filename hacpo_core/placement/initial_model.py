"""Initial models of agents: where each comes from, what it is made of, and its folder, made once and cached.

    folder or hub name ─────────────────┐
    .gguf file ── converted to fp32 ────┼──▶ base ── warm_up, if any ──▶ initial model
    tiny ── random weights ─────────────┘

Planning asks for contents and folders without torch; only `make` imports it.

Shapes: B example.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

from hacpo_core.config import AgentConfig, digest_of
from hacpo_core.engines.models.folders import (
    CONVERSION_VERSION,
    check_model_folder,
    find_model,
    find_weak_model,
    model_fingerprint,
)
from hacpo_core.errors import DataError, ModelError
from hacpo_core.files import make_folder, read_json, sha256_of, write_json
from hacpo_core.records import WarmUpProgress
from hacpo_core.tiny.folders import tiny_model_folder
from hacpo_core.warm_up.solutions import read_solutions, solution_rows, solutions_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hacpo_core.columns import TokenRows
    from hacpo_core.placement.agent_tokenizer import AgentTokenizer

MAX_TOKENS = 4096
"""most tokens of a warm-up's example, prompt and solution together"""
RECIPE_VERSION = 2
"""Raise it when the same inputs would give a different warmed-up model, so that old caches are not used."""
SHIPPED_MODELS = Path(__file__).parents[1] / "tiny" / "warm"
"""warmed-up models that come with the package: those of the pair tiny. If its declaration or the recipe changes,
replace them by the folders that `hacpo demo` then makes in runs/models."""
MARKER_FILE = "warm_up.json"
"""file in a warmed-up model's folder with its inputs and the results of the warm-up"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InitialModel:
    """The model with which an agent begins.

    Attributes:
        name, agent: of the agent; its configuration.
        cache: folder of all models made here.
        data_dir: data folder, as for `data_path`, with a warm-up's file.
        device: for the warm-up, "cpu" or "cuda".
        stops_at_turn_end: `rollout.stops_at_turn_end`, which decides about the token that solutions end in.
        num_threads: CPU threads of a warm-up; tiny models use one.
    """

    name: str
    agent: AgentConfig
    cache: Path
    data_dir: str | None = None
    device: str = "cpu"
    stops_at_turn_end: bool = True
    num_threads: int = 1

    @property
    def field(self) -> str:
        """Field that declares the warm-up, for messages."""
        return f"pair.agents.{self.name}.warm_up"

    def contents(self) -> dict[str, str]:
        """Digest of each folder and file of which the model is made, by what it is used for.

        Raises:
            HacpoError: one of them does not exist.
        """
        digests = {}
        if self.agent.path is not None:
            digests[self.name] = model_fingerprint(find_model(self.agent.path, agent=self.name))
        warm_up = self.agent.warm_up
        if warm_up is not None and warm_up.kind == "weak_driven":
            digests[f"{self.name} warm_up.weak"] = model_fingerprint(find_weak_model(warm_up.weak, agent=self.name))
        file = None if warm_up is None else solutions_file(self.field, warm_up, self.data_dir)
        if file is not None:
            digests[f"{self.name} warm_up.file"] = sha256_of(file)
        return digests

    @property
    def base_folder(self) -> Path:
        """Folder of the model before its warm-up; it may have to be made."""
        if self.agent.tiny is not None:
            return tiny_model_folder(self.agent.tiny, self.cache)
        assert self.agent.path is not None, "validate() requires path or tiny"
        model = find_model(self.agent.path, agent=self.name)
        if model.is_dir():
            return model
        return self.cache / f"{_short(model.stem)}-{digest_of([CONVERSION_VERSION, model_fingerprint(model)])[:10]}"

    @property
    def folder(self) -> Path:
        """Folder of the model with which the agent begins; it may have to be made."""
        base, warm_up = self.base_folder, self.agent.warm_up
        return (
            base
            if warm_up is None
            else self.cache / f"{_short(base.name)}-{warm_up.kind}-{digest_of(self._inputs())[:10]}"
        )

    def check(self) -> None:
        """Check what can be checked without loading a model; a GGUF file is converted first.

        Raises:
            HacpoError: a folder or file cannot be used.
        """
        if self.agent.path is not None:
            has_template = self.agent.chat_template is not None
            check_model_folder(self.make_base(), agent=self.name, has_template_override=has_template)
        warm_up = self.agent.warm_up
        if warm_up is not None:
            if warm_up.kind == "weak_driven":
                weak = find_weak_model(warm_up.weak, agent=self.name)
                check_model_folder(weak, agent=self.name, has_template_override=True)
            if warm_up.source == "file":
                read_solutions(self.field, warm_up, self.data_dir)

    def make_base(self) -> Path:
        """The folder of the model before its warm-up, made if it does not exist.

        Raises:
            HacpoError: a folder or file cannot be used.
        """
        folder, tiny = self.base_folder, self.agent.tiny
        if tiny is not None:
            from hacpo_core.tiny.models import save_tiny_model

            return make_folder(folder, lambda target: save_tiny_model(tiny, target))
        if folder.is_dir():
            return folder
        file = find_model(str(self.agent.path), agent=self.name)
        from hacpo_core.engines.models.gguf import convert

        try:
            return make_folder(folder, lambda target: convert(file, target))
        except ModelError as error:
            raise ModelError(f"pair.agents.{self.name}.path: {error}") from error

    def make(self, *, progress: WarmUpProgress | None = None) -> Path:
        """The folder of the initial model, made if it does not exist. Several processes may call this at the same time.

        Args:
            progress: called during a warm-up.

        Raises:
            HacpoError: a folder or file cannot be used, or the two models of a warm-up have different vocabularies.
        """
        if self.agent.warm_up is None:
            return self.make_base()
        folder = self.folder
        if (SHIPPED_MODELS / folder.name).is_dir():
            make_folder(folder, partial(copytree, SHIPPED_MODELS / folder.name, dirs_exist_ok=True))
        else:
            base = self.make_base()
            make_folder(folder, lambda target: self._warm_up(base, target, progress))
        marker = folder / MARKER_FILE
        if not marker.is_file() or read_json(marker).get("digest") != digest_of(self._inputs()):
            raise ModelError(f"{folder} is not the model of {self.field}; remove the folder to create it again")
        return folder

    def _inputs(self) -> dict[str, Any]:
        """Everything that determines the warmed-up model, by contents rather than paths."""
        agent = self.agent
        assert agent.warm_up is not None, "only agents with a warm_up are warmed up"
        return {
            "recipe": RECIPE_VERSION,
            "base": self.base_folder.name if agent.tiny is not None else CONVERSION_VERSION,
            "contents": self.contents(),
            "fields": {key: value for key, value in asdict(agent.warm_up).items() if key not in ("weak", "file")},
            "chat_template": agent.chat_template,
            "chat_template_kwargs": agent.chat_template_kwargs,
            "device": self.device,
            "stops_at_turn_end": self.stops_at_turn_end
            or agent.tiny is not None,  # whose templates write no such token
        }

    def _warm_up(self, base: Path, target: Path, progress: WarmUpProgress | None) -> None:
        """Warm up the model in `base` and write it into `target`."""
        import torch
        from transformers.utils import logging as transformers_logging

        from hacpo_core.engines.learning.allocator import release_unused
        from hacpo_core.engines.models.loading import check_vocabulary, load_model
        from hacpo_core.engines.models.lora import save_model
        from hacpo_core.placement.agent_tokenizer import AgentTokenizer
        from hacpo_core.warm_up.training import train

        agent, warm_up = self.agent, self.agent.warm_up
        assert warm_up is not None, "the caller has checked"
        model = weak = None
        try:
            tokens = AgentTokenizer(self.name, agent, initial=base, stops_at_turn_end=self.stops_at_turn_end)
            with _repeatable(self.device, 1 if agent.tiny is not None else self.num_threads):
                model = load_model(base, device=self.device)
                check_vocabulary(model, tokens.tokenizer, agent=self.name)
                if warm_up.kind == "weak_driven":
                    weak = self._weak_model(model, tokens.tokenizer)
                positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
                rows, num_left_out = self._rows(tokens, positions)
                figures = train(model, rows, warm_up, weak=weak, progress=progress)
            transformers_logging.disable_progress_bar()
            save_model(model, target)
            tokens.tokenizer.save_pretrained(target)
            inputs, counts = self._inputs(), {"num_examples": len(rows), "num_left_out": num_left_out}
            marker = {"digest": digest_of(inputs), "inputs": inputs, **counts, **asdict(figures)}
            write_json(target / MARKER_FILE, marker)
        finally:
            model = weak = None
            release_unused(torch.device(self.device))

    def _weak_model(self, strong: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The weak checkpoint; an error unless every token id means the same token for both models."""
        from hacpo_core.engines.models.loading import load_model, load_tokenizer

        assert self.agent.warm_up is not None, "the caller has checked"
        folder = find_weak_model(self.agent.warm_up.weak, agent=self.name)
        weak = load_model(folder, device=self.device).requires_grad_(False)
        sizes = [model.config.get_text_config().vocab_size for model in (strong, weak)]
        weak_tokenizer = load_tokenizer(folder)
        vocabularies = [tokenizer.get_vocab(), weak_tokenizer.get_vocab()]
        if sizes[0] != sizes[1] or vocabularies[0] != vocabularies[1]:
            raise ModelError(
                f"{self.field}.weak: got {folder} with {len(vocabularies[1])} tokens and {sizes[1]} logits, expected "
                f"the same vocabulary as the agent's model ({len(vocabularies[0])} tokens, {sizes[0]} logits); set it "
                "to an earlier checkpoint of the same model"
            )
        return weak

    def _rows(self, tokens: AgentTokenizer, positions: int | None) -> tuple[TokenRows, int]:
        """Examples that are short enough for the configuration and the model, and the number of longer ones."""
        warm_up = self.agent.warm_up
        assert warm_up is not None, "the caller has checked"
        solutions = read_solutions(self.field, warm_up, self.data_dir)
        rows = solution_rows(tokens.tokenizer, solutions, end_id=tokens.end_id, arguments=tokens.template_arguments)
        limit = MAX_TOKENS if positions is None else min(MAX_TOKENS, positions)
        fitting_rows = [row for row, length in enumerate(rows.lengths_B.tolist()) if length <= limit]
        num_left_out = len(rows) - len(fitting_rows)
        if not fitting_rows:
            raise DataError(
                f"{self.field}: all {len(rows)} examples have more than {limit} tokens, the smaller of {MAX_TOKENS} "
                f"and the model's positions ({positions}); use shorter ones"
            )
        if num_left_out:
            message = "%s: left out %d of %d examples with more than %d tokens"
            _log.warning(message, self.field, num_left_out, len(rows), limit)
        return rows.take(fitting_rows), num_left_out


def _short(name: str) -> str:
    """A part of a folder's name, safe in any file system."""
    return re.sub(r"[^\w.+-]", "_", name)[:40]


@contextmanager
def _repeatable(device: str, num_threads: int) -> Iterator[None]:
    """Compute with this number of threads, and on a GPU with deterministic kernels; restore both afterwards."""
    import torch

    from hacpo_core.engines.models.loading import use_deterministic_kernels

    threads_before, was_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(num_threads)
    if device != "cpu":
        use_deterministic_kernels()
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(was_deterministic)
