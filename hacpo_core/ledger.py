"""The step store's contents as records: what each phase commits and what later phases read.

Shapes: L learner, P problem, A agent, G response.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow
import torch

from hacpo_core.algo.advantages import Baseline
from hacpo_core.algo.methods import JointAdvantages
from hacpo_core.batches import BatchCounts
from hacpo_core.engines.base import MinibatchOutcome, RowOutcome, UpdateOutcome
from hacpo_core.engines.replay import Replay, Setup, UpdateTrace
from hacpo_core.engines.weights import Fingerprint
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json, write_json
from hacpo_core.records import PhaseCost, Problem, Rollout, Verdict
from hacpo_core.store import REPLAYS_FILE, StepStore

if TYPE_CHECKING:  # see hacpo_core.store
    import pandas as pd

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """An agent's responses of a step in problem-major order, and what they cost.

    `probes` are, by place of a response, the learner's log-probabilities of a few responses that do not have them
    otherwise; they are compared with the sampler's, and nothing is trained on them. With `recomputes_own` the agent's
    own ratios start from what the passes of its update give before the first one.
    """

    rollouts: tuple[Rollout, ...]
    cost: PhaseCost
    probes: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    recomputes_own: bool = False


@dataclass(frozen=True, slots=True)
class VerifiedBatch:
    """The verdicts of an agent's responses, in the same order."""

    verdicts: tuple[Verdict, ...]
    cost: PhaseCost


@dataclass(frozen=True, slots=True)
class CapabilityState:
    """Capability of every agent, by name: this step's, the window after it (newest last), and the bounded ratios.

    `ratio[k][j]` is w[k, j]. `num_floored` and `num_clipped` say how often a bound bound, `num_guarded` how many
    baselines the binary guard replaced. `uniform_share` is the share of problems whose group ranks nothing, by agent.
    """

    batch: dict[str, float]
    window: dict[str, list[float]]
    smoothed: dict[str, float]
    ratio: dict[str, dict[str, float]]
    num_floored: int
    num_clipped: int
    num_guarded: int
    uniform_share: dict[str, float]


@dataclass(frozen=True, slots=True)
class JointBatch:
    """Outcome of the joint advantage phase: tensors for the learners and the capability state."""

    advantages: JointAdvantages
    capability: CapabilityState
    cost: PhaseCost


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """Outcome of one agent's update phase, and what identifies it."""

    outcome: UpdateOutcome
    trace: UpdateTrace
    counts: BatchCounts
    cost: PhaseCost


class Ledger:
    """Typed reading and writing of an experiment's step store.

    Values of the step in progress are kept in memory, so that a phase does not read back what was just written; a
    value read back from disk is equal to the bit.
    """

    def __init__(self, store: StepStore, agents: Sequence[str]) -> None:
        self.store = store
        self.agents = tuple(agents)
        self._fresh: dict[tuple[int, str], Any] = {}
        self._mutex = threading.Lock()

    def has(self, step: int, phase: str) -> bool:
        """True when the phase's output is at hand, or committed and intact."""
        return (step, phase) in self._fresh or self.store.is_intact(step, phase)

    def _keep(self, step: int, phase: str, value: Any) -> None:
        with self._mutex:
            fresh = {key: kept for key, kept in self._fresh.items() if key[0] >= step - 1}
            self._fresh = fresh | {(step, phase): value}

    def _read(self, step: int, phase: str, load: Callable[[], T]) -> T:
        """The phase's output, loaded where it is not at hand."""
        found: T | None = self._fresh.get((step, phase))
        if found is None:
            found = load()
            self._keep(step, phase, found)
        return found

    def save_rollouts(self, step: int, agent: str, batch: SampledBatch) -> None:
        """Commit phase rollout.<agent>."""
        columns = _columns(batch.rollouts, Rollout)
        for name, kind in (("prompt_ids", np.int32), ("token_ids", np.int32), ("logprobs", np.float32)):
            columns[name] = [np.asarray(values, dtype=kind) for values in columns[name]]
        columns["old_logprobs"] = [
            None if values is None else np.asarray(values, dtype=np.float32) for values in columns["old_logprobs"]
        ]
        value = asdict(batch.cost) | {"probes": dict(batch.probes), "recomputes_own": batch.recomputes_own}
        outputs = {f"rollouts.{agent}.parquet": columns, f"rollouts.{agent}.json": value}
        made_from_it = [f"verify.{agent}", "advantage"]  # sampled again, a response need not be the same one
        self.store.commit(step, f"rollout.{agent}", outputs, outdates=made_from_it)
        self._keep(step, f"rollout.{agent}", batch)

    def rollouts(self, step: int, agent: str) -> SampledBatch:
        """Output of phase rollout.<agent>."""
        phase = f"rollout.{agent}"

        def load() -> SampledBatch:
            frame = self.store.read_table(step, phase, f"rollouts.{agent}.parquet")
            value = self.store.read_value(step, phase, f"rollouts.{agent}.json")
            probes = {int(place): tuple(probe) for place, probe in value.pop("probes", {}).items()}
            recomputes_own = value.pop("recomputes_own", False)
            rollouts = tuple(_rollout(row) for row in _rows(frame))
            return SampledBatch(rollouts, PhaseCost(**value), probes, recomputes_own)

        return self._read(step, phase, load)

    def save_verdicts(self, step: int, agent: str, problems: Sequence[Problem], batch: VerifiedBatch) -> None:
        """Commit phase verify.<agent>; `raw_reward` and `reward` are equal until a later option reshapes the second."""
        num_samples = len(batch.verdicts) // len(problems)
        columns = _columns(batch.verdicts, Verdict)
        rewards = pyarrow.array(columns.pop("reward"), type=pyarrow.float64())
        table = {
            "problem_id": [problem.id for problem in problems for _ in range(num_samples)],
            "agent": [agent] * len(batch.verdicts),
            "index": np.tile(np.arange(num_samples), len(problems)),
            "status": columns.pop("status"),
            "raw_reward": rewards,
            "reward": rewards,
            **columns,
        }
        outputs = {f"verdicts.{agent}.parquet": table, f"verdicts.{agent}.json": asdict(batch.cost)}
        self.store.commit(step, f"verify.{agent}", outputs, outdates=["advantage"])
        self._keep(step, f"verify.{agent}", batch)

    def verdicts(self, step: int, agent: str) -> VerifiedBatch:
        """Output of phase verify.<agent>."""
        phase = f"verify.{agent}"

        def load() -> VerifiedBatch:
            frame = self.store.read_table(step, phase, f"verdicts.{agent}.parquet")
            cost = PhaseCost(**self.store.read_value(step, phase, f"verdicts.{agent}.json"))
            return VerifiedBatch(tuple(_verdict(row) for row in _rows(frame)), cost)

        return self._read(step, phase, load)

    def save_advantages(self, step: int, problems: Sequence[Problem], batch: JointBatch) -> None:
        """Commit phase advantage: one row per learner and response."""
        advantage_LPAG = batch.advantages.advantage_LPAG.numpy()
        num_L, num_P, num_A, num_G = advantage_LPAG.shape
        learner, problem, source, index = (axis.ravel() for axis in np.indices(advantage_LPAG.shape))
        table = {
            "learner": np.asarray(self.agents)[learner],
            "problem_id": np.asarray([p.id for p in problems], dtype=object)[problem],
            "agent": np.asarray(self.agents)[source],
            "index": index,
            "advantage": advantage_LPAG.ravel(),
            "weight": batch.advantages.weight_LA.numpy()[learner, source],
        }
        baseline = batch.advantages.baseline
        value = {
            "shape": [num_L, num_P, num_A, num_G],
            "capability": asdict(batch.capability),
            "baseline_mean": baseline.mean_PA.tolist(),
            "baseline_std": baseline.std_PA.tolist(),
            "is_uniform": baseline.is_uniform_PA.tolist(),
            "cost": asdict(batch.cost),
        }
        self.store.commit(step, "advantage", {"advantages.parquet": table, "advantages.json": value})
        self._keep(step, "advantage", batch)

    def advantages(self, step: int) -> JointBatch:
        """Output of phase advantage."""

        def load() -> JointBatch:
            value = self.store.read_value(step, "advantage", "advantages.json")
            frame = self.store.read_table(step, "advantage", "advantages.parquet")
            shape = tuple(value["shape"])
            weight_LPAG = torch.tensor(frame["weight"].to_numpy().reshape(shape).copy())
            found = JointAdvantages(
                advantage_LPAG=torch.tensor(frame["advantage"].to_numpy().reshape(shape).copy()),
                weight_LA=weight_LPAG[:, 0, :, 0].clone(),
                baseline=Baseline(
                    mean_PA=torch.tensor(value["baseline_mean"], dtype=torch.float64),
                    std_PA=torch.tensor(value["baseline_std"], dtype=torch.float64),
                    is_uniform_PA=torch.tensor(value["is_uniform"]),
                    num_guarded=value["capability"]["num_guarded"],
                ),
            )
            return JointBatch(found, CapabilityState(**value["capability"]), PhaseCost(**value["cost"]))

        return self._read(step, "advantage", load)

    def save_update(self, step: int, agent: str, record: UpdateRecord) -> None:
        """Commit phase update.<agent>."""
        value = {
            "minibatches": [asdict(minibatch) for minibatch in record.outcome.minibatches],
            "digest": record.trace.digest,
            "trace": asdict(record.trace),
            **asdict(record.counts),
            "cost": asdict(record.cost),
        }
        rows = _columns(record.outcome.rows, RowOutcome)
        outputs = {f"update.{agent}.parquet": rows, f"update.{agent}.json": value}
        self.store.commit(step, f"update.{agent}", outputs)
        self._keep(step, f"update.{agent}", record)

    def update(self, step: int, agent: str) -> UpdateRecord:
        """Output of phase update.<agent>."""
        phase = f"update.{agent}"

        def load() -> UpdateRecord:
            value = self.store.read_value(step, phase, f"update.{agent}.json")
            if "trace" not in value:
                raise StoreError(
                    f"step {step}, {agent}: the update was recorded by an earlier version of hacpo, whose digests "
                    "cannot be compared; go on with that version, or train again"
                )
            rows = self.store.read_table(step, phase, f"update.{agent}.parquet")
            return UpdateRecord(
                outcome=UpdateOutcome(
                    minibatches=tuple(MinibatchOutcome(**minibatch) for minibatch in value["minibatches"]),
                    rows=tuple(RowOutcome(**row) for row in _rows(rows)),
                ),
                trace=_trace(value["trace"]),
                counts=BatchCounts(**{f.name: value[f.name] for f in fields(BatchCounts) if f.name in value}),
                cost=PhaseCost(**value["cost"]),
            )

        return self._read(step, phase, load)

    def add_replay(self, step: int, agent: str, replay: Replay) -> None:
        """Note that an update was repeated, and how it ended."""
        path = self.store.root / REPLAYS_FILE
        with self._mutex:
            try:
                before = read_json(path) if path.is_file() else []
            except StoreError as error:
                _log.warning("%s; the list of replays begins anew", error)
                before = []
            entry = {"step": step, "agent": agent, "at": time.time(), **asdict(replay)}
            write_json(path, [*before, entry])


def _trace(value: Mapping[str, Any]) -> UpdateTrace:
    before, after = (Fingerprint(f["digest"], tuple(f["projections"])) for f in (value["before"], value["after"]))
    return UpdateTrace(before, after, Setup(**value["setup"]))


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries of Python values; what is missing is None, or nan in columns of numbers or text."""
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _columns(records: Sequence[Any], kind: type) -> dict[str, list[Any]]:
    """Fields of flat records by name; `asdict` would copy every token."""
    return {field.name: [getattr(record, field.name) for record in records] for field in fields(kind)}


def _rollout(row: dict[str, Any]) -> Rollout:
    for name in ("prompt_ids", "token_ids", "logprobs"):
        row[name] = tuple(row[name].tolist())
    row["old_logprobs"] = None if row["old_logprobs"] is None else tuple(row["old_logprobs"].tolist())
    return Rollout(**row)


def _verdict(row: dict[str, Any]) -> Verdict:
    reward = row["raw_reward"]
    return Verdict(
        status=row["status"],
        reward=None if reward is None or np.isnan(reward) else float(reward),
        extracted=row["extracted"] if isinstance(row["extracted"], str) else None,
        seconds=row["seconds"],
        reason=row["reason"],
    )
