"""`hacpo show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, Hardware, Overrides, RunsDir
from hacpo_core.errors import ConfigError


def show(
    pair: Annotated[str | None, typer.Argument(help="pair, `fields` or `methods`; default: list everything")] = None,
    method: Annotated[str | None, typer.Argument(help="method; after `fields`: prefix of the names")] = None,
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Print the resolved configuration of a pair and a method.

    `show fields [PREFIX]` describes the configuration fields, `show methods` the methods. Without arguments, list
    pairs, methods and experiments.
    """
    from flows.planning.compose import compose, to_yaml
    from flows.planning.declarations import DECLARATION_FOLDERS, available
    from hacpo_core.config import as_dict

    if pair == "fields":
        from flows.planning.field_table import print_fields

        print_fields(method or "", as_json=as_json)
        return
    if pair == "methods":
        from flows.planning.method_table import print_methods

        print_methods(as_json=as_json)
        return
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
    print(json.dumps(as_dict(config)) if as_json else to_yaml(config), end="\n" if as_json else "")
