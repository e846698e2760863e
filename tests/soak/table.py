"""Writes the tables of docs/reliability.md from results of campaigns: `python -m tests.soak.table RESULT.json ...`."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: campaigns -->", "<!-- end: campaigns -->"


def table_of(campaigns: Sequence[dict[str, Any]]) -> str:
    """Rounds by kind, faults by fault and victim, and the rounds that found a problem, as Markdown."""
    lines = []
    for campaign in campaigns:
        rounds = campaign["rounds"]
        lines += [f"Commit `{campaign['commit'][:10]}`, seed {campaign['seed']}, {campaign['cores']} cores:", ""]
        lines += [
            "| rounds | number | equal | faults | calls of the command | after the last fault: median, worst (s) |"
        ]
        lines += ["|---|---|---|---|---|---|"]
        for kind in dict.fromkeys(one["kind"] for one in rounds):
            own = [one for one in rounds if one["kind"] == kind]
            ends = [one["recovery_s"] for one in own if one["recovery_s"]]
            worst = f"{statistics.median(ends):.0f}, {max(ends):.0f}" if ends else ""
            faults, calls = sum(len(one["faults"]) for one in own), sum(one["num_calls"] for one in own)
            lines.append(f"| {kind} | {len(own)} | {_num_equal(own)} | {faults} | {calls} | {worst} |")
        lines += ["", "| fault | number | victims |", "|---|---|---|"]
        for fault in sorted({hit["fault"] for one in rounds for hit in one["faults"]}):
            hits = [hit["victim"] for one in rounds for hit in one["faults"] if hit["fault"] == fault]
            victims = Counter(victim.rpartition(":")[0] or victim for victim in hits)
            named = ", ".join(f"{victim} {number}" for victim, number in victims.most_common())
            lines.append(f"| {fault} | {len(hits)} | {named} |")
        lines.append("")
        lines += [f"- {one['kind']}, seed {one['seed']}: {problem}" for one in rounds for problem in one["problems"]]
    return "\n".join(lines).strip()


def _num_equal(rounds: Sequence[dict[str, Any]]) -> int:
    return sum(not one["problems"] for one in rounds)


def main() -> None:
    """Replace the text between the marks of the page."""
    campaigns = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table_of(campaigns)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
