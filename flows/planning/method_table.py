"""Every shipped method and what it is made of: `hacpo show methods`, and docs/methods.md.

python -m flows.planning.method_table > docs/methods.md
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from flows.planning.compose import DECLARATION_FOLDERS, available, compose
from hacpo_core.config import SEAMS
from hacpo_core.config.fields import declaration
from hacpo_core.methods.base import Seam
from hacpo_core.methods.registry import SEAM_CLASSES, SHIPPED

_HEAD = """# Methods

Written by `python -m flows.planning.method_table` from the files of `experiments/methods` and the classes of
`hacpo_core/methods`; a test holds it up to date. `hacpo show methods` prints the first table. A method of your own:
[authoring.md](authoring.md). Results: [results.md](results.md). What a paper leaves open: [decisions.md](decisions.md).
"""
_DEFAULT_SEAMS = {"plan": "every_problem", "build": "shuffled"}


@dataclasses.dataclass(frozen=True, slots=True)
class MethodRow:
    """One file of experiments/methods.

    Attributes:
        name: of the file.
        about: its first comment.
        source: its second one, where the method is from.
        shares: whether learners train on other agents' responses.
        parts: name of the implementation of each seam.
        fields: parameters of these implementations that not every one of the seam has, by dotted name.
    """

    name: str
    about: str
    source: str
    shares: bool
    parts: Mapping[str, str]
    fields: tuple[str, ...]


def method_rows() -> Iterator[MethodRow]:
    """All shipped methods, as they compose with the tiny pair."""
    folder = files("experiments") / DECLARATION_FOLDERS["method"]
    for name in available("method"):
        about, source = (folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[:2]
        method = compose("tiny", name).method
        parts = {seam: getattr(method, seam).name for seam in SEAMS}
        fields = tuple(f"method.{seam}.{field}" for seam in SEAMS for field in _own_fields(seam, getattr(method, seam)))
        yield MethodRow(
            name, about.removeprefix("# "), source.removeprefix("# Source: "), method.shares_rollouts, parts, fields
        )


def _own_fields(seam: str, part: Seam) -> list[str]:
    common = {field.name for field in dataclasses.fields(SEAM_CLASSES[seam])}
    return [field.name for field in dataclasses.fields(part) if field.name not in common]


def print_methods(*, as_json: bool) -> None:
    """All shipped methods as text, or as a JSON list."""
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in method_rows()]))
        return
    for row in method_rows():
        parts = ", ".join(f"{seam} {part}" for seam, part in row.parts.items() if part != _DEFAULT_SEAMS.get(seam))
        print(f"{row.name}  ({'shares rollouts' if row.shares else 'own rollouts'}; {parts})")
        for text in (row.about, f"Source: {row.source}", f"Fields: {', '.join(row.fields)}"):
            print(textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False))


def markdown() -> str:
    """The page docs/methods.md."""
    titles = ("method", "what it is", "source", "shares rollouts", "plan", "estimate", "build", "objective")
    lines = [_HEAD, f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in method_rows():
        shares = "yes" if row.shares else "no"
        cells = [f"`{row.name}`", row.about, row.source, shares, *(f"`{part}`" for part in row.parts.values())]
        lines.append(f"| {' | '.join(cells)} |")
    for seam in SEAMS:
        lines.append(f"\n## {seam}\n")
        for name, implementation in SHIPPED[seam].items():
            lines += [
                f"### {name}\n",
                f"`{implementation.__module__}`\n",
                "```",
                _documentation(implementation),
                "```\n",
            ]
            lines += [f"- `{field}`: {text}" for field, text in _fields(implementation)] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _documentation(implementation: type[Seam]) -> str:
    return inspect.cleandoc(implementation.__doc__ or "")


def _fields(implementation: type[Seam]) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(implementation):
        if field.name != "name":
            default: Any = field.default
            if isinstance(default, str) and default.isspace():
                default = json.dumps(default)
            yield field.name, f"{declaration(field).about} (default {default})"


if __name__ == "__main__":
    sys.stdout.write(markdown())
