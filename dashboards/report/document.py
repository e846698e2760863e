"""A report as Markdown from its template, and that Markdown as one HTML page that loads nothing.

Text that is put into the template is escaped, so that names, reasons and labels are never markup.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from dashboards.charts import CHART_SCRIPTS, STATIC
from dashboards.charts.charts import Chart

_TEMPLATES = Path(__file__).parent / "templates"


class _Markup(str):
    """Markdown that a filter made; all other values are escaped."""

    __slots__ = ()


def escaped(value: object) -> object:
    """A value on one line, with all characters escaped that are markup in Markdown or HTML."""
    if isinstance(value, _Markup):
        return value
    one_line = " ".join(str(value).split())
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        one_line = one_line.replace(character, entity)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", re.sub(r"([\\`*|\[\]$~])", r"\\\1", one_line))


def table(frame: pd.DataFrame, num_labels: int) -> _Markup:
    """A table of texts; its first columns are labels, the others numbers, and columns without content are left out."""
    frame = frame[[name for name in frame if (frame[name] != "").any()]]
    lines = [frame.columns, [":--" if i < num_labels else "--:" for i in range(frame.shape[1])], *frame.to_numpy()]
    return _Markup("\n".join(f"| {' | '.join(str(escaped(text)) for text in line)} |" for line in lines))


def to_markdown(content: Mapping[str, Any]) -> str:
    """A report as GitHub Markdown; charts are links to `figures/<name>.svg`.

    Args:
        content: values of the template.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, finalize=escaped, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["table"] = table
    environment.filters["picture"] = lambda chart: _Markup(f"![{escaped(chart.caption)}](figures/{chart.name}.svg)")
    return environment.get_template("report.md").render(content).rstrip() + "\n"


def to_html(title: str, markdown: str, charts: Mapping[str, Chart], pictures: Mapping[str, str]) -> str:
    """The report as one HTML page; a browser with scripts draws the charts, any other shows their pictures.

    Args:
        title: of the page.
        markdown: the report.
        charts: by name.
        pictures: SVG of each chart, by name.
    """
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, autoescape=True)
    environment.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    def figure(renderer: RendererHTML, tokens: list[Token], place: int, *_: Any) -> str:
        name = Path(str(tokens[place].attrs["src"])).stem
        data = base64.b64encode(pictures[name].encode()).decode()
        return environment.get_template("figure.html").render(chart=charts[name], picture=data)

    contents: list[tuple[str, str]] = []

    def section(heading: re.Match[str]) -> str:
        """A heading of level 2 opens a section, which the table of contents and the printed page choose."""
        text = Markup(heading[1]).striptags()
        contents.append((re.sub(r"\W+", "-", text.lower()).strip("-"), text))
        return f'{"</section>" if contents[1:] else ""}\n<section id="{contents[-1][0]}">\n{heading[0]}'

    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("image", figure)
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll" tabindex="0"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    body = re.sub(r"<p>(<figure.*?</figure>)\s*</p>", r"\1", parser.render(markdown), flags=re.DOTALL)
    body = re.sub(r"<h2>(.*)</h2>", section, body)
    scripts = [(STATIC / name).read_text(encoding="utf-8") for name in CHART_SCRIPTS] if charts else []
    return environment.get_template("page.html").render(
        title=title,
        contents=contents,
        body=body + ("</section>" if contents else ""),
        style=(STATIC / "design.css").read_text(encoding="utf-8"),
        scripts=scripts,
    )
