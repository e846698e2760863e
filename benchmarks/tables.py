"""Writes the results in benchmarks/results as tables into docs/performance.md, between marks.

Usage: python -m benchmarks.tables
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; floats have three significant digits."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    lines = [list(head), ["---"] * len(head), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def against_trl(result: dict[str, Any]) -> str:
    """Table with a row per implementation."""
    rows = []
    for entry in result["results"]:
        for way, parts in entry["seconds"].items():
            ratio = entry["trl_over_ours"].get(way, 1.0)
            memory = entry.get("peak_mb", {}).get(way, "")
            parts_s = [parts[name] for name in ("sampling", "logprobs", "update", "step")]
            rows.append([entry["weights"], entry["method"], way, *parts_s, ratio, memory])
        alone = ["", "", entry["products_of_update_s"], "", "", ""]
        rows.append([entry["weights"], entry["method"], "products alone", *alone])
    head = ["weights", "method", "who", "sampling s", "log-probs s", "update s", "step s", "TRL / this"]
    return table([*head, "peak MiB"], rows)


def sampling(result: dict[str, Any]) -> str:
    """Table with a row per model, batch size and length."""
    rows = [
        [
            *(entry[name] for name in ("weights", "batch", "length")),
            *(entry["tokens_per_s"].get(way, "") for way in ("ours", "generate", "vllm")),
            entry["ours_over_generate"],
            entry.get("ours_over_vllm", ""),
            entry["products_over_generate"],
            entry["share_of_limit"],
        ]
        for entry in result["results"]
    ]
    head = ["weights", "batch", "length", "ours tok/s", "generate", "vLLM", "ours / generate", "ours / vLLM"]
    return table([*head, "products alone / generate", "share of the limit"], rows)


def update(result: dict[str, Any]) -> str:
    """Table with a row per vocabulary size, and the memory of the head."""
    names = ("vocabulary", "weights", "rows")
    rows = [
        [
            *(entry[name] for name in names),
            *(entry["seconds"][way] for way in ("ours", "floor")),
            entry["ours_over_floor"],
            entry["share_of_peak"],
        ]
        for entry in result["results"]
    ]
    head = [*names, "ours s", "floor s", "ours / floor", "share of the matmul peak"]
    peak = result["head"]["peak_mb"]
    memory = (
        f"Log-probabilities and gradient of {result['head']['tokens']:,} tokens with a vocabulary of "
        f"{result['head']['vocabulary']:,} take {peak['ours']:.0f} MiB, and {peak['naive']:.0f} MiB if all logits are "
        f"kept. A large matrix product reaches {result['matmul_peak_flops'] / 1e9:.0f} GFLOP/s."
    )
    return f"{table(head, rows)}\n\n{memory}"


def real_models(result: dict[str, Any]) -> str:
    """Tables of sampling, of an update and of an evaluation."""
    rows = [
        [
            *(entry[name] for name in ("model", "rows", "tokens", "decoder")),
            *(entry["tokens_per_s"][way] for way in ("ours", "generate")),
            *(entry[name] for name in ("ours_over_generate", "choice_ms", "choice_share")),
        ]
        for entry in result.get("sampling", [])
    ]
    head = ["model", "rows", "tokens", "decoder", "ours tok/s", "generate", "ours / generate", "choice of a token, ms"]
    tables = [table([*head, "share of a step"], rows)]
    updates = [
        [
            *(entry[name] for name in ("model", "rows", "prompt")),
            "{} to {}".format(*entry["response"]),
            *(entry["seconds"][way] for way in ("ours", "floor")),
            *(entry[name] for name in ("ours_over_floor", "share_of_peak")),
        ]
        for entry in result.get("update", [])
    ]
    head = ["update of model", "rows", "prompt", "responses", "ours s", "floor s", "ours / floor"]
    tables.append(table([*head, "share of the matmul peak"], updates))
    fields = ("model", "problems", "tokens", "evaluation_s", "sampling_s", "evaluation_over_sampling")
    answers = [[entry[name] for name in fields] for entry in result.get("evaluation", [])]
    tables.append(table(["evaluation of model", *(name.replace("_", " ") for name in fields[1:])], answers))
    return "\n\n".join(tables)


def verification(result: dict[str, Any]) -> str:
    """Table with a row per implementation."""
    return table(["who", "answers/s"], result["answers_per_s"].items())


def orchestration(result: dict[str, Any]) -> str:
    """Table with a row per step length and runner."""
    names = ("runner", "step_s", "orchestration_s", "share", "disk_bytes_per_step")
    starts = ", ".join(f"{runner} {seconds:.1f} s" for runner, seconds in result["start_s"].items())
    head = ["runner", "step s", "orchestration s", "share", "bytes on disk per step"]
    rows = table(head, ([entry[name] for name in names] for entry in result["steps"]))
    return f"{rows}\n\nFrom the command to the first sampling of a warm tiny run: {starts}."


def scaling(result: dict[str, Any]) -> str:
    """Table with a row per varied quantity, and one that compares agents in one process and in separate ones."""
    measured = ("step", "rollout", "verify", "update", "peak")
    rows = [
        [
            name,
            ", ".join(map(str, entry["sizes"])),
            ", ".join(f"{seconds:.2f}" for seconds in entry["step_s"]),
            *(entry[f"{name}_exponent"] for name in measured),
        ]
        for name, entry in result["growth"].items()
    ]
    names = ("exponent of the step", "of rollout", "of verify", "of update", "of the peak memory")
    beside = [[entry["agents"], entry["one_process_s"], entry["own_processes_s"]] for entry in result["side_by_side"]]
    tables = (
        table(["varied", "sizes", "step s", *names], rows),
        table(["agents", "step s in one process", "step s in separate processes (Ray)"], beside),
    )
    return "\n\n".join(tables)


def main() -> None:
    """Update the page's tables."""
    text = PAGE.read_text(encoding="utf-8")
    for make in (against_trl, sampling, update, verification, orchestration, scaling, real_models):
        name = make.__name__
        path = RESULTS / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            filled = f"{make(result)}\n\nMachine: {result['machine']}."
            mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
            text = mark.sub(lambda match, filled=filled: f"{match[1]}{filled}\n{match[2]}", text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
