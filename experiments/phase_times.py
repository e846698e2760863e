"""Calculated times of a step, an experiment and table 1, before and after issue 21: tables of docs/scaling.md.

Usage: python -m experiments.phase_times; writes them between the markers of that page.

For an agent with N parameters on R ranks, with T tokens sampled and U trained on per step:

    hand-over   = 2 N copies / write rate + 2 N / load rate + fixed     0 if sampler and learner share weights
    rollout     = T / (R sampling rate)
    score       = passes T / (4 R training rate)                        2 N of the 8 N operations of a training pass
    update      = U / (R training rate) + head + offloading + digest
    step        = hand-over + rollout + score + update, of the slowest agent (summed if agents share devices)
                  + responses of all agents / (workers x verification rate)
    experiment  = steps x step + checkpoints, one agent after the other + evaluations
    occupied    = experiment x GPUs that it holds

Not counted: loading models, starting engines, waiting for the longest response of a sampling call, communication
between ranks, AdamW on the host. None of these times was measured on a GPU.
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
    """Assumed rates, in bytes/s unless stated otherwise."""

    stated: RateConfig
    """rates of experiments/grids/_eight_gpus.yaml; assumed"""
    transformers_share: float = 0.1
    """sampling rate of the transformers sampler (32 responses at a time), as a share of the stated rate; assumed"""
    disk: float = 1.5e9
    """writing files with fsync; 1.5 to 1.8e9 measured on the machine of docs/performance.md"""
    shared_memory: float = 2.5e9
    """writing files in /dev/shm with one thread; 2.1 to 2.7e9 measured there"""
    load: float = 3e9
    """loading a weight file into an engine; assumed"""
    handover_s: float = 5.0
    """seconds to wake the sampler, check 256 tokens and put it to sleep; assumed"""
    sha256: float = 1.8e9
    """hashing with one thread; measured there"""
    pcie: float = 20e9
    """between GPU and host memory; assumed"""
    gpu_memory: float = 2e12
    """reading and writing GPU memory; assumed"""
    verified: float = 68.0
    """responses/s of one verifier process; half the rate of two processes in docs/performance.md"""
    fingerprint: float = 240.0
    """bytes moved per weight by a digest on the device: 15 operations on 64 bits, read and written"""
    offloaded: tuple[float, ...] = (2.0, 126.0)
    """bytes per weight and update over PCIe with an offloaded optimizer, ZeRO stages 1 and 2; figures of issue 21,
    counted on the CPU"""


@dataclass(frozen=True, slots=True)
class Change:
    """A change made for issue 21."""

    name: str
    what: str
    issue_hours: float | None
    """saving estimated in the issue, GPU-hours of table 1; None: no estimate"""


CHANGES = (
    Change("locks", "an experiment with one agent locks only the four GPUs that it uses, not all eight", 225),
    Change("hand-overs", "weights are handed over once per version, not once per evaluation shard", 213),
    Change("digest", "digests are computed on the device, not by SHA-256 on one host thread", 39),
    Change("checkpoints", "checkpoints are hashed while they are written, not read again", 35),
    Change("verifiers", "number of verifier processes set by the hardware file, not two", 31),
    Change("memory", "weight files: one copy per node in shared memory, not one per rank on disk", 23),
    Change("chunks", "size of the head's chunks set by the hardware file, not 64 MiB", 10),
    Change("stage", "ZeRO stage 1, not 2, if the optimizer is offloaded", None),
    Change("ranks", "ranks by model size, not four per agent", None),
    Change(
        "old values", "old log-probabilities of own rows from the training passes, next to other agents' rows", None
    ),
)
NO_CHANGES: frozenset[str] = frozenset()
ALL_CHANGES = frozenset(change.name for change in CHANGES)


@dataclass(frozen=True, slots=True)
class AgentTimes:
    """Times of an agent, s: the phases of a step, one checkpoint, and the last evaluation (sampling and hand-overs)."""

    handover: float
    rollout: float
    score: float
    update: float
    checkpoint: float
    evaluation: float
    evaluations: float
    """all evaluations of the experiment"""

    @property
    def step(self) -> float:
        """Time of a step in which the agent's GPUs work, s."""
        return self.handover + self.rollout + self.score + self.update


@dataclass(frozen=True, slots=True)
class TrainingTimes:
    """Times of an experiment: its agents, a step including verification, the total, and the GPUs that it holds."""

    agents: Mapping[str, AgentTimes]
    step_s: float
    hours: float
    num_gpus: int

    @property
    def occupied_hours(self) -> float:
        """GPU-hours that the experiment holds."""
        return self.hours * self.num_gpus


def training_times(config: ExperimentConfig, rates: Rates, done: Collection[str] = ALL_CHANGES) -> TrainingTimes:
    """Calculate the times of an experiment with models of the paper.

    Args:
        config: composed with a hardware file.
        rates: assumed rates.
        done: names of the changes to apply; the others are undone.
    """
    shapes = published_shapes(config)
    config = with_ranks(_as_before(config, done), sizes_of(shapes))
    takes_turns = config.placement.kind == "local" or config.placement.colocated
    agents = {k: _agent_times(config, k, shape, rates, done) for k, shape in shapes.items()}

    def together(seconds: Sequence[float]) -> float:
        return sum(seconds) if takes_turns else max(seconds)

    answers = sum(num_problems(benchmark) * benchmark.num_samples for each in evaluations(config) for benchmark in each)
    verified = config.verifier.num_workers * rates.verified / len(agents)
    step = together([times.step for times in agents.values()]) + config.train.problems * num_samples(config) / verified
    seconds = config.train.num_steps * step + together([times.evaluations for times in agents.values()])
    seconds += answers / verified + num_checkpoints(config) * sum(times.checkpoint for times in agents.values())
    gpus = occupied_gpus(config)
    if "locks" not in done and config.placement.kind == "ray" and config.placement.ray.address is None:
        gpus = config.placement.total_ranks or gpus
    return TrainingTimes(agents, step, seconds / 3600, gpus)


def num_checkpoints(config: ExperimentConfig) -> int:
    """Number of checkpoints of an experiment: every `checkpoint.every` steps, and after the last."""
    return math.ceil(config.train.num_steps / config.checkpoint.every)


def _as_before(config: ExperimentConfig, done: Collection[str]) -> ExperimentConfig:
    """The configuration with the earlier values of fields whose change is not applied."""
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
    # Other learners need each own response scored once; this update's own passes also contain the others' rows.
    passes = 1 + num_sources(config) if "old values" in done and num_sources(config) > 1 else 1
    update = trained / trained_s + trained / ranks * _head_bytes(engine.logprob_chunk_mb, shape) / rates.gpu_memory
    if engine.deepspeed.offload_optimizer:
        update += num_minibatches(config) * rates.offloaded[engine.deepspeed.stage - 1] * size / rates.pcie
    update += rates.fingerprint * size / rates.gpu_memory if "digest" in done else 4 * size / rates.sha256

    hashed = min(rates.disk, rates.sha256)
    weights, optimizer = 2 * size, 12 * size
    checkpoint = (weights + optimizer) / rates.disk + (weights + optimizer) / rates.sha256
    if "checkpoints" in done:  # only the optimizer's file is hashed while it is written
        checkpoint = weights / rates.disk + weights / rates.sha256 + optimizer / hashed

    answered = [
        sum(num_problems(benchmark) * benchmark.num_samples for benchmark in each) * tokens
        for each in evaluations(config)
    ]
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
    """Number of weight hand-overs in each evaluation of an experiment, in addition to one per step.

    Without the change, one per shard. With it, one per evaluation; if no other agent uses the GPUs in between, the
    next step reuses it, so that only the hand-over of the last evaluation is additional.
    """
    measured = evaluations(config)
    if "hand-overs" not in done:
        size = config.evaluate.shard_problems
        return [sum(math.ceil(num_problems(benchmark) / size) for benchmark in each) for each in measured]
    takes_turns = len(config.pair.agents) > 1 and (config.placement.kind == "local" or config.placement.colocated)
    return [1 if takes_turns or each is measured[-1] else 0 for each in measured]


def _head_bytes(chunk_mb: int, shape: ModelShape) -> float:
    """GPU memory traffic of the head's gradient per trained token, bytes.

        12 V d / tokens per chunk,   tokens per chunk = chunk / (4 V)

    Each chunk adds a product to the fp32 gradient: the bf16 product is written and read, the sum is read and written.
    """
    tokens = chunk_mb * 2**20 // (4 * shape.vocab_size)
    return 12 * shape.vocab_size * shape.hidden_size / tokens


def stated_rates() -> Rates:
    """The grids' stated rates, with the other assumptions."""
    stated = load_grid("table1").rates
    assert stated is not None
    return Rates(stated)


def table1(hardware: str) -> list[ExperimentConfig]:
    """The experiments of table 1, each once."""
    configs: dict[tuple[str, ...], ExperimentConfig] = {}
    for entry in load_grid("table1").entries:
        for pair, method in ((pair, method) for pair in entry.pairs for method in entry.methods):
            for config in trainings(compose(pair, method, hardware=hardware, entry=entry.settings)):
                configs.setdefault((method, *config.pair.agents), config)
    return list(configs.values())


def total_occupied_hours(configs: Sequence[ExperimentConfig], rates: Rates, done: Collection[str]) -> float:
    """GPU-hours of several experiments."""
    return sum(training_times(config, rates, done).occupied_hours for config in configs)


def changes_table(rates: Rates) -> str:
    """Markdown table for table 1 on eight GPUs: hours saved by each change alone, and hours left with all so far."""
    configs = table1("eight_gpus")
    left = before = total_occupied_hours(configs, rates, NO_CHANGES)
    lines = ["| change | issue | alone | left |", "|---|---:|---:|---:|", f"| before | 640 | | {before:.0f} |"]
    done = NO_CHANGES
    for change in CHANGES:
        if change.name == "stage":  # nothing is offloaded on eight GPUs
            continue
        done = done | {change.name}
        alone = before - total_occupied_hours(configs, rates, {change.name})
        left = total_occupied_hours(configs, rates, done)
        estimated = "" if change.issue_hours is None else f"{change.issue_hours:.0f}"
        lines.append(f"| {change.what} | {estimated} | {alone + 0:.0f} | {left:.0f} |")
    return "\n".join([*lines, f"| after, share of before | | | {left / before:.0%} |"])


def phase_table(hardware: str, rates: Rates) -> str:
    """Markdown table: seconds per phase of HACPO on each pair, before and after the changes."""
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
        before, after = (f"{value:,.{digits}f}" for value in values)
        return before if before == after else f"{before} → {after}"

    for name in ("handover", "rollout", "score", "update"):
        yield both([getattr(each.agents[k], name) for each in times])
    yield both([each.step_s for each in times]) if is_first else ""
    for name in ("checkpoint", "evaluation"):
        yield both([getattr(each.agents[k], name) for each in times])
    yield both([each.hours for each in times], 1) if is_first else ""
    yield both([each.occupied_hours for each in times]) if is_first else ""


def phase_tables() -> str:
    """All tables as Markdown."""
    rates = stated_rates()
    phases = [f"### Phases with --hardware {name}\n\n{phase_table(name, rates)}" for name in HARDWARE]
    return "\n\n".join([f"### Table 1 on eight GPUs, GPU-hours\n\n{changes_table(rates)}", *phases])


if __name__ == "__main__":
    write_between(PHASES_BEGIN, PHASES_END, phase_tables())
