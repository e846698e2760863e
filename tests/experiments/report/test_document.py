"""Both forms of a report say the same and let nothing through as markup."""

from __future__ import annotations

from experiments.report.document import (
    Bullets,
    Heading,
    Listing,
    Paragraph,
    Picture,
    Section,
    Table,
    TableCell,
    to_html,
    to_markdown,
)

NASTY = "<script>alert(1)</script> a|b *c* `d` [e](f) $x$"


def test_html_escapes_every_text() -> None:
    blocks = [
        Heading(NASTY),
        Paragraph(NASTY),
        Bullets((NASTY,)),
        Listing(NASTY),
        Table((NASTY,), (Section(NASTY), (TableCell(NASTY, NASTY),))),
        Picture("x", "<svg></svg>", NASTY),
    ]
    page = to_html(NASTY, blocks)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 11
    assert "<svg></svg>" in page


def test_html_page_loads_nothing() -> None:
    page = to_html("t", [])
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


def test_markdown_table_keeps_its_columns() -> None:
    text = to_markdown("t", [Table(("a|b", "n"), (Section("x"), (TableCell("c|d"), TableCell("1", "paper 2"))))])
    assert text.splitlines()[2:] == [
        r"| a\|b | n |",
        "| :-- | --: |",
        "| **x** |  |",
        r"| c\|d | 1 (paper 2) |",
    ]


def test_markdown_escapes_markup_and_leaves_names_alone() -> None:
    text = to_markdown("t", [Paragraph(f"{NASTY}\ngspo_x2 _y_")])
    assert text.endswith(r"\<script\>alert(1)\</script\> a\|b \*c\* \`d\` \[e\](f) \$x\$ gspo_x2 \_y\_" + "\n")


def test_markdown_listing_survives_backticks() -> None:
    assert "\n````\n```\n````\n" in to_markdown("t", [Listing("```")])
