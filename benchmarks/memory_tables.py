"""Calculated GPU memory of each pair of the paper with each hardware file: the table of docs/scaling.md.

Usage: python -m benchmarks.memory_tables; writes it between the marks of that page.
"""

from pathlib import Path

from flows.planning.capacity import with_memory_plan, with_ranks
from flows.planning.compose import compose
from flows.planning.memory import peak_gib, published_shapes, sizes_of

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
BEGIN, END = "<!-- table: python -m benchmarks.memory_tables -->", "<!-- end of table -->"
HARDWARE = ("one_gpu", "one_gpu_vllm", "eight_gpus", "two_nodes")
PAIRS = (
    "qwen3-4b+qwen3-4b-instruct",
    "qwen3-1.7b-base+qwen3-4b-base",
    "qwen3-4b-base+llama3.2-3b-instruct",
    "qwen3-1.7b-base+llama3.2-1b-instruct",
    "llama3.2-1b-instruct+llama3.2-3b-instruct",
    "qwen3-4b-base+qwen3-8b-base",
)


def peaks(pair: str, hardware: str) -> str:
    """Least and most memory of a GPU, GiB; (!) marks a most above what the GPU has."""
    config = compose(pair, "hacpo", hardware=hardware)
    shapes, room = published_shapes(config), config.engine.gpu_memory_gb or 0.0
    config = with_memory_plan(with_ranks(config, sizes_of(shapes)), shapes)
    least, most = (peak_gib(config, shapes, gpu_gib=room, is_least=is_least) for is_least in (True, False))
    return f"{least:.0f}, {most:.0f}{'' if most <= room else ' (!)'}"


def memory_table() -> str:
    """Markdown table: a row for each pair, a column for each hardware file."""
    lines = [f"| pair | {' | '.join(HARDWARE)} |", "|---|" + "---|" * len(HARDWARE)]
    lines += [f"| {pair} | {' | '.join(peaks(pair, hardware) for hardware in HARDWARE)} |" for pair in PAIRS]
    return "\n".join(lines)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{memory_table()}\n\n{END}{after}", encoding="utf-8")
