"""Model card of an exported agent, as Markdown: description, results, digests, configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from flows.planning.compose import to_yaml
from flows.planning.plans import Plan
from flows.records.versions import version_tags
from hacpo_core.config import AgentConfig
from hacpo_core.config.addresses import without_password
from hacpo_core.engines.models.folders import is_hub_name
from hacpo_core.evaluation.results import intact_results
from hacpo_core.placement.checkpoints import SavedModel


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
        "## Digests",
        _table(("what", "value"), _origins(model)),
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
    warm_up_note = ", after a supervised warm-up" if agent.warm_up is not None else ""
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


def _origins(model: SavedModel) -> Iterator[tuple[str, str]]:
    versions = version_tags()
    commit = versions.get("mlflow.source.git.commit", "unknown")
    yield f"weights after step {model.step}", f"`{model.digest}`"
    yield from ((f"SHA-256 of `{name}`", f"`{digest}`") for name, digest in sorted(model.files.items()))
    yield "exported with hacpo", f"{versions.get('version.hacpo', 'unknown')}, commit {commit}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}yaml\n{text}{fence}"
