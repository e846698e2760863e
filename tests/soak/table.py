"""Writes the tables of docs/reliability.md from results of campaigns: `python -m tests.soak.table RESULT.json ...`."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.soak.faults import KILLS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: campaigns -->", "<!-- end: campaigns -->"


def table_of(campaigns: Sequence[dict[str, Any]]) -> str:
    """All campaigns together: rounds by kind, faults by fault and victim, rounds that found a problem, as Markdown."""
    rounds = [one for campaign in campaigns for one in campaign["rounds"]]
    hits = Counter(hit["fault"] for one in rounds for hit in one["faults"])
    num_kills = sum(hits[name] for name in KILLS)
    seeds = ", ".join(f"{campaign['seed']} (commit `{campaign['commit'][:10]}`)" for campaign in campaigns)
    minutes = sum(campaign.get("seconds", 60.0 * campaign["minutes"]) for campaign in campaigns) / 60.0
    name = "Seed" if len(campaigns) == 1 else "Seeds"
    summary = (
        f"{name} {seeds}, {campaigns[0]['cores']} cores, {minutes:.0f} minutes: **{num_kills:,} kills and "
        f"{hits.total() - num_kills:,} other faults** in {len(rounds)} rounds, {_num_equal(rounds)} of them equal to "
        "undisturbed runs."
    )
    ends = [one["recovery_s"] for one in rounds if one["recovery_s"]]
    if ends:
        summary += f" After the last fault: median {statistics.median(ends):.0f} s, worst {max(ends):.0f} s."
    problems = [f"- {one['kind']}, seed {one['seed']}: {_first(one['problems'])}" for one in rounds if one["problems"]]
    parts = [summary, _rounds_by_kind(rounds), _faults_by_victim(rounds, hits), "\n".join(problems)]
    return "\n\n".join(part for part in parts if part)


def _first(problems: Sequence[str]) -> str:
    return problems[0] + (f", and {len(problems) - 1} more of the kind" if len(problems) > 1 else "")


def _rounds_by_kind(rounds: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| rounds | number | equal | kills | other faults | calls of the command | "
        "after the last fault: median, worst (s) |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one["kind"] for one in rounds):
        own = [one for one in rounds if one["kind"] == kind]
        ends = [one["recovery_s"] for one in own if one["recovery_s"]]
        worst = f"{statistics.median(ends):.0f}, {max(ends):.0f}" if ends else ""
        is_kill = [hit["fault"] in KILLS for one in own for hit in one["faults"]]
        faults, calls = f"{sum(is_kill)} | {len(is_kill) - sum(is_kill)}", sum(one["num_calls"] for one in own)
        lines.append(f"| {kind} | {len(own)} | {_num_equal(own)} | {faults} | {calls} | {worst} |")
    return "\n".join(lines)


def _faults_by_victim(rounds: Sequence[dict[str, Any]], hits: Counter[str]) -> str:
    lines = ["| fault | number | victims |", "|---|---|---|"]
    for fault in sorted(hits, key=lambda name: (name not in KILLS, name)):
        victims = Counter(
            hit["victim"].rpartition(":")[0] or hit["victim"]
            for one in rounds
            for hit in one["faults"]
            if hit["fault"] == fault
        )
        named = ", ".join(f"{victim} {number}" for victim, number in victims.most_common())
        lines.append(f"| {fault} | {hits[fault]} | {named} |")
    return "\n".join(lines)


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
