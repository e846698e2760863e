"""Checkpoints: everything an experiment needs to resume, each file with its digest, without pickles.

    checkpoints/000010/manifest.json        files and SHA-256 digests, written last; states of the parts
    checkpoints/000010/<agent>/             a Hugging Face model folder (safetensors weights, tokenizer) ...
    checkpoints/000010/<agent>/optimizer.safetensors   ... AdamW's states, and fp32 master weights if there are any;
                                                       adapters, which are merged in the model folder. A complete
                                                       run drops this file, see `checkpoint.keep_optimizer`

No random state is stored: random numbers depend only on (seed, step, agent, problem, sample).
"""

import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.models.lora import save_model
from hacpo_core.engines.models.tensor_files import TensorFile, write_tensors
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json, sha256_of, sync, write_json
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.agents import Agent
from hacpo_core.store.steps import MANIFEST

OPTIMIZER_FILE = "optimizer.safetensors"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An intact checkpoint: its step, its folder, and the manifest's entry of each agent.

    `states` are the states of the method's parts after that step, encoded, by phase.
    """

    step: int
    folder: Path
    agents: dict[str, dict[str, Any]]
    states: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SavedModel:
    """An agent's model in a checkpoint: a Hugging Face folder, and the SHA-256 digests of its files by name."""

    step: int
    folder: Path
    files: dict[str, str]


def save_agent(agent: Agent, folder: Path, *, writes: bool = True) -> dict[str, Any]:
    """Write everything that the agent needs to resume into a new folder.

    Args:
        agent: not during an update.
        folder: created here.
        writes: True on one rank of the agent. The others only take part in gathering each tensor and then drop it, so
            that the machine needs memory for one tensor only.

    Returns:
        the agent's entry in the manifest; `files` are the SHA-256 digests of the written files, by name.

    Raises:
        StoreError: the disk is full or not writable.
    """
    agent.sampler.rest()  # gathering tensors needs device memory
    entry = {"version": agent.version, "num_updates": agent.learner.num_updates, "digest": agent.fingerprint().digest}
    # By name: a learner that was resumed lists them in the order in which it read them.
    parts = sorted(agent.learner.optimizer_parts(), key=lambda part: part.name)
    if not writes:
        for part in parts:
            part.read()
        return entry
    transformers_logging.disable_progress_bar()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {OPTIMIZER_FILE: write_tensors(folder / OPTIMIZER_FILE, parts)}
        save_model(agent.model, folder)  # after everything in which other ranks take part
        agent.tokens.tokenizer.save_pretrained(folder)
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in files)
        files |= {str(path.relative_to(folder)): sha256_of(path) for path in paths}
    except (OSError, SafetensorError) as error:  # converted here, since an actor would not pass on the type
        raise _not_written(folder, error) from error
    return entry | {"files": files}


def save_checkpoint(
    root: Path,
    step: int,
    save: Callable[[Path], Mapping[str, dict[str, Any]]],
    states: Mapping[str, Mapping[str, Any]],
    *,
    keep: int,
    also: Collection[int] = (),
) -> None:
    """Write a checkpoint of all agents after `step`, then remove older ones beyond the newest `keep`.

    Args:
        root: the experiment's folder.
        step: the version of all agents.
        save: writes each agent into a folder of its name inside this one, as `save_agent` does; returns the entries.
        states: states of the method's parts after that step, encoded, by phase.
        keep: number of newest checkpoints to keep.
        also: steps whose checkpoints are kept, too.

    Raises:
        StoreError: the disk is full or not writable; older checkpoints are kept.
    """
    folder = root / "checkpoints" / f"{step:06d}"
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        entries = save(temporary)
        files = {
            f"{name}/{file}": digest for name, entry in entries.items() for file, digest in entry.pop("files").items()
        }
        for file in files:
            sync(temporary / file)
        manifest = {"step": step, "agents": entries, "states": dict(states), "files": files}
        write_json(temporary / MANIFEST, manifest)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        sync(folder.parent)
        sync(root)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise _not_written(folder, error) from error
        raise
    for old in _folders(root)[keep:]:
        if int(old.name) not in also:
            shutil.rmtree(old)


def _not_written(folder: Path, error: Exception) -> StoreError:
    return StoreError(f"cannot write checkpoint {folder}: {error}; free some space, then resume")


def _folders(root: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    return sorted((path for path in (root / "checkpoints").glob("[0-9]*") if path.is_dir()), reverse=True)


def checkpoint_steps(root: Path) -> list[int]:
    """Steps with a checkpoint, newest first."""
    return [int(folder.name) for folder in _folders(root)]


def saved_model(root: Path, step: int, agent: str) -> SavedModel:
    """An agent's model in the checkpoint after `step`; its files are not read.

    Args:
        root: the experiment's folder.
        step: one of `checkpoint_steps`.
        agent: its name.

    Raises:
        StoreError: the checkpoint's manifest cannot be read.
    """
    folder = root / "checkpoints" / f"{step:06d}"
    manifest = read_json(folder / MANIFEST)
    files = {
        name.removeprefix(f"{agent}/"): digest
        for name, digest in manifest["files"].items()
        if name.startswith(f"{agent}/") and name != f"{agent}/{OPTIMIZER_FILE}"
    }
    return SavedModel(step, folder / agent, files)


def drop_optimizers(root: Path) -> None:
    """Remove the optimizer's states from all checkpoints of an experiment that is not trained any more.

    Raises:
        StoreError: a manifest cannot be read or written.
    """
    for folder in _folders(root):
        manifest = read_json(folder / MANIFEST)
        optimizers = [name for name in manifest["files"] if name.endswith(f"/{OPTIMIZER_FILE}")]
        files = {name: digest for name, digest in manifest["files"].items() if name not in optimizers}
        write_json(folder / MANIFEST, manifest | {"files": files})
        for path in folder.glob(f"*/{OPTIMIZER_FILE}"):
            path.unlink()


def latest_checkpoint(root: Path, *, at_most: int | None = None, end: int | None = None) -> Checkpoint | None:
    """The newest checkpoint whose files are all intact; others are skipped with a warning.

    Args:
        root: the experiment's folder.
        at_most: latest step to consider.
        end: step whose checkpoint may lack the optimizer's states, since nothing is trained on it; checkpoints of
            other steps that lack them are skipped without a warning.
    """
    for folder in _folders(root):
        if at_most is not None and int(folder.name) > at_most:
            continue
        try:
            manifest = read_json(folder / MANIFEST)
        except StoreError as error:
            _log.warning("skipping incomplete checkpoint %s: %s", folder, error)
            continue
        has_optimizers = all(f"{name}/{OPTIMIZER_FILE}" in manifest["files"] for name in manifest["agents"])
        if manifest["step"] != end and not has_optimizers:
            continue
        altered = [
            name
            for name, digest in manifest["files"].items()
            if not (folder / name).is_file() or sha256_of(folder / name) != digest
        ]
        if altered:
            _log.warning("skipping checkpoint %s: %s is missing or was altered", folder, altered[0])
            continue
        return Checkpoint(manifest["step"], folder, manifest["agents"], manifest["states"])
    return None


def load_agent(
    tokens: AgentTokenizer, checkpoint: Checkpoint | None, *, config: ExperimentConfig, initial: Path
) -> Agent:
    """The agent from a checkpoint, or from its initial model if there is none.

    Raises:
        StoreError: the weights' digest differs from the manifest's.
    """
    if checkpoint is None:
        return Agent(tokens, config, initial=initial, folder=initial, version=0)
    entry, folder = checkpoint.agents[tokens.name], checkpoint.folder / tokens.name
    agent = Agent(tokens, config, initial=initial, folder=folder, version=entry["version"])
    if (folder / OPTIMIZER_FILE).is_file():  # else the run is complete
        agent.learner.load_optimizer_tensors(TensorFile(folder / OPTIMIZER_FILE), num_updates=entry["num_updates"])
    digest = agent.fingerprint().digest
    if digest != entry["digest"]:
        raise StoreError(
            f"{folder}: got weights with digest {digest[:12]}, expected {entry['digest'][:12]}; remove this checkpoint"
        )
    return agent
