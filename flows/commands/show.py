"""`hacpo show`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flows.commands.options import AsJson, Hardware, Overrides
from hacpo_core.errors import ConfigError


def show(
    pair: Annotated[str | None, typer.Argument(help="pair; default: list everything")] = None,
    method: Annotated[str | None, typer.Argument(help="method")] = None,
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
    as_json: AsJson = False,
) -> None:
    """Print the resolved configuration of a pair and a method. Without arguments, list what is there to choose from."""
    from flows.planning.compose import compose, to_yaml
    from flows.planning.declarations import DECLARATION_FOLDERS, available
    from flows.planning.plans import why_alone
    from hacpo_core.config import as_dict

    if pair is None:
        listing = {kind: available(kind) for kind in DECLARATION_FOLDERS}
        if as_json:
            print(json.dumps(listing))
        else:
            for kind, names in listing.items():
                print(f"{kind}:", *names, sep="\n  ")
        return
    if method is None:
        raise ConfigError("show: got a pair without a method; try `hacpo show tiny hacpo`")
    config = compose(pair, method, hardware=hardware, overrides=overrides or [])
    if as_json:
        print(json.dumps(as_dict(config)))
        return
    print(to_yaml(config), end="")
    reason_alone = why_alone(config)
    if reason_alone is not None:
        print(f"# {reason_alone}")
