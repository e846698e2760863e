"""Calculated GPU memory of each pair of the paper with each hardware file: tables of docs/scaling.md.

Usage: python -m benchmarks.memory_tables; writes them between the markers of that page.
"""

from __future__ import annotations

from pathlib import Path

from flows.planning.capacity import with_memory_plan
from flows.planning.compose import compose
from flows.planning.memory import memory_of_agents, peak_gib, sizes_of
from flows.planning.published_models import published_shapes
from flows.planning.ranks import with_ranks

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
MEMORY_BEGIN, MEMORY_END = "<!-- tables: python -m benchmarks.memory_tables -->", "<!-- end of tables -->"
HARDWARE = ("one_gpu", "one_gpu_vllm", "eight_gpus", "two_nodes")
PAIRS = (
    "qwen3-4b+qwen3-4b-instruct",
    "qwen3-1.7b-base+qwen3-4b-base",
    "qwen3-4b-base+llama3.2-3b-instruct",
    "qwen3-1.7b-base+llama3.2-1b-instruct",
    "llama3.2-1b-instruct+llama3.2-3b-instruct",
    "qwen3-4b-base+qwen3-8b-base",
)


def memory_table(hardware: str) -> str:
    """Markdown table: memory of each agent on one GPU, and the totals of that GPU, GiB."""
    columns = ("weights", "gradients", "optimizer", "activations", "sampler", "updating", "sampling", "least", "most")
    lines = [f"| pair | agent | {' | '.join(columns)} |", "|---|---|" + "---:|" * len(columns)]
    for pair in PAIRS:
        config = compose(pair, "hacpo", hardware=hardware)
        shapes, room = published_shapes(config), config.engine.gpu_memory_gb or 0.0
        config = with_memory_plan(with_ranks(config, sizes_of(shapes)), shapes)
        least, most = (peak_gib(config, shapes, gpu_gib=room, is_least=is_least) for is_least in (True, False))
        for k, memory in memory_of_agents(config, shapes, gpu_gib=room).items():
            parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.sampler)
            figures = [f"{value:.1f}" for value in (*parts, memory.updating, memory.sampling)]
            peaks = (
                [f"{least:.0f}", f"{most:.0f}{'' if most <= room else ' (!)'}"] if k == next(iter(shapes)) else ["", ""]
            )
            name = pair if k == next(iter(shapes)) else ""
            lines.append("| " + " | ".join([name, k, *figures, *peaks]) + " |")
    return "\n".join(lines)


def memory_tables() -> str:
    """All tables as Markdown, one per hardware file."""
    return "\n\n".join(f"### --hardware {name}\n\n{memory_table(name)}" for name in HARDWARE)


def write_between(begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of docs/scaling.md."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_between(MEMORY_BEGIN, MEMORY_END, memory_tables())
