"""The step store's contents as typed records: what each phase commits and later phases read.

Shapes: B row of the mini-batches, M mini-batch, R response.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Ragged
from hacpo_core.engines.learning.outcomes import MinibatchOutcome, UpdateOutcome
from hacpo_core.engines.learning.replay import Replay, Setup, UpdateTrace
from hacpo_core.engines.learning.weights import Fingerprint
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json, write_json
from hacpo_core.methods.build import ROW_KEYS, TrainedRows
from hacpo_core.methods.estimate import Estimate
from hacpo_core.records import PhaseCost, RowKey
from hacpo_core.responses import (
    Responses,
    as_arrow,
    as_lists,
    as_ragged,
    from_arrow,
    verdicts_as_arrow,
    verdicts_from_arrow,
)
from hacpo_core.store.steps import REPLAYS_FILE, StepStore, phase_name

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Committed(Generic[_T]):
    """What a phase committed, and its cost; `state` is that of the part that the phase called, encoded."""

    value: _T
    cost: PhaseCost
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """Result of one agent's update phase, and the trace that identifies it.

    `outcome.objective_state` is encoded, as is `state`, the builder's. `figures` are metrics of the mini-batches'
    construction.
    """

    outcome: UpdateOutcome
    trace: UpdateTrace
    figures: Mapping[str, float]
    state: Mapping[str, Any]
    cost: PhaseCost


def _row_columns(rows: TrainedRows) -> dict[str, NDArray[Any]]:
    """Columns of the file, named `ROW_KEYS` and as the figures."""
    return {
        "step": np.array([key.step for key in rows.key_B], np.int64),
        "agent": np.array([key.agent for key in rows.key_B], object),
        "problem_id": np.array([key.problem_id for key in rows.key_B], object),
        "sample": np.array([key.sample for key in rows.key_B], np.int64),
        "kind": rows.kind_B,
        "update": rows.update_B,
        "advantage": rows.advantage_B,
        "weight": rows.weight_B,
        **rows.figures,
        "num_tokens": rows.num_tokens_B,
    }


def _rows_of(columns: Mapping[str, NDArray[Any]]) -> TrainedRows:
    """The inverse of `_row_columns`."""
    keys = (columns[name].tolist() for name in ("step", "agent", "problem_id", "sample"))
    return TrainedRows(
        key_B=tuple(map(RowKey, *keys)),
        kind_B=columns["kind"],
        update_B=columns["update"],
        advantage_B=columns["advantage"],
        weight_B=columns["weight"],
        num_tokens_B=columns["num_tokens"],
        figures={name: column_B for name, column_B in columns.items() if name not in ROW_KEYS},
    )


@dataclass(frozen=True, slots=True, eq=False)
class TaughtBatch:
    """A teacher's scores of an agent's responses of a step.

    Attributes:
        teacher: its name; None if the agent had no teacher.
        difference: float64, nats, for each token of each response, nan where the teacher did not score it; see
            `hacpo_core.phases.teach`.
        cost: of the phase.
    """

    teacher: str | None
    difference: Ragged
    cost: PhaseCost


class Ledger:
    """Typed reading and writing of an experiment's step store.

    Records of the current and the previous step are kept in memory, so that phases need not read back what was just
    written. A record read from disk is bitwise equal.
    """

    def __init__(self, store: StepStore, agents: Sequence[str]) -> None:
        self.store = store
        self.agents = tuple(agents)
        self._fresh: dict[tuple[int, str], Any] = {}
        self._mutex = threading.Lock()

    def has(self, step: int, phase: str) -> bool:
        """Whether the phase's output is in memory, or committed and intact."""
        return (step, phase) in self._fresh or self.store.is_intact(step, phase)

    def _keep(self, step: int, phase: str, value: Any) -> None:
        with self._mutex:
            recent_outputs = {key: output for key, output in self._fresh.items() if key[0] >= step - 1}
            self._fresh = recent_outputs | {(step, phase): value}

    def _read(self, step: int, phase: str, load: Callable[[], _T]) -> _T:
        """The phase's output, loaded if it is not in memory."""
        value: _T | None = self._fresh.get((step, phase))
        if value is None:
            value = load()
            self._keep(step, phase, value)
        return value

    def save_rollouts(self, step: int, agent: str, sampled: Committed[Responses], round_index: int = 0) -> None:
        """Commit a round of phase rollout.<agent>; the state is the plan's."""
        responses = sampled.value
        value = {"cost": asdict(sampled.cost), "state": dict(sampled.state), "figures": dict(responses.sampler_figures)}
        phase, name = phase_name("rollout", agent, round_index), phase_name("rollouts", agent, round_index)
        outputs = {f"{name}.parquet": as_arrow(responses), f"{name}.json": value}
        # Responses that are sampled again may differ, so everything computed from them is outdated.
        made_from_it = [
            *self._joint_phases(),
            phase_name("verify", agent, round_index),
            *self._later_rounds(step, round_index),
        ]
        self.store.commit(step, phase, outputs, outdates=made_from_it)
        self._keep(step, phase, sampled)

    def rollouts(self, step: int, agent: str) -> Committed[Responses]:
        """Output of phase rollout.<agent>, all rounds joined."""
        rounds = [
            self.sampled_round(step, agent, n) for n in range(max(1, self.store.num_rounds(step, "rollout", agent)))
        ]
        return _joined(rounds, rounds[-1].state)

    def sampled_round(self, step: int, agent: str, round_index: int) -> Committed[Responses]:
        """Output of one round of phase rollout.<agent>."""
        phase, name = phase_name("rollout", agent, round_index), phase_name("rollouts", agent, round_index)

        def load() -> Committed[Responses]:
            table = self.store.read_arrow(step, phase, f"{name}.parquet")
            value = self.store.read_value(step, phase, f"{name}.json")
            responses = from_arrow(table, step=step, agent=agent, figures=value.get("figures", {}))
            return Committed(responses, PhaseCost(**value["cost"]), value["state"])

        return self._read(step, phase, load)

    def save_verdicts(self, step: int, agent: str, verified: Committed[Responses], round_index: int = 0) -> None:
        """Commit a round of phase verify.<agent>."""
        phase, name = phase_name("verify", agent, round_index), phase_name("verdicts", agent, round_index)
        outputs = {f"{name}.parquet": verdicts_as_arrow(verified.value), f"{name}.json": asdict(verified.cost)}
        made_from_it = [*self._joint_phases(), *self._later_rounds(step, round_index)]
        self.store.commit(step, phase, outputs, outdates=made_from_it)
        self._keep(step, phase, verified)

    def verdicts(self, step: int, agent: str, *, rounds: int | None = None) -> Committed[Responses]:
        """Responses with verdicts of phase verify.<agent>: of all rounds, or of the first `rounds`, joined."""
        num_rounds = self.store.num_rounds(step, "verify", agent) if rounds is None else rounds
        return _joined([self._verified_round(step, agent, n) for n in range(max(1, num_rounds))])

    def _verified_round(self, step: int, agent: str, round_index: int) -> Committed[Responses]:
        phase, name = phase_name("verify", agent, round_index), phase_name("verdicts", agent, round_index)

        def load() -> Committed[Responses]:
            table = self.store.read_arrow(step, phase, f"{name}.parquet")
            cost = PhaseCost(**self.store.read_value(step, phase, f"{name}.json"))
            responses = self.sampled_round(step, agent, round_index).value
            return Committed(replace(responses, verdicts=verdicts_from_arrow(table)), cost)

        return self._read(step, phase, load)

    def _later_rounds(self, step: int, round_index: int) -> list[str]:
        """Phases of later rounds, whose plans depend on this one."""
        rounds = range(round_index + 1, max(self.store.num_rounds(step, "rollout", agent) for agent in self.agents) + 1)
        kinds = ("rollout", "verify")
        return [phase_name(kind, agent, n) for n in rounds for agent in self.agents for kind in kinds]

    def _joint_phases(self) -> list[str]:
        """Phases that depend on all agents' responses."""
        return ["advantage", *(f"teach.{agent}" for agent in self.agents)]

    def save_taught(self, step: int, agent: str, batch: TaughtBatch) -> None:
        """Commit phase teach.<agent>."""
        value = {"teacher": batch.teacher, "cost": asdict(batch.cost)}
        outputs = {f"taught.{agent}.parquet": {"difference": as_lists(batch.difference)}, f"taught.{agent}.json": value}
        self.store.commit(step, f"teach.{agent}", outputs)
        self._keep(step, f"teach.{agent}", batch)

    def taught(self, step: int, agent: str) -> TaughtBatch:
        """Output of phase teach.<agent>."""
        phase = f"teach.{agent}"

        def load() -> TaughtBatch:
            value = self.store.read_value(step, phase, f"taught.{agent}.json")
            table = self.store.read_arrow(step, phase, f"taught.{agent}.parquet")
            return TaughtBatch(value["teacher"], as_ragged(table["difference"]), PhaseCost(**value["cost"]))

        return self._read(step, phase, load)

    def save_estimate(
        self, step: int, estimated: Committed[Estimate], reward_R: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """Commit phase advantage: one row per learner and response.

        Args:
            step: 1-based.
            estimated: the estimate, with the estimator's state.
            reward_R: rewards from which advantages were computed, by agent: shaped or raw; nan where unscored.
        """
        estimate = estimated.value
        parts = [
            {
                "learner": [learner] * len(responses),
                "step": np.full(len(responses), step),
                "agent": [source] * len(responses),
                "problem_id": responses.problem_id,
                "sample": responses.sample_R,
                "reward": reward_R[source],
                "advantage": advantage_R,
                "weight": estimate.weight_R(learner, source),
            }
            for learner, of_sources in estimate.advantages.items()
            for source, advantage_R in of_sources.items()
            for responses in [self.rollouts(step, source).value]
        ]
        value = {
            "figures": estimate.figures,
            "run_figures": estimate.run_figures,
            "state": dict(estimated.state),
            "cost": asdict(estimated.cost),
        }
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.store.commit(step, "advantage", {"advantages.parquet": table, "advantages.json": value})
        self._keep(step, "advantage", estimated)

    def estimate(self, step: int) -> Committed[Estimate]:
        """Output of phase advantage."""

        def load() -> Committed[Estimate]:
            value = self.store.read_value(step, "advantage", "advantages.json")
            frame = self.store.read_table(step, "advantage", "advantages.parquet")
            advantages: dict[str, dict[str, NDArray[np.float64]]] = {}
            weights: dict[str, dict[str, NDArray[np.float64]]] = {}
            for (learner, source), rows in frame.groupby(["learner", "agent"], sort=False):
                advantages.setdefault(str(learner), {})[str(source)] = rows["advantage"].to_numpy()
                weights.setdefault(str(learner), {})[str(source)] = rows["weight"].to_numpy()
            estimate = Estimate(advantages, weights, value["figures"], value["run_figures"])
            return Committed(estimate, PhaseCost(**value["cost"]), value["state"])

        return self._read(step, "advantage", load)

    def save_update(self, step: int, agent: str, record: UpdateRecord) -> None:
        """Commit phase update.<agent>."""
        outcome = record.outcome
        value = {
            "minibatches": [asdict(minibatch) for minibatch in outcome.minibatches],
            "trace": asdict(record.trace),
            "figures": dict(record.figures),
            "state": dict(record.state),
            "objective_state": dict(outcome.objective_state),
            "log_centers": dict(outcome.log_centers),
            "cost": asdict(record.cost),
        }
        outputs = {f"update.{agent}.parquet": _row_columns(outcome.rows), f"update.{agent}.json": value}
        self.store.commit(step, f"update.{agent}", outputs)
        self._keep(step, f"update.{agent}", record)

    def update(self, step: int, agent: str) -> UpdateRecord:
        """Output of phase update.<agent>."""
        phase = f"update.{agent}"

        def load() -> UpdateRecord:
            table = self.store.read_arrow(step, phase, f"update.{agent}.parquet")
            value = self.store.read_value(step, phase, f"update.{agent}.json")
            outcome = UpdateOutcome(
                minibatches=tuple(MinibatchOutcome(**minibatch) for minibatch in value["minibatches"]),
                rows=_rows_of({name: table[name].to_numpy() for name in table.column_names}),
                log_centers=value["log_centers"],
                objective_state=value["objective_state"],
            )
            cost = PhaseCost(**value["cost"])
            return UpdateRecord(outcome, _trace(value["trace"]), value["figures"], value["state"], cost)

        return self._read(step, phase, load)

    def state(self, step: int, phase: str) -> Mapping[str, Any]:
        """State of a phase's part after that step, encoded.

        Phases are rollout.<agent>, advantage and update.<agent>; objective.<agent> is the objective's state, which
        phase update.<agent> commits beside the builder's.
        """
        kind, _, agent = phase.partition(".")
        if kind == "advantage":
            return self.estimate(step).state
        if kind == "objective":
            return self.update(step, agent).outcome.objective_state
        return self.rollouts(step, agent).state if kind == "rollout" else self.update(step, agent).state

    def add_replay(self, step: int, agent: str, replay: Replay) -> None:
        """Record that an update was repeated, and how close the result was."""
        path = self.store.root / REPLAYS_FILE
        with self._mutex:
            try:
                before = read_json(path) if path.is_file() else []
            except StoreError as error:
                _log.warning("%s; starting a new list of replays", error)
                before = []
            entry = {"step": step, "agent": agent, "at": time.time(), **asdict(replay)}
            write_json(path, [*before, entry])


def _joined(rounds: Sequence[Committed[Responses]], state: Mapping[str, Any] | None = None) -> Committed[Responses]:
    """The responses of all rounds and their whole cost."""
    if len(rounds) == 1:
        return rounds[0]
    cost = PhaseCost.total(part.cost for part in rounds)
    return Committed(Responses.joined([part.value for part in rounds]), cost, state or {})


def _trace(value: Mapping[str, Any]) -> UpdateTrace:
    before, after = (Fingerprint(f["digest"], tuple(f["projections"])) for f in (value["before"], value["after"]))
    return UpdateTrace(before, after, Setup(**value["setup"]))
