"""`hacpo fields`, `hacpo methods` and `hacpo health`: what there is to set, to choose, and to heed."""

from typing import Annotated, Literal

import typer

Format = Annotated[Literal["text", "markdown"], typer.Option("--format", help="markdown is for a site")]


def fields(
    name: Annotated[str, typer.Argument(help="a field, or the beginning of several names; default: all")] = "",
    form: Format = "text",
) -> None:
    """Describe the configuration's fields: type, default, range, meaning, and whether they are part of the id."""
    from flows.planning.reference import entries_named, field_entries, print_entries

    print_entries(entries_named(field_entries(), name), form)


def methods(
    name: Annotated[str, typer.Argument(help="a method, with its parts and their equations; default: all")] = "",
    form: Format = "text",
) -> None:
    """Describe the shipped methods: what they are, their sources and parts."""
    from flows.planning.reference import entries_of, method_entries, part_entries, print_entries

    entries = entries_of(name) if name else [*method_entries(), *(part_entries() if form == "markdown" else [])]
    print_entries(entries, form)


def health(
    name: Annotated[str, typer.Argument(help="a rule, or the beginning of several names; default: all")] = "",
    form: Format = "text",
) -> None:
    """Describe the rules that judge each step of a training: when they hold, what they read, what to do.

    A finding begins when its rule has held for as many steps as it says, and ends when it has not held for three in a
    row. It changes no result and stops no run. The terminal, the log, the dashboard, MLflow's tag hacpo.health and
    reports show it.
    """
    from flows.planning.reference import entries_named, health_entries, print_entries

    print_entries(entries_named(health_entries(), name), form)
