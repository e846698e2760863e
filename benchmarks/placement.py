"""One step with both agents in one process, in two of Ray's actors in lock-step, and pipelined: A B C A B C.

`tiny` and `tiny_size` have agents of unequal speed, the second slower in everything; in `opposite` the first agent is
the slow sampler (deep and thin) and the second the slow learner (wide and flat).

Usage: python -m benchmarks.placement [--steps 20] [--rounds 2]; writes benchmarks/results/placement.json.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import write_result
from benchmarks.trainings import options, step_seconds, summary

CONDITIONS = {
    "one process": ["runtime.runner=direct"],
    "lock-step": ["runtime.runner=direct", "placement.kind=ray", "placement.pipelined=false"],
    "pipelined": ["runtime.runner=direct", "placement.kind=ray"],
}
OPPOSITE = """
extends: _tiny
pair:
  name: opposite
  agents:
    deep:
      tiny: {family: qwen3, hidden_size: 48, num_layers: 8, warmup: {steps: 100, batch_size: 32}}
    wide:
      tiny: {family: llama, tokenizer: merged, hidden_size: 256, num_layers: 1, warmup: {steps: 100, batch_size: 32}}
"""


def main() -> None:
    """Measure and write the result."""
    asked = options(steps=20, rounds=2)
    with tempfile.TemporaryDirectory() as folder:
        opposite = Path(folder) / "opposite.yaml"
        opposite.write_text(OPPOSITE, encoding="utf-8")
        pairs = {"tiny": "tiny", "tiny_size": "tiny_size", "opposite": str(opposite)}
        found = {name: summary(step_seconds(CONDITIONS, pair=pair, asked=asked)) for name, pair in pairs.items()}
    for result in found.values():
        means = result["mean_s"]
        result["speed_up_of_mean"] = {name: means["one process"] / means[name] for name in CONDITIONS}
    write_result("placement", {"experiment": "hacpo, one thread per agent", **found}, ["ray", "torch", "transformers"])


if __name__ == "__main__":
    main()
