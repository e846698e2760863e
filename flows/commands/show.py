"""`hacpo show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import AsJson, Hardware, Overrides, RunsDir, declared, stay_offline
from hacpo_core.errors import ConfigError, DataError, ModelError, first_line

if TYPE_CHECKING:
    from hacpo_core.config import ExperimentConfig


def show(
    pair: Annotated[
        str | None, typer.Argument(help="pair; default: list everything", autocompletion=declared("pair"))
    ] = None,
    method: Annotated[str | None, typer.Argument(help="method", autocompletion=declared("method"))] = None,
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Print the resolved configuration of a pair and a method. Without arguments, list what is there to choose from."""
    from flows.planning.compose import compose, to_yaml
    from flows.planning.declarations import DECLARATION_FOLDERS, available
    from flows.planning.plans import why_alone
    from hacpo_core.config import as_dict

    if pair is None:
        from flows.records.files import experiment_ids

        listing = {kind: available(kind) for kind in DECLARATION_FOLDERS}
        listing["experiments"] = experiment_ids(runs_dir)
        if as_json:
            print(json.dumps(listing))
        else:
            for kind, names in listing.items():
                print(f"{kind}:", *names, sep="\n  ")
        return
    if method is None:
        raise ConfigError("show: got a pair without a method; try `hacpo show tiny hacpo`")
    config = compose(pair, method, hardware=hardware, overrides=overrides or [])
    stay_offline()
    ends, unreadable = _end_tokens(config), _unreadable_golds(config)
    if as_json:
        print(json.dumps({**as_dict(config), "end_tokens": ends, "unreadable_golds": unreadable}))
        return
    print(to_yaml(config), end="")
    reason_alone = why_alone(config)
    if reason_alone is not None:
        print(f"# {reason_alone}")
    for agent, tokens in ends.items():
        print(f"# responses of {agent} end with {tokens}")
    from flows.runs.verifier import gold_lines

    for line in gold_lines(unreadable):
        print(f"# {line}")


def _end_tokens(config: ExperimentConfig) -> dict[str, str]:
    """Tokens that end a response of each agent, the one of retokenised responses first; with ids if it has a path."""
    from flows.planning.plans import initial_models
    from hacpo_core.tiny.folders import TEMPLATE_MARKS

    ends: dict[str, str] = {}
    for name, model in initial_models(config).items():
        if model.agent.tiny is not None:
            ends[name] = TEMPLATE_MARKS[model.agent.tiny.tokenizer][-1]
            continue
        try:
            folder = model.base_folder
            if not folder.is_dir():
                ends[name] = "tokens that are known once the GGUF file is converted"
                continue
            from hacpo_core.placement.agent_tokenizer import AgentTokenizer  # imports transformers

            stops = config.rollout.stops_at_turn_end
            tokens = AgentTokenizer(name, model.agent, initial=folder, stops_at_turn_end=stops)
        except (ModelError, ConfigError) as error:
            ends[name] = f"unknown tokens: {first_line(error)}"
            continue
        ids = [tokens.end_id, *sorted(tokens.eos_ids - {tokens.end_id})]
        ends[name] = " or ".join(f"{tokens.tokenizer.convert_ids_to_tokens(token_id)} ({token_id})" for token_id in ids)
    return ends


def _unreadable_golds(config: ExperimentConfig) -> dict[str, list[str]]:
    """Gold answers that the verifier cannot read, of each data set whose file is there."""
    from flows.planning.plans import load_benchmarks
    from flows.runs.verifier import unreadable_golds, verifier_pool
    from hacpo_core.data.training import load_training

    try:
        benchmarks = {name: benchmark.problems for name, benchmark in load_benchmarks(config).items()}
        sets = {**load_training(config.data).sets, **benchmarks}
    except DataError:
        return {}
    with verifier_pool(config, config.verifier.equality) as pool:
        return unreadable_golds(sets, pool)
