"""Agents in their own processes, placed by Ray.

    phase ─▶ RemoteAgent ─▶ actor of rank 0   ┐ sample: each rank its share of the problems
             (this process)  actor of rank 1   ├ score, update: all ranks, the same rows
                             ...               ┘ a process dies ─▶ AgentLostError ─▶ next generation, from a checkpoint

Actors are named `<experiment>/<agent>/<generation>/<rank>`. They read and write the experiment's folder, which must
have the same path on all machines. Everything else is passed through Ray.
"""

import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hacpo_core.columns import Ragged
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import num_gpus, num_ranks
from hacpo_core.config.engine import START_LIMIT_S
from hacpo_core.config.threads import num_threads
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.engines.learning.replay import UpdateTrace
from hacpo_core.engines.models.folders import find_model, is_gguf
from hacpo_core.engines.ranks import join_ranks
from hacpo_core.errors import AgentLostError, ConfigError, EngineError, HacpoError
from hacpo_core.methods.base import State
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.agents import Agent, Purpose, distinct_problems, share_of
from hacpo_core.placement.base import Placement
from hacpo_core.placement.checkpoints import Checkpoint, load_agent, save_agent
from hacpo_core.records import RowKey
from hacpo_core.responses import Responses

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from hacpo_core.placement.ray_cluster import start_ray
except ImportError as error:
    raise EngineError(
        f"placement.kind: ray cannot be imported ({error}); pip install 'hacpo[ray]', or set placement.kind=local"
    ) from error

ONE_MACHINE_LIMIT_S = 30.0
"""how long to wait for a machine with room for all ranks of an agent, before several are taken"""
CAUSE_LIMIT_S = 10.0
"""after one rank fails, how long to wait for the others, to detect whether one of them died"""
_log = logging.getLogger(__name__)


class Rank:
    """One process of an agent: Ray's actor."""

    def __init__(self, config: ExperimentConfig, name: str, initial: Path, rank: int, ranks: int) -> None:
        self._config, self._name, self._initial = config, name, initial
        self._rank, self._ranks = rank, ranks
        self._agent: Agent | None = None

    def process(self) -> int:
        """Process id; returns as soon as the actor is placed."""
        return os.getpid()

    def meeting_point(self) -> str:
        """Address for the rendezvous of this agent's ranks: tcp://host:port."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call,unused-ignore]
            return f"tcp://{host}:{listener.getsockname()[1]}"

    def load(self, checkpoint: Checkpoint | None, root: Path, meeting_point: str | None) -> int:
        """Load the agent, together with all other ranks; returns the version of its weights."""
        if not root.is_dir():
            raise ConfigError(
                f"{socket.gethostname()} cannot access {root}; set runtime.runs_dir to a folder that all machines share"
            )
        if not self._initial.is_dir():  # a hub download exists only on the first machine
            agent = self._config.pair.agents[self._name]
            is_made = agent.warm_up is not None or is_gguf(agent.path or "")  # then it is in runtime.runs_dir
            path = str(self._initial) if is_made or agent.path is None else agent.path
            self._initial = find_model(path, agent=self._name)
        if meeting_point is not None:
            join_ranks(meeting_point, self._rank, self._ranks, self._config.engine)
        tokens = AgentTokenizer(
            self._name,
            self._config.pair.agents[self._name],
            initial=self._initial,
            stops_at_turn_end=self._config.rollout.stops_at_turn_end,
        )
        self._agent = load_agent(tokens, checkpoint, config=self._config, initial=self._initial)
        return self._agent.version

    def sample(self, version: int, specs: Sequence[SampleSpec], step: int, purpose: Purpose) -> Responses:
        """The responses to this rank's share of the problems."""
        share = share_of(specs, self._rank, self._ranks)
        return self._at(version).sample(share, step=step, purpose=purpose, problems=distinct_problems(specs))

    def run(self, weights_version: int, method: str, *arguments: Any, **options: Any) -> Any:
        """Result of the agent's method, called with weights of this version; only rank 0 returns it."""
        result = getattr(self._at(weights_version), method)(*arguments, **options)
        return result if self._rank == 0 else None

    def save(self, version: int, folder: Path) -> dict[str, Any]:
        """As `save_agent`; only rank 0 writes."""
        return save_agent(self._at(version), folder, writes=self._rank == 0)

    def _at(self, version: int) -> Agent:
        assert self._agent is not None, "load() is called first"
        if self._agent.is_dirty or self._agent.version != version:
            raise AgentLostError(f"rank {self._rank} of {self._name} does not have weights version {version}")
        return self._agent


class RemoteAgent:
    """Proxy of an agent whose weights are in Ray actors, one per rank."""

    def __init__(self, name: str, ranks: Sequence[Any], *, version: int) -> None:
        self.name, self.version, self.is_dirty = name, version, False
        self._ranks = tuple(ranks)

    def sample(self, specs: Sequence[SampleSpec], *, step: int, purpose: Purpose) -> Responses:
        """Sample a response for each spec, in their order."""
        shares = Responses.joined(self._call("sample", list(specs), step, purpose))
        place = shares.positions()
        order = [place[RowKey(step, self.name, spec.problem.id, spec.sample)] for spec in specs]
        return shares if order == sorted(order) else shares.take(order)

    def score(self, responses: Responses) -> Ragged:
        """As `PlacedAgent.score`."""
        scored: Ragged = self._call("run", "score", responses)[0]
        return scored

    def update(
        self,
        minibatches: Sequence[Minibatch],
        objective: Objective,
        *,
        version: int,
        objective_state: State | None = None,
    ) -> tuple[UpdateOutcome, UpdateTrace]:
        """As `PlacedAgent.update`."""
        self.is_dirty = True
        applied: tuple[UpdateOutcome, UpdateTrace] = self._call(
            "run", "update", list(minibatches), objective, version=version, objective_state=objective_state
        )[0]
        self.version, self.is_dirty = version, False
        return applied

    def gradient_cosine(self, rows: Minibatch, objective: Objective) -> float | None:
        """As `PlacedAgent.gradient_cosine`."""
        cosine: float | None = self._call("run", "gradient_cosine", rows, objective)[0]
        return cosine

    def save(self, folder: Path) -> dict[str, Any]:
        """Save the agent in a folder that all machines share."""
        entry: dict[str, Any] = self._call("save", folder)[0]
        return entry

    def rest(self) -> None:
        """Release device memory for other agents."""
        self._call("run", "rest")

    def close(self) -> None:
        """Kill the agent's processes."""
        for rank in self._ranks:
            ray.kill(rank)

    def _call(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """Call a method on all ranks with the same arguments and the version that they must have."""
        shared = [ray.put(argument) for argument in arguments]
        calls = [getattr(rank, method).remote(self.version, *shared, **options) for rank in self._ranks]
        try:
            return gather(calls, what=f"agent {self.name}")
        except BaseException:
            self.is_dirty = True
            raise


def gather(calls: Sequence[Any], *, what: str) -> list[Any]:
    """Results of concurrent calls; returns when all are done or one has failed.

    Raises:
        AgentLostError: a process died, even if another rank's error came first.
        HacpoError: raised by an actor.
        EngineError: an actor raised any other error.
    """
    try:
        open_calls = list(calls)
        while open_calls:  # stop at the first failure: the other ranks would wait for the failed one forever
            ready_calls, open_calls = ray.wait(open_calls)
            ray.get(ready_calls)
        return list(ray.get(list(calls)))
    except RayTaskError as error:
        finished_calls, _ = ray.wait(
            list(calls), num_returns=len(calls), timeout=CAUSE_LIMIT_S if len(calls) > 1 else 0
        )
        for call in finished_calls:
            try:
                ray.get(call)
            except RayTaskError:
                continue
            except RayError as death:
                raise lost_agent(what, death) from death
        cause = error.cause
        if isinstance(cause, HacpoError):
            raise cause from error
        raise EngineError(f"{what}: {type(cause).__name__}: {cause}; see the traceback in Ray's log") from error
    except RayError as error:
        raise lost_agent(what, error) from error


def lost_agent(what: str, error: Exception) -> AgentLostError:
    reason = " ".join(str(error).split("\n\n")[0].split())
    return AgentLostError(f"{what}: a process was lost ({reason[:300]})")


class RayPlacement(Placement):
    """Each agent is a group of actors with their own CPUs and GPUs; if one dies, the agent gets new actors."""

    def __init__(self, config: ExperimentConfig, *, root: Path, initial: Mapping[str, Path]) -> None:
        """Join the cluster, or start one on this machine, and reserve every agent's resources there.

        Raises:
            EngineError: Ray is not installed, no cluster responds, or the cluster lacks the agents' resources.
        """
        super().__init__(
            config, root=root.absolute(), initial={agent: path.absolute() for agent, path in initial.items()}
        )
        self._generation = 0
        turns = [threading.Lock()] * len(initial) if config.placement.colocated else [threading.Lock() for _ in initial]
        self._turns = dict(zip(initial, turns, strict=True))
        self.groups: dict[str, Any] = {}
        self._mutex = threading.Lock()
        self._is_closed = False
        start_ray(config)
        try:
            self._reserve()
        except BaseException:
            self.close()
            raise

    @property
    def shares_devices(self) -> bool:
        """Whether agents have to make room for each other."""
        return self._config.placement.colocated and super().shares_devices

    def turn(self, name: str) -> AbstractContextManager[object]:
        """One phase of an agent at a time, since its ranks must get all calls in the same order; one phase of all
        agents at a time if they share devices.
        """
        return self._turns[name]

    def _reserve(self) -> None:
        """Reserve CPUs and GPUs, one placement group per agent, or a single one if all agents share devices."""
        config, names = self._config, list(self._initial)
        bundle = {"CPU": float(num_threads(config))}
        if num_gpus(config):
            bundle["GPU"] = float(num_gpus(config))
        ranks = {agent: num_ranks(config, agent) for agent in names}
        counts = {"": max(ranks.values())} if config.placement.colocated else ranks
        for resource, num_per_rank in bundle.items():
            num_needed, num_in_cluster = num_per_rank * sum(counts.values()), ray.cluster_resources().get(resource, 0.0)  # type: ignore[no-untyped-call,unused-ignore]
            if num_needed > num_in_cluster:
                raise EngineError(
                    f"placement: {len(names)} agents need {num_needed:g} {resource}s, but Ray's cluster has "
                    f"{num_in_cluster:g}; lower num_ranks, set placement.colocated=true, or join more machines"
                )
        groups = {agent: placement_group([bundle] * count, strategy="STRICT_PACK") for agent, count in counts.items()}
        for agent, count in counts.items():  # on one machine, where one has room for all of its ranks
            if not groups[agent].wait(ONE_MACHINE_LIMIT_S):
                remove_placement_group(groups[agent])
                groups[agent] = placement_group([bundle] * count, strategy="PACK")
                _log.warning("agent %s: no machine has %d x %s free; its ranks may be on several", agent, count, bundle)
        self.groups = dict.fromkeys(names, groups[""]) if config.placement.colocated else groups
        for agent, group in groups.items():
            if not group.wait(START_LIMIT_S):
                raise EngineError(
                    f"placement: Ray could not reserve {counts[agent]} x {bundle} within {START_LIMIT_S:g} s; wait "
                    "until the cluster is less busy"
                )

    def _load(self, name: str, checkpoint: Checkpoint | None) -> RemoteAgent:
        config, ranks = self._config, num_ranks(self._config, name)
        with self._mutex:
            if self._is_closed:
                raise EngineError(f"agent {name}: the placement is closed")
            self._generation += 1
            generation = self._generation
        sharers = len(self._initial) if config.placement.colocated else 1
        actors = [
            place_process(
                (config, name, self._initial[name], rank, ranks),
                group=self.groups[name],
                title=f"{self._root.name}/{name}/{generation}/{rank}",
                num_cpus=num_threads(config) / sharers,
                num_gpus=num_gpus(config) / sharers,
            )
            for rank in range(ranks)
        ]
        agent = RemoteAgent(name, actors, version=0)
        try:
            placed = [actor.process.remote() for actor in actors]
            late = ray.wait(placed, num_returns=ranks, timeout=START_LIMIT_S)[1]
            if late:
                raise EngineError(f"agent {name}: {len(late)} of {ranks} processes did not start; see Ray's log")
            pids = gather(placed, what=f"agent {name}")
            where = gather([actors[0].meeting_point.remote()], what=f"agent {name}")[0] if ranks > 1 else None
            calls = [actor.load.remote(checkpoint, self._root, where) for actor in actors]
            agent.version = gather(calls, what=f"agent {name}")[0]
        except BaseException:
            agent.close()
            raise
        _log.info("agent %s, generation %d: version %d in processes %s", name, generation, agent.version, pids)
        return agent

    def _save(self, name: str, folder: Path) -> dict[str, Any]:
        agent = self._agents[name]
        assert isinstance(agent, RemoteAgent)
        return agent.save(folder)

    def break_off(self) -> None:
        """Kill the agents' processes."""
        with self._mutex:
            self._is_closed = True
        super().close()

    def close(self) -> None:
        """Kill the agents' processes, release their resources, and stop Ray if it was started for this run."""
        self.break_off()
        if ray.is_initialized():
            for group in {group.id: group for group in self.groups.values()}.values():
                remove_placement_group(group)
            ray.shutdown()


def place_process(arguments: tuple[Any, ...], *, group: Any, title: str, num_cpus: float, num_gpus: float) -> Any:
    """Start one rank of an agent with Ray, in the placement group's bundle with the index of the rank."""
    place = PlacementGroupSchedulingStrategy(group, arguments[-2])
    actor = ray.remote(Rank).options(name=title, num_cpus=num_cpus, num_gpus=num_gpus, scheduling_strategy=place)
    return actor.remote(*arguments)
