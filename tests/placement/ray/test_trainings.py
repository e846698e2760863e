"""Agents in Ray's actors: same bits as in one process, also when their processes are killed."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.planning.plans import Plan
from flows.records.progress import Progress
from flows.records.watcher import Watcher
from flows.runs.experiment import run_experiment
from hacpo_core.config import ExperimentConfig
from hacpo_core.files import read_json
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import REPLAYS_FILE, StepStore
from tests.experiments_outcome import finish
from tests.placement.ray.conftest import RAY

pytest.importorskip("ray", reason="the ray extra is not installed: pip install 'hacpo[ray]'")
import ray

from hacpo_core.placement import ray_actors, ray_cluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class DyingRank(ray_actors.Rank):
    """Kills its own process in the middle of what the agent's file `die` in the runs folder says: place, call.

    A line is done once; the process that replaces a dead one goes on with the next line.
    """

    def __init__(self, config: ExperimentConfig, name: str, *arguments: Any) -> None:
        super().__init__(config, name, *arguments)
        from hacpo_core.engines.deepspeed.learner import DeepspeedLearner
        from hacpo_core.engines.learning.torch_learner import TorchLearner
        from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
        from hacpo_core.placement import checkpoints

        orders = orders_of(config.runtime.runs_dir, name)
        if not orders.exists():
            return
        first, *others = orders.read_text(encoding="utf-8").splitlines()
        place, call = first.split()
        learner = DeepspeedLearner if config.engine.learner == "deepspeed" else TorchLearner
        owners: dict[str, Any] = {"prefill": TransformersSampler, "write_tensors": checkpoints}
        owner = owners.get(place, learner)
        inner, calls = getattr(owner, place), []

        def dying(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == int(call) and orders.exists():
                orders.write_text("\n".join(others), encoding="utf-8") if others else orders.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*args, **kwargs)

        setattr(owner, place, dying)


def orders_of(runs_dir: str, agent: str) -> Path:
    return Path(runs_dir, f"die.{agent}")


@pytest.mark.soak
def test_actors_killed_in_mid_phase_are_replaced_and_the_run_ends_in_the_same_bits(
    small_plan: Callable[..., Plan],
    undisturbed: Callable[[Plan], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "local"))
    planned = small_plan("hacpo", *RAY)
    monkeypatch.setattr(ray_actors, "Rank", DyingRank)
    orders = {agent: orders_of(planned.config.runtime.runs_dir, agent) for agent in ("qwen", "llama")}
    orders["qwen"].write_text("passes 2\noptimizer_step 6", encoding="utf-8")
    orders["llama"].write_text("write_tensors 1\nprefill 2", encoding="utf-8")
    assert finish(planned) == expected
    assert not any(path.exists() for path in orders.values()), "all of them died"
    for agent in orders:
        assert caplog.text.count(f"agent {agent}: a process was lost") == 2


SEARCHES = ("method.plan.name=step_search", 'method.plan.step_end="\\n"', "train.num_steps=2")
SEARCHES += ("evaluate.during=[]", "evaluate.final=[]")


def test_searches_and_teachers_in_actors_give_what_they_give_in_one_process(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    expected = finish(small_plan("distil", *SEARCHES, runs_dir=tmp_path / "local"))
    planned = small_plan("distil", *SEARCHES, *RAY)
    assert finish(planned) == expected
    teachers = [
        StepStore(planned.root).read_value(step, f"teach.{agent}", f"taught.{agent}.json")["teacher"]
        for step in (1, 2)
        for agent in ("qwen", "llama")
    ]
    assert set(teachers) & {"qwen", "llama"}, "somebody taught"


def test_run_that_is_interrupted_leaves_nothing_and_resumes_to_the_same_bits(
    small_plan: Callable[..., Plan], undisturbed: Callable[[Plan], dict[str, Any]], tmp_path: Path
) -> None:
    niceness: set[int] = set()

    class Impatient(Watcher):
        def stepped(self, progress: Progress) -> None:
            family = psutil.Process().children(recursive=True)
            niceness.update(one.nice() for one in family if "ray::" in " ".join(one.cmdline()))
            if progress.step == 1:
                raise KeyboardInterrupt

    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "local"))
    planned = small_plan("hacpo", *RAY)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, DirectRunner(), Impatient())
    assert niceness == {os.nice(0)}, "agents run at the priority of their run"
    assert not ray.is_initialized()
    assert finish(planned) == expected


@pytest.mark.soak
@pytest.mark.deepspeed
def test_agent_of_two_ranks_loses_one_in_mid_update_and_ends_in_the_same_bits(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("deepspeed", reason="the deepspeed extra is not installed: pip install 'hacpo[deepspeed]'")
    ranks = ("engine.learner=deepspeed", "engine.deepspeed.stage=1", "placement.num_ranks=2", "train.num_steps=2")
    words = (*RAY, *ranks, "placement.colocated=true", "checkpoint.every=1", "evaluate.during=[]")
    expected = finish(small_plan("hacpo", *words, runs_dir=tmp_path / "undisturbed"))
    updates = [name for name in expected if "update" in name]
    assert len(updates) == 4
    planned = small_plan("hacpo", *words)
    monkeypatch.setattr(ray_actors, "Rank", DyingRank)
    orders_of(planned.config.runtime.runs_dir, "llama").write_text("optimizer_step 6", encoding="utf-8")
    assert finish(planned) == expected
    assert "agent llama: a process was lost" in caplog.text


def kinds_of_replays(planned: Plan) -> list[str]:
    return [found["kind"] for found in read_json(planned.root / REPLAYS_FILE)]


@pytest.mark.soak
@pytest.mark.deepspeed
def test_run_of_two_ranks_goes_on_with_one_between_checkpoints(
    small_plan: Callable[..., Plan], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("deepspeed", reason="the deepspeed extra is not installed: pip install 'hacpo[deepspeed]'")

    class Interrupted(Watcher):
        def stepped(self, progress: Progress) -> None:
            if progress.step == 3:
                raise KeyboardInterrupt

    words = (*RAY, "engine.learner=deepspeed", "checkpoint.every=2", "evaluate.during=[]")
    two = small_plan("hacpo", *words, "placement.num_ranks=2", "placement.colocated=true")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(two, DirectRunner(), Interrupted())
    one = small_plan("hacpo", *words)
    assert one.root == two.root
    finish(one)
    assert "near" in kinds_of_replays(one), "that of an agent without a right answer is exact"
    assert re.search(r"replay of step 3, \w+: near", caplog.text)


@pytest.mark.deepspeed
def test_larger_agent_has_two_ranks_beside_one_of_the_smaller_and_samples_what_it_would_alone(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deepspeed", reason="the deepspeed extra is not installed: pip install 'hacpo[deepspeed]'")
    sizes = ("pair.agents.qwen.tiny.hidden_size=96", "pair.agents.qwen.warm_up.num_steps=100")
    words = (*sizes, "engine.learner=deepspeed", "train.num_steps=2", "checkpoint.every=2", "evaluate.during=[]")
    alone = finish(small_plan("hacpo", *words, runs_dir=tmp_path / "local"))
    titles: list[str] = []
    inner = ray_actors.place_process

    def noting(arguments: Any, *, title: str, **options: Any) -> Any:
        titles.append("/".join(title.split("/")[-3:]))
        return inner(arguments, title=title, **options)

    monkeypatch.setattr(ray_actors, "place_process", noting)
    monkeypatch.setattr(ray_cluster, "usable_cores", lambda: 3)  # Ray is told of a third processor
    shared = ("placement.num_ranks=auto", "placement.total_ranks=3")
    planned = small_plan("hacpo", *words, *RAY, *shared)
    found = finish(planned)
    assert sorted(titles) == ["llama/2/0", "qwen/1/0", "qwen/1/1"]
    first = [name for name in alone if name.startswith(("1 rollout", "0 evaluate"))]
    assert len(first) == 2 + 4
    assert {name: found[name] for name in first} == {name: alone[name] for name in first}
    step = 1 if alone["1 qwen"]["update/grad_norm"] else 2  # the first with a right answer, which the processor decides
    for k in ("qwen", "llama"):  # two ranks add gradients up in another order
        norm, alike = (outcome[f"{step} {k}"]["update/grad_norm"] for outcome in (found, alone))
        assert norm == pytest.approx(alike, rel=1e-3)
        assert norm > 0, "the smaller agent's right answers teach both"


def test_agents_that_share_processors_end_in_the_bits_of_one_process(
    small_plan: Callable[..., Plan], undisturbed: Callable[[Plan], dict[str, Any]], tmp_path: Path
) -> None:
    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "local"))
    assert finish(small_plan("hacpo", *RAY, "placement.colocated=true")) == expected


@pytest.mark.soak
def test_machine_that_dies_is_replaced_by_another_one_of_the_cluster(
    small_plan: Callable[..., Plan],
    undisturbed: Callable[[Plan], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from ray.cluster_utils import Cluster

    expected = undisturbed(small_plan("hacpo", runs_dir=tmp_path / "local"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        first = cluster.add_node(num_cpus=2)
        planned = small_plan("hacpo", *RAY, f"placement.ray.address={cluster.address}")

        def lose_first_machine() -> None:
            wait_until((planned.root / "steps" / "000003" / "rollouts.qwen.parquet").exists, limit_s=600)
            cluster.remove_node(first)

        operator = threading.Thread(target=lose_first_machine, daemon=True)
        inner = ray_actors.RayPlacement.open

        def open_and_join_second(placement: ray_actors.RayPlacement, checkpoint: Any = None) -> None:
            inner(placement, checkpoint)  # on the first machine: there was no other
            cluster.add_node(num_cpus=2)
            operator.start()

        monkeypatch.setattr(ray_actors.RayPlacement, "open", open_and_join_second)
        assert finish(planned) == expected
        assert not operator.is_alive()
    finally:
        cluster.shutdown()
    assert "a process was lost" in caplog.text


def test_probe_of_agents_in_actors_measures_what_it_does_in_one_process(probe: Callable[..., str]) -> None:
    words = ("hacpo", "--problems", "8", "--json")
    here, there = (json.loads(probe(*words, *placement)) for placement in ((), RAY))
    agents = [
        {
            name: {key: figure for key, figure in agent.items() if not key.endswith("_per_s")}
            for name, agent in value["agents"].items()
        }
        for value in (here, there)
    ]
    assert agents[0] == agents[1]
    assert there["pairs"] == here["pairs"]
