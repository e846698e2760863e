"""What a step, a training and table 1 take by arithmetic, before and after issue 21: tables of docs/scaling.md.

Usage: python -m experiments.phase_times; writes them into the page, between its markers.

Of an agent with N parameters on R ranks, T tokens sampled and U trained on in a step:

    hand-over   = 2 N copies / writing + 2 N / loading + fixed      nothing where sampler and learner share weights
    rollout     = T / (R rate of sampling)
    score       = passes T / (4 R rate of training)                 2 N of the 8 N operations of a training pass
    update      = U / (R rate of training) + head + offloading + digest
    step        = hand-over + rollout + score + update, of the slowest agent (of all, where they take turns)
                  + responses of all agents / (workers x rate of verifying)
    training    = steps x step + checkpoints, one agent after the other + evaluations
    occupied    = training x GPUs that it holds

Not counted: loading models and starting engines, the wait for the longest response of a sampling call, communication
between ranks, AdamW on the host. Nothing of it was measured on a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.estimate import evaluations, num_problems, sampling_rate, training_rate
from experiments.planner import RateConfig, load_grid, trainings
from experiments.published.models import published_shapes
from experiments.scaling import HARDWARE, PAIRS, write_between
from flows.planning.compose import compose
from flows.planning.plans import with_ranks
from hacpo_core.config import AUTO, ExperimentConfig
from hacpo_core.config.counts import num_minibatches, num_ranks, num_samples, num_sources, occupied_gpus
from hacpo_core.engines.models.memory import ModelShape, sizes_of

PHASES_BEGIN, PHASES_END = "<!-- phases: python -m experiments.phase_times -->", "<!-- end of phases -->"


@dataclass(frozen=True, slots=True)
class Rates:
    """What is taken for granted, in bytes per second where nothing else is said."""

    stated: RateConfig
    """the grids' own, experiments/grids/_eight_gpus.yaml: assumed"""
    transformers_share: float = 0.1
    """of the stated rate of sampling, for the transformers sampler: 32 responses at a time; assumed"""
    disk: float = 1.5e9
    """files, synced; 1.5 to 1.8 measured on the machine of docs/performance.md"""
    shared_memory: float = 2.5e9
    """files in /dev/shm, one thread; 2.1 to 2.7 measured there"""
    load: float = 3e9
    """a file of weights into an engine; assumed"""
    handover_s: float = 5.0
    """waking, the check of 256 tokens, sleeping; assumed"""
    sha256: float = 1.8e9
    """one thread; measured there"""
    pcie: float = 20e9
    """between a GPU and the machine's memory; assumed"""
    gpu_memory: float = 2e12
    """of a GPU, read and written; assumed"""
    verified: float = 68.0
    """answers of one verifier process; half of what two do in docs/performance.md"""
    fingerprint: float = 240.0
    """bytes that a digest on the device moves for each weight: 15 operations on 64 bits, read and written"""
    offloaded: tuple[float, ...] = (2.0, 126.0)
    """bytes a weight an update through PCIe with the optimizer offloaded, ZeRO stage 1 and 2: the issue's figures,
    counted on the CPU"""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that issue 21 changed."""

    name: str
    what: str
    issue_hours: float | None
    """what it says that this wastes, GPU-hours of table 1; null: it gives no figure"""


CHANGES = (
    Change("locks", "a training of one agent locks the four GPUs that it uses, not all eight", 225),
    Change("hand-overs", "weights are handed over once for each version, not for each shard of an evaluation", 213),
    Change("digest", "digests are computed on the device, not by SHA-256 on one host thread", 39),
    Change("checkpoints", "checkpoints are hashed while they are written, not read again", 35),
    Change("verifiers", "verifier processes by the hardware file, not two", 31),
    Change("memory", "weights by file: one copy a node in shared memory, not one a rank on the disk", 23),
    Change("chunks", "chunks of the head by the hardware file, not of 64 MiB", 10),
    Change("stage", "ZeRO stage 1 where the optimizer is offloaded, not 2", None),
    Change("ranks", "ranks by size, not four for each agent", None),
    Change("old values", "own rows' old log-probabilities from the passes that train, beside those of others", None),
)
NO_CHANGES: frozenset[str] = frozenset()
ALL_CHANGES = frozenset(change.name for change in CHANGES)


@dataclass(frozen=True, slots=True)
class AgentTimes:
    """Seconds of an agent: the phases of a step, one checkpoint, and the last evaluation's sampling and hand-overs."""

    handover: float
    rollout: float
    score: float
    update: float
    checkpoint: float
    evaluation: float
    evaluations: float
    """of all evaluations of the training"""

    @property
    def step(self) -> float:
        """Of the phases that its GPUs work in."""
        return self.handover + self.rollout + self.score + self.update


@dataclass(frozen=True, slots=True)
class TrainingTimes:
    """An experiment: its agents, seconds of a step with its verification, hours of all, and GPUs that it holds."""

    agents: Mapping[str, AgentTimes]
    step_s: float
    hours: float
    num_gpus: int

    @property
    def occupied_hours(self) -> float:
        """GPU-hours."""
        return self.hours * self.num_gpus


def training_times(config: ExperimentConfig, rates: Rates, done: Collection[str] = ALL_CHANGES) -> TrainingTimes:
    """Times of an experiment with agents of the paper.

    Args:
        config: composed for a hardware file.
        rates: what is taken for granted.
        done: names of the changes that are made; without one, things are as they were before it.
    """
    shapes = published_shapes(config)
    config = with_ranks(_as_before(config, done), sizes_of(shapes))
    takes_turns = config.placement.kind == "local" or config.placement.colocated
    agents = {k: _agent_times(config, k, shape, rates, done) for k, shape in shapes.items()}

    def together(seconds: Sequence[float]) -> float:
        return sum(seconds) if takes_turns else max(seconds)

    answers = sum(num_problems(benchmark) * benchmark.num_samples for one in evaluations(config) for benchmark in one)
    verified = config.verifier.num_workers * rates.verified / len(agents)
    step = together([times.step for times in agents.values()]) + config.train.problems * num_samples(config) / verified
    seconds = config.train.num_steps * step + together([times.evaluations for times in agents.values()])
    seconds += answers / verified + num_checkpoints(config) * sum(times.checkpoint for times in agents.values())
    gpus = occupied_gpus(config)
    if "locks" not in done and config.placement.kind == "ray" and config.placement.ray.address is None:
        gpus = config.placement.total_ranks or gpus
    return TrainingTimes(agents, step, seconds / 3600, gpus)


def num_checkpoints(config: ExperimentConfig) -> int:
    """Of a training: every so many steps, and after the last."""
    return math.ceil(config.train.num_steps / config.checkpoint.every)


def _as_before(config: ExperimentConfig, done: Collection[str]) -> ExperimentConfig:
    """The configuration with the fields of before for changes that are not made."""
    engine, placement, verifier, shards = config.engine, config.placement, config.verifier, config.evaluate
    if "chunks" not in done:
        engine = dataclasses.replace(engine, logprob_chunk_mb=64)
    if "stage" not in done:
        engine = dataclasses.replace(engine, deepspeed=dataclasses.replace(engine.deepspeed, stage=2))
    if "verifiers" not in done:
        verifier = dataclasses.replace(verifier, num_workers=2)
    if "hand-overs" not in done:
        shards = dataclasses.replace(shards, shard_problems=256)
    if "ranks" not in done and placement.num_ranks == AUTO:
        placement = dataclasses.replace(placement, num_ranks=4)
    return dataclasses.replace(config, engine=engine, placement=placement, verifier=verifier, evaluate=shards)


def _agent_times(
    config: ExperimentConfig, k: str, shape: ModelShape, rates: Rates, done: Collection[str]
) -> AgentTimes:
    size, ranks, engine = shape.num_parameters, num_ranks(config, k), config.engine
    is_vllm = engine.sampler == "vllm"
    tokens = rates.stated.response_tokens
    sampled_s = ranks * sampling_rate(rates.stated, size) * (1.0 if is_vllm else rates.transformers_share)
    trained_s = ranks * training_rate(rates.stated, size)
    sampled = config.train.problems * num_samples(config) * tokens
    trained = sampled * num_sources(config)

    writing = 2 * size / rates.shared_memory if "memory" in done else 2 * size * ranks / rates.disk
    handover = writing + 2 * size / rates.load + rates.handover_s if is_vllm else 0.0
    # For other learners each own response is scored once; the update's own passes hold the others' rows as well.
    passes = 1 + num_sources(config) if "old values" in done and num_sources(config) > 1 else 1
    update = trained / trained_s + trained / ranks * _head_bytes(engine.logprob_chunk_mb, shape) / rates.gpu_memory
    if engine.deepspeed.offload_optimizer:
        update += num_minibatches(config) * rates.offloaded[engine.deepspeed.stage - 1] * size / rates.pcie
    update += rates.fingerprint * size / rates.gpu_memory if "digest" in done else 4 * size / rates.sha256

    hashed = min(rates.disk, rates.sha256)
    weights, optimizer = 2 * size, 12 * size
    checkpoint = (weights + optimizer) / rates.disk + (weights + optimizer) / rates.sha256
    if "checkpoints" in done:  # what is hashed on the way is the optimizer's file
        checkpoint = weights / rates.disk + weights / rates.sha256 + optimizer / hashed

    answered = [sum(num_problems(one) * one.num_samples for one in each) * tokens for each in evaluations(config)]
    copies = handovers(config, done)
    return AgentTimes(
        handover=handover,
        rollout=sampled / sampled_s,
        score=passes * sampled / (4 * trained_s),
        update=update,
        checkpoint=checkpoint,
        evaluation=answered[-1] / sampled_s + copies[-1] * handover,
        evaluations=sum(answered) / sampled_s + sum(copies) * handover,
    )


def handovers(config: ExperimentConfig, done: Collection[str]) -> list[int]:
    """Hand-overs of weights in each evaluation of a training; each step has one beside them.

    Before, one for each shard. Now one for each evaluation; the step behind it needs none where no other agent has
    had the GPUs in between, so all but the last count as that step's own.
    """
    found = evaluations(config)
    if "hand-overs" not in done:
        size = config.evaluate.shard_problems
        return [sum(math.ceil(num_problems(benchmark) / size) for benchmark in one) for one in found]
    takes_turns = len(config.pair.agents) > 1 and (config.placement.kind == "local" or config.placement.colocated)
    return [1 if takes_turns or one is found[-1] else 0 for one in found]


def _head_bytes(chunk_mb: int, shape: ModelShape) -> float:
    """Bytes of GPU memory that a trained token's share of the head's gradient moves.

        12 V d / tokens of a chunk,   tokens = chunk / (4 V)

    A chunk adds its product to the fp32 gradient: the product is written and read in bf16, the sum read and written.
    """
    tokens = chunk_mb * 2**20 // (4 * shape.vocab_size)
    return 12 * shape.vocab_size * shape.hidden_size / tokens


def stated_rates() -> Rates:
    """The grids' own rates, and the assumptions beside them."""
    stated = load_grid("table1").rates
    assert stated is not None
    return Rates(stated)


def table1(hardware: str) -> list[ExperimentConfig]:
    """The trainings of table 1, each once."""
    found: dict[tuple[str, ...], ExperimentConfig] = {}
    for entry in load_grid("table1").entries:
        for pair, method in ((pair, method) for pair in entry.pairs for method in entry.methods):
            for one in trainings(compose(pair, method, hardware=hardware, entry=entry.settings)):
                found.setdefault((method, *one.pair.agents), one)
    return list(found.values())


def total_occupied_hours(configs: Sequence[ExperimentConfig], rates: Rates, done: Collection[str]) -> float:
    """GPU-hours of several experiments."""
    return sum(training_times(config, rates, done).occupied_hours for config in configs)


def changes_table(rates: Rates) -> str:
    """Markdown: table 1 on eight GPUs; what each change saves alone, and what is left with all above it made too."""
    configs = table1("eight_gpus")
    left = before = total_occupied_hours(configs, rates, NO_CHANGES)
    lines = ["| change | issue | alone | left |", "|---|---:|---:|---:|", f"| before | 640 | | {before:.0f} |"]
    done = NO_CHANGES
    for change in CHANGES:
        if change.name == "stage":  # nothing is offloaded there
            continue
        done = done | {change.name}
        alone = before - total_occupied_hours(configs, rates, {change.name})
        left = total_occupied_hours(configs, rates, done)
        said = "" if change.issue_hours is None else f"{change.issue_hours:.0f}"
        lines.append(f"| {change.what} | {said} | {alone + 0:.0f} | {left:.0f} |")
    return "\n".join([*lines, f"| after, share of before | | | {left / before:.0%} |"])


def phase_table(hardware: str, rates: Rates) -> str:
    """Markdown: seconds of each phase, of HACPO with each pair, before and after."""
    columns = ("hand-over", "rollout", "score", "update", "step", "checkpoint", "last evaluation", "hours", "GPU-hours")
    lines = [f"| pair | agent | {' | '.join(columns)} |", "|---|---|" + "---:|" * len(columns)]
    for pair in PAIRS:
        config = compose(pair, "hacpo", hardware=hardware)
        times = [training_times(config, rates, done) for done in (NO_CHANGES, ALL_CHANGES)]
        for k in config.pair.agents:
            is_first = k == next(iter(config.pair.agents))
            lines.append("| " + " | ".join([pair if is_first else "", k, *_cells(k, times, is_first)]) + " |")
    return "\n".join(lines)


def _cells(k: str, times: Sequence[TrainingTimes], is_first: bool) -> Iterator[str]:
    def both(values: Sequence[float], digits: int = 0) -> str:
        one, other = (f"{value:,.{digits}f}" for value in values)
        return one if one == other else f"{one} → {other}"

    for name in ("handover", "rollout", "score", "update"):
        yield both([getattr(each.agents[k], name) for each in times])
    yield both([each.step_s for each in times]) if is_first else ""
    for name in ("checkpoint", "evaluation"):
        yield both([getattr(each.agents[k], name) for each in times])
    yield both([each.hours for each in times], 1) if is_first else ""
    yield both([each.occupied_hours for each in times]) if is_first else ""


def phase_tables() -> str:
    """All tables."""
    rates = stated_rates()
    of_files = [f"### Phases with --hardware {name}\n\n{phase_table(name, rates)}" for name in HARDWARE]
    return "\n\n".join([f"### Table 1 on eight GPUs, GPU-hours\n\n{changes_table(rates)}", *of_files])


if __name__ == "__main__":
    write_between(PHASES_BEGIN, PHASES_END, phase_tables())
