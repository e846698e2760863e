"""A report as a list of blocks, written as Markdown with figure files, or as one self-contained HTML page.

Blocks hold plain text; both writers escape it. Figures are SVG from `experiments.report.figures`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto;margin:1rem 0}
td,th{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap;vertical-align:top}
td.label,th.label{text-align:left}td.section{text-align:left;font-weight:600;padding-top:.8rem}small{opacity:.7}
figure{margin:1.5rem 0}svg{max-width:100%;height:auto;background:#fff}pre{overflow-x:auto;background:#8881;padding:1rem}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 2 or 3; the report's title is level 1."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A bulleted list; may be empty."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Preformatted text."""

    text: str


@dataclass(frozen=True, slots=True)
class TableCell:
    """A value, and a note in small type below it."""

    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A table row that is a heading for the rows below it."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every row has one cell per column, and the first `num_labels` columns are left-aligned text."""

    columns: tuple[str, ...]
    rows: tuple[Section | tuple[TableCell, ...], ...]
    num_labels: int = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as an SVG element, with its file name (without suffix) for Markdown, and a caption."""

    name: str
    svg: str
    caption: str


Block: TypeAlias = Heading | Paragraph | Bullets | Listing | Table | Picture


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    """The report as GitHub Markdown; figures are links to `figures/<name>.svg`."""
    return "\n\n".join([f"# {_plain(title)}", *(_markdown(block) for block in blocks)]) + "\n"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The report as one HTML page that loads nothing."""
    head = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f'<meta http-equiv=Content-Security-Policy content="{POLICY}">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
    )
    return "\n".join([head, *(_html(block) for block in blocks)]) + "\n</html>\n"


def _plain(text: str) -> str:
    """Text on one line with Markdown's special characters escaped."""
    one_line = " ".join(text.split())
    escaped = re.sub(r"([\\`*|<>\[\]$])", r"\\\1", one_line)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Listing(text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
            return f"{fence}\n{text.rstrip()}\n{fence}"
        case Picture(name, _, caption):
            return f"![{_plain(caption)}](figures/{name}.svg)\n\n{_plain(caption)}"
        case Table(columns, rows, num_labels):
            marks = [":--" if i < num_labels else "--:" for i in range(len(columns))]
            lines = [[_plain(name) for name in columns], marks]
            for row in rows:
                if isinstance(row, Section):
                    lines.append([f"**{_plain(row.text)}**", *[""] * (len(columns) - 1)])
                else:
                    lines.append([_plain(f"{c.text} ({c.note})" if c.note else c.text) for c in row])
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text.strip())}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"
        case Listing(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Picture(_, svg, caption):
            return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"
        case Table(columns, rows, num_labels):
            kinds = [" class=label" if i < num_labels else "" for i in range(len(columns))]
            lines = ["".join(f"<th{kind}>{html.escape(n)}</th>" for kind, n in zip(kinds, columns, strict=True))]
            for row in rows:
                if isinstance(row, Section):
                    lines.append(f"<td class=section colspan={len(columns)}>{html.escape(row.text)}</td>")
                else:
                    cells = zip(kinds, row, strict=True)
                    lines.append("".join(f"<td{kind}>{_html_cell(cell)}</td>" for kind, cell in cells))
            return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _html_cell(cell: TableCell) -> str:
    note = f"<br><small>{html.escape(cell.note)}</small>" if cell.note else ""
    return html.escape(cell.text) + note
