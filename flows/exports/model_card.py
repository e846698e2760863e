"""Model card of an exported agent, as Markdown: description, results, digests, configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from flows.planning.compose import to_yaml
from flows.planning.plans import CONTENTS_FILE, Plan, initial_models
from flows.records.versions import version_tags
from flows.runs.results import read_final
from hacpo_core.config import AgentConfig
from hacpo_core.config.addresses import without_password
from hacpo_core.engines.models.folders import is_hub_name
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.results import intact_results
from hacpo_core.files import read_json
from hacpo_core.methods.registry import trains_alone
from hacpo_core.placement.checkpoints import SavedModel
from hacpo_core.store.steps import StepStore

_COMMIT = "mlflow.source.git.commit"
_log = logging.getLogger(__name__)


def model_card(plan: Plan, agent: str, model: SavedModel) -> str:
    """The model card of an agent, with the hub's YAML front matter.

    Args:
        plan: of the experiment that trained it.
        agent: its name.
        model: its saved weights.
    """
    config = plan.config
    start = _start_of(config.pair.agents[agent])
    sections = [
        _front_matter(plan, agent),
        f"# {agent} of {plan.id}",
        f"A causal language model: agent `{agent}` of the hacpo experiment `{plan.id}` after training step "
        f"{model.step} of {config.train.num_steps}. It started from {start} and was trained by reinforcement learning "
        f"with verifiable rewards (method `{config.method.name}`, seed {config.seed}). {_partners(plan, agent)}",
        *([_adapters(config.engine.lora.rank)] if config.engine.lora.rank > 0 else []),
        "Prompts are rendered with the chat template in this folder.",
        "## Figures",
        _table(("figure", "value"), _figures(plan, agent, model.step)),
        _evaluations(plan, agent, model.step),
        "## Digests",
        _table(("what", "value"), _origins(plan, agent, model)),
        _table(("file", "SHA-256"), ((f"`{name}`", f"`{digest}`") for name, digest in sorted(model.files.items()))),
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
    warm_up_note = ""
    if agent.warm_up is not None:
        is_plain = agent.warm_up.kind == "sft"
        warm_up_note = f", after a supervised warm-up{'' if is_plain else ' against its weak checkpoint (WMSS)'}"
    if agent.tiny is not None:
        return f"a tiny {agent.tiny.family} model made by hacpo{warm_up_note}"
    return f"`{agent.path}`{warm_up_note}"


def _partners(plan: Plan, agent: str) -> str:
    agents, method = plan.config.pair.agents, plan.config.method
    others = ", ".join(f"`{name}` ({_start_of(other)})" for name, other in agents.items() if name != agent)
    if not others:
        return "It was trained alone."
    if method.shares_rollouts:
        return (
            f"It was trained together with {others}, and learned from their verified responses as well as from its "
            "own. The partners' weights are not in this folder."
        )
    if trains_alone(method):
        return f"The experiment also trained {others}, but this model learned only from its own responses."
    return (
        f"It was trained together with {others}, on its own responses; their advantages or prompts "
        f"depended on the partners (method {method.name})."
    )


def _adapters(rank: int) -> str:
    return f"Low-rank adapters of rank {rank} were trained; they are merged into the weights."


def _figures(plan: Plan, agent: str, step: int) -> Iterator[tuple[str, str]]:
    yield "training steps", f"{step} of {plan.config.train.num_steps}"
    store = StepStore(plan.root)
    try:
        metrics = [store.metrics(number)["agents"][agent] for number in range(1, step + 1)]
    except StoreError as error:
        _log.warning("the model card has no reward and token counts: %s", error)
        return
    yield f"mean reward of step {step}", f"{metrics[-1]['reward/mean']:.4f}"
    yield "tokens sampled", f"{int(sum(values['tokens/sampled'] for values in metrics)):,}"
    yield "tokens trained on", f"{int(sum(values['tokens/trained'] for values in metrics)):,}"


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


def _origins(plan: Plan, agent: str, model: SavedModel) -> Iterator[tuple[str, str]]:
    yield "experiment", f"`{plan.id}`"
    yield f"weights after step {model.step}", f"`{model.digest}`"
    digests = _contents_digests(plan)
    yield "initial model", f"`{_initial(plan, agent, digests)}`"
    for field, what in (("weak", "weak checkpoint"), ("file", "solutions")):
        if f"{agent} warm_up.{field}" in digests:
            yield f"its warm-up's {what}", f"`{digests[f'{agent} warm_up.{field}']}`"
    final = read_final(plan)
    for when, versions in (("trained", final.versions if final is not None else {}), ("exported", version_tags())):
        if "version.hacpo" in versions:
            yield f"{when} with hacpo", f"{versions['version.hacpo']}, commit {versions.get(_COMMIT, 'unknown')}"


def _contents_digests(plan: Plan) -> dict[str, str]:
    path = plan.root / CONTENTS_FILE
    digests: dict[str, str] = read_json(path) if path.is_file() else {}
    return digests


def _initial(plan: Plan, agent: str, digests: Mapping[str, str]) -> str:
    """The recorded fingerprint of the initial model; for a tiny model its name, which contains its recipe's digest."""
    model = initial_models(plan.config)[agent]
    return digests.get(agent, "not recorded") if model.agent.tiny is None else model.folder.name


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}yaml\n{text}{fence}"
