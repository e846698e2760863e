"""Ten steps of some shipped methods on very small agents, and the weights that come out of them.

A case is a method, a preset, a number of agents, a learner and a placement. `digests` trains one and gives the digest
of each agent's weights after each step. `fixture.json` holds those of version 6 of the algorithm, of local agents,
which are those of Ray's actors too: the same configurations must give the same numbers. Other processors add up in
another order and have other digests.

    python -m tests.digests.cases FOLDER    trains all cases that FOLDER/found.json lacks, and writes it
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flows.planning.compose import compose
from flows.planning.plans import plan, save_plan
from flows.runs.experiment import run_experiment
from hacpo_core.data.arithmetic import split_expressions
from hacpo_core.phases.runner import DirectRunner

FIXTURE = Path(__file__).with_name("fixture.json")
NUM_STEPS = 10
DIGITS = 8
"""hexadecimal digits of each digest that are kept"""
AGENTS = {
    "qwen": "family: qwen3, tokenizer: character, hidden_size: 48",
    "llama": "family: llama, tokenizer: merged, hidden_size: 48",
    "neox": "family: gpt_neox, tokenizer: word, hidden_size: 48",
}
PAIR = """
pair: {{name: small, agents: {{{agents}}}}}
train: {{num_steps: 10, problems: 4}}
method: {{build: {{problems: 2}}, objective: {{sequence_low: 0.1, sequence_high: 0.1}}}}
rollout: {{num_samples: 4, max_prompt_tokens: 40, max_response_tokens: 40}}
optimizer: {{learning_rate: 1.0e-3}}
data: {{directory: {folder}, train: [sums], sets: {{sums: {{file: p.jsonl, template: "{{problem}}"}}}}}}
verifier: {{num_workers: 1, timeout_s: 30.0}}
evaluate: {{every: 0, during: [], final: []}}
checkpoint: {{every: 10}}
tracking: {{enabled: false}}
runtime: {{runner: direct}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One training."""

    method: str
    conformance: str
    num_agents: int
    learner: str
    placement: str

    @property
    def name(self) -> str:
        """Key of what is found."""
        return f"{self.method} {self.conformance} {self.num_agents} {self.learner} {self.placement}"


def expected(case: Case) -> dict[str, str]:
    """Digests of a case by agent, as the fixture has them."""
    found: dict[str, str] = json.loads(FIXTURE.read_text("utf-8"))["cases"][case.name.rpartition(" ")[0]]
    return found


CASES = (
    Case("hacpo", "paper", 2, "torch", "local"),
    Case("gspo_x2", "official", 2, "torch", "local"),
    Case("grpo", "paper", 2, "torch", "local"),
    Case("hacpo", "official", 3, "torch", "local"),
    Case("hacpo", "paper", 2, "deepspeed", "local"),
)


def write_pairs(folder: Path) -> None:
    """Pair files of one, two and three agents, and their problems: every answer is 3, which a small model may say."""
    rows = [
        {"id": str(expression), "problem": str(expression), "answer": "3"}
        for expression in split_expressions("dev")[:64]
    ]
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for number in (1, 2, 3):
        agents = ", ".join(
            f"{name}: {{tiny: {{{fields}, num_layers: 2, seed: {seed}}}, warm_up: {{source: arithmetic, template: "
            f"'{{{{problem}}}}', num_steps: 250, learning_rate: 6.0e-3, num_demonstrations: 4000, seed: {seed}}}}}"
            for seed, (name, fields) in enumerate(list(AGENTS.items())[:number])
        )
        (folder / f"small{number}.yaml").write_text(PAIR.format(agents=agents, folder=folder), encoding="utf-8")


def digests(case: Case, folder: Path) -> dict[str, str]:
    """Train a case in a folder that `write_pairs` filled.

    Returns:
        by agent, the first digits of the digests of its weights after each step, separated by blanks.
    """
    torch.set_num_threads(1)
    words = [
        f"runtime.runs_dir={folder / 'runs'}",
        f"conformance={case.conformance}",
        f"engine.learner={case.learner}",
        f"placement.kind={case.placement}",
    ]
    if case.placement == "ray" and case.num_agents > 2:  # a machine of two processors has no room for more actors
        words.append("placement.colocated=true")
    planned = plan(compose(str(folder / f"small{case.num_agents}.yaml"), case.method, overrides=words))
    # The id leaves out where agents live.
    planned = type(planned)(planned.id, planned.config, folder / "stores" / case.name.replace(" ", "-"))
    save_plan(planned)
    run_experiment(planned, DirectRunner())
    found: dict[str, list[str]] = {}
    for step in range(1, NUM_STEPS + 1):
        for agent in list(AGENTS)[: case.num_agents]:
            value = json.loads((planned.root / "steps" / f"{step:06d}" / f"update.{agent}.json").read_text("utf-8"))
            digest = str(value["trace"]["after"]["digest"]).partition(":")[2]
            found.setdefault(agent, []).append(digest[:DIGITS])
    return {agent: " ".join(each) for agent, each in found.items()}


def processor() -> str:
    """What digests depend on besides the code."""
    about = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.partition(":")[2].strip() for line in about.splitlines() if line.startswith("model name")), "")
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def main(words: Sequence[str]) -> None:
    """Train all cases; what is in found.json already is not trained again."""
    logging.basicConfig(level=logging.ERROR)
    folder = Path(words[0]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_pairs(folder)
    path = folder / "found.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {"processor": processor(), "cases": {}}
    for case in CASES:
        name = case.name.rpartition(" ")[0]  # Ray's actors have the digests of local agents
        if name not in found["cases"]:
            found["cases"][name] = digests(case, folder)
            path.write_text(json.dumps(found, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
