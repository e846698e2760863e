"""Export an agent from a checkpoint as a Hugging Face folder with a model card: `hacpo export`.

    checkpoints/000010/<agent>/ ─copy, check digests─▶ .FOLDER.<pid>.tmp ─card, rename─▶ FOLDER ─▶ hub

A checkpoint holds each agent as `save_pretrained` writes it, with adapters merged and ranks gathered, so the model
need not be loaded.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from flows.planning.compose import to_yaml
from flows.planning.plans import Plan, check_agent
from hacpo_core.config import AgentConfig
from hacpo_core.config.addresses import without_password
from hacpo_core.engines.models.folders import is_hub_name
from hacpo_core.errors import ConfigError, StoreError
from hacpo_core.evaluation.results import intact_results
from hacpo_core.files import is_full_disk, sha256_of, sync
from hacpo_core.placement.checkpoints import SavedModel, checkpoint_steps, saved_model

CARD_FILE = "README.md"


def export_agent(plan: Plan, agent: str, folder: Path, *, step: int | None = None) -> SavedModel:
    """Write an agent's model and tokenizer from a checkpoint into a new folder, with a model card.

    The folder is renamed into place when it is complete.

    Args:
        plan: of an experiment in the runs folder, which may be running.
        agent: name of the agent.
        folder: must not exist yet, or be empty.
        step: training step of the checkpoint; None: the last checkpoint.

    Raises:
        ConfigError: no such agent or checkpoint, or the folder is not empty.
        StoreError: there is no checkpoint yet, a file does not match its digest, or the folder cannot be written.
    """
    model = find_model_of(plan, agent, step=step)
    folder = folder.resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; name another one")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, digest in model.files.items():
            copy_checked(model.folder / name, temporary / name, digest=digest)
        (temporary / CARD_FILE).write_text(model_card(plan, agent, model), encoding="utf-8")
        sync(temporary / CARD_FILE)
        temporary.rename(folder)
        sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            is_full = is_full_disk(error)
            reason = "the disk is full; free some space" if is_full else f"{error.strerror}; name another folder"
            raise StoreError(f"cannot write {folder}: {reason}") from error
        raise
    return replace(model, folder=folder)


def find_model_of(plan: Plan, agent: str, *, step: int | None) -> SavedModel:
    """The agent's model in a checkpoint; arguments and errors as in `export_agent`."""
    check_agent(plan, agent)
    steps = checkpoint_steps(plan.root)
    if not steps:
        raise StoreError(f"{plan.id} has no checkpoint; train it first: hacpo resume {plan.id}")
    if step is not None and step not in steps:
        step_names = ", ".join(map(str, reversed(steps)))
        raise ConfigError(
            f"--step: got {step}, but {plan.id} has checkpoints after steps {step_names}; choose one of them"
        )
    return saved_model(plan.root, steps[0] if step is None else step, agent)


def copy_checked(source: Path, target: Path, *, digest: str) -> None:
    """Copy a file and check its SHA-256 digest.

    Raises:
        StoreError: the digest differs, or the source no longer exists.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise StoreError(f"{source} no longer exists; training removes old checkpoints, so export again") from error
    if (copied := sha256_of(target)) != digest:
        raise StoreError(
            f"{source} has digest {copied[:12]}, expected {digest[:12]}: it was changed after it was written; name "
            "another checkpoint with --step"
        )
    sync(target)


def model_card(plan: Plan, agent: str, model: SavedModel) -> str:
    """The model card of an agent, with the hub's YAML front matter.

    Args:
        plan: of the experiment that trained it.
        agent: its name.
        model: its saved weights.
    """
    config = plan.config
    partners = ", ".join(
        f"`{name}` ({_start_of(other)})" for name, other in config.pair.agents.items() if name != agent
    )
    team = f"beside {partners}" if partners else "alone"
    what = (
        f"A causal language model: agent `{agent}` of the hacpo experiment `{plan.id}` after training step "
        f"{model.step} of {config.train.num_steps}. It started from {_start_of(config.pair.agents[agent])} and was "
        f"trained by reinforcement learning with verifiable rewards (method `{config.method.name}`, seed "
        f"{config.seed}), {team}. Prompts are rendered with the chat template in this folder."
    )
    sections = [
        _front_matter(plan, agent),
        f"# {agent} of {plan.id}",
        what,
        "## Accuracies",
        _evaluations(plan, agent, model.step),
        "## Configuration",
        _fenced(without_password(to_yaml(config))),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(plan: Plan, agent: str) -> str:
    """YAML front matter. The hub rejects a base_model that is not a hub name, so a local folder is left out."""
    path = plan.config.pair.agents[agent].path
    values: dict[str, Any] = {"base_model": path} if path is not None and is_hub_name(path) else {}
    values |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    values["tags"] = list(dict.fromkeys(["hacpo", "reinforcement-learning", "rlvr", plan.config.method.name]))
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---"


def _start_of(agent: AgentConfig) -> str:
    warm_up_note = " after a supervised warm-up" if agent.warm_up is not None else ""
    model = f"a tiny {agent.tiny.family} model made by hacpo" if agent.tiny is not None else f"`{agent.path}`"
    return f"{model}{warm_up_note}"


def _evaluations(plan: Plan, agent: str, step: int) -> str:
    """Table of each benchmark's main metric before training and after the step, where measured."""
    scores: dict[str, dict[int, str]] = {}
    for result in intact_results(plan.root):
        if result.agent == agent and result.step in (0, step):
            value = result.headline_estimate
            label = f"{result.benchmark}, {value.metric}, {result.num_problems} problems"
            scores.setdefault(label, {})[result.step] = f"{value.value:.4f} ({value.low:.4f} to {value.high:.4f})"
    if not scores:
        return f"There is no evaluation of step {step}."
    rows = [
        (label, values.get(0, "not measured"), values.get(step, "not measured")) for label, values in scores.items()
    ]
    intervals = "In parentheses: 95 % bootstrap intervals over problems."
    return _table(("benchmark", "before training", f"after step {step}"), rows) + f"\n\n{intervals}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}yaml\n{text}{fence}"
