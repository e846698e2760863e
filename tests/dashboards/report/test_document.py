"""Both forms of a report say the same and let nothing through as markup."""

import base64
import hashlib
import re

import pandas as pd

from dashboards.charts.charts import Chart
from dashboards.report.document import escaped, table, to_html

NASTY = "<script>alert(1)</script> a|b *c* `d` [e](f) $x$ &lt; ~~g~~"
CHART = Chart("c", NASTY, {"mark": "point"}, pd.DataFrame({"x": ["</script><script>alert(1)</script>"]}))


def page_of(markdown: str) -> str:
    return to_html("t", markdown, {"c": CHART}, {"c": "<svg></svg>"})


def test_escaped_text_is_no_markup_in_markdown_or_html() -> None:
    body = page_of(f"# {escaped(NASTY)}\n\n{escaped(NASTY)}\n\n- {escaped(NASTY)}\n").partition("<main>")[2]
    shown = "&lt;script&gt;alert(1)&lt;/script&gt; a|b *c* `d` [e](f) $x$ &amp;lt; ~~g~~"
    assert body.count(shown) == 3


def test_names_with_underscores_stay_as_they_are() -> None:
    assert escaped("gspo_x2 _y_") == r"gspo_x2 \_y\_"


def test_scripts_of_a_page_are_those_that_its_policy_names() -> None:
    page = page_of("![c](figures/c.svg)\n")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy[1].replace("&#39;", "'")) == digests
    assert len(digests) == 5
    assert policy[1].startswith("default-src 'none'")


def test_data_of_a_chart_cannot_end_its_script() -> None:
    page = page_of("![c](figures/c.svg)\n").partition("<main>")[2].partition("</main>")[0]
    assert page.count("</script>") == 1
    assert "<figure" in page and "<p><figure" not in page


def test_page_without_charts_holds_no_script() -> None:
    assert "<script" not in to_html("t", "# t\n", {}, {})


def test_headings_make_the_table_of_contents() -> None:
    page = page_of("# t\n\n## First *part*\n\na\n\n## Second\n\n### Third\n")
    assert re.findall(r'<a href="(#[^"]*)">([^<]*)</a>', page) == [("#first-part", "First part"), ("#second", "Second")]
    assert page.count("<section") == page.count("</section>") == 2


def test_markdown_table_keeps_its_columns() -> None:
    frame = pd.DataFrame([["c|d", "1 (paper 2)", ""]], columns=["a|b", "n", "empty"])
    assert table(frame, 1).splitlines() == [r"| a\|b | n |", "| :-- | --: |", r"| c\|d | 1 (paper 2) |"]
