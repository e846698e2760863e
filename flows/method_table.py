"""Every shipped method and what it is made of: `hacpo show methods`, and docs/methods.md.

python -m flows.method_table > docs/methods.md
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

from flows.compose import DECLARATION_FOLDERS, available, compose
from hacpo_core.config import SEAMS
from hacpo_core.config.fields import declaration
from hacpo_core.methods.base import Seam
from hacpo_core.methods.registry import SHIPPED

_HEAD = """# Methods

Written by `python -m flows.method_table` from the files of `experiments/methods` and the classes of
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
        shares: whether learners train on other agents' responses.
        parts: name of the implementation of each seam.
    """

    name: str
    about: str
    shares: bool
    parts: Mapping[str, str]


def method_rows() -> Iterator[MethodRow]:
    """All shipped methods, as they compose with the tiny pair."""
    folder = files("experiments") / DECLARATION_FOLDERS["method"]
    for name in available("method"):
        first = (folder / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        method = compose("tiny", name).method
        parts = {seam: getattr(method, seam).name for seam in SEAMS}
        yield MethodRow(name, first.removeprefix("#").strip(), method.shares_rollouts, parts)


def print_methods(*, as_json: bool) -> None:
    """All shipped methods as text, or as a JSON list."""
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in method_rows()]))
        return
    for row in method_rows():
        parts = ", ".join(f"{seam} {part}" for seam, part in row.parts.items() if part != _DEFAULT_SEAMS.get(seam))
        print(f"{row.name}  ({'shares rollouts' if row.shares else 'own rollouts'}; {parts})")
        print(textwrap.fill(row.about, 110, initial_indent="    ", subsequent_indent="    "))


def markdown() -> str:
    """The page docs/methods.md."""
    lines = [_HEAD, "| method | what it is | shares rollouts | plan | estimate | build | objective |", "|---" * 7 + "|"]
    for row in method_rows():
        cells = [f"`{row.name}`", row.about, "yes" if row.shares else "no", *(f"`{p}`" for p in row.parts.values())]
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
