"""What Ray cannot do, or the cluster lacks, is one clear error; and what Ray is asked for."""

import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from flows.planning.plans import Plan, models_dir
from hacpo_core.config import AgentConfig, TeamConfig
from hacpo_core.errors import AgentLostError, EngineError, StoreError
from hacpo_core.placement.initial_model import InitialModel
from tests.experiments_outcome import finish
from tests.placement.ray.conftest import RAY

pytest.importorskip("ray", reason="the ray extra is not installed: pip install 'hacpo[ray]'")

from hacpo_core.placement import ray_actors, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_agent_whose_processes_keep_dying_is_one_clear_error(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(ray_actors.Rank):
        def load(self, *arguments: Any) -> int:
            os._exit(1)

    monkeypatch.setattr(ray_actors, "Rank", Dead)
    with pytest.raises(AgentLostError, match="agent qwen: a process was lost"):
        finish(small_plan("hacpo", *RAY))


def test_unexpected_error_in_an_actor_is_raised_here_with_its_agents_name(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(ray_actors.Rank):
        def load(self, *arguments: Any) -> int:
            return 1 // 0

    monkeypatch.setattr(ray_actors, "Rank", Refusing)
    with pytest.raises(EngineError, match="agent qwen: ZeroDivisionError: .*; see the traceback in"):
        finish(small_plan("hacpo", *RAY))


def test_full_disk_while_an_actor_saves_is_one_clear_error_and_leaves_no_half_checkpoint(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(ray_actors.Rank):
        def save(self, *arguments: Any) -> dict[str, Any]:
            from hacpo_core.placement import checkpoints

            def full(*_: Any) -> None:
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

            checkpoints.write_tensors = full
            return super().save(*arguments)

    monkeypatch.setattr(ray_actors, "Rank", Full)
    planned = small_plan("hacpo", *RAY, "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]")
    with pytest.raises(StoreError, match="cannot write checkpoint .*No space left on device .*; free some space, then"):
        finish(planned)
    assert not list(planned.root.rglob("*.tmp"))


@pytest.mark.soak
def test_more_processors_than_the_cluster_has_is_one_clear_error(small_plan: Callable[..., Plan]) -> None:
    with pytest.raises(EngineError, match=r"2 agents need 2000 CPUs, but Ray's cluster has \d+; lower num_ranks"):
        finish(small_plan("hacpo", *RAY[:1], "engine.num_threads=1000"))


def test_gpus_that_the_cluster_lacks_are_one_clear_error(small_plan: Callable[..., Plan]) -> None:
    with pytest.raises(EngineError, match=r"2 agents need 2 GPUs, but Ray's cluster has 0"):
        finish(small_plan("hacpo", *RAY, "engine.device=cuda"))


def test_model_of_a_hub_is_looked_for_on_the_machine_of_the_actor(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_plan("hacpo").config
    folder = InitialModel("qwen", config.pair.agents["qwen"], models_dir(config)).make()
    there = AgentConfig(path="qwen/tiny")
    config = dataclasses.replace(config, pair=TeamConfig(config.pair.name, {**config.pair.agents, "qwen": there}))
    monkeypatch.setattr(ray_actors, "find_model", lambda path, agent: {"qwen/tiny": folder}[path])
    assert ray_actors.Rank(config, "qwen", tmp_path / "snapshots" / "1", 0, 1).load(None, tmp_path, None) == 0


@pytest.mark.parametrize(("words", "is_shared"), [((), False), (("placement.colocated=true",), True)])
def test_phases_that_need_the_same_agent_wait_for_each_other(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], is_shared: bool
) -> None:
    config = small_plan("hacpo", *RAY, *words).config
    monkeypatch.setattr(ray_actors, "start_ray", lambda _: None)
    monkeypatch.setattr(ray_actors.RayPlacement, "_reserve", lambda _: None)
    folders = {name: InitialModel(name, agent, models_dir(config)).make() for name, agent in config.pair.agents.items()}
    placement = ray_actors.RayPlacement(config, root=Path(config.runtime.runs_dir), initial=folders)
    waiting: list[bool] = []

    def scores(name: str) -> None:
        is_free = placement.turn(name).acquire(blocking=False)  # type: ignore[attr-defined]
        waiting.append(not is_free)

    with placement.turn("qwen"):  # two learners with one teacher: their teach phases run in threads of their own
        for name in ("qwen", "llama"):
            thread = threading.Thread(target=scores, args=(name,))
            thread.start()
            thread.join()
    assert waiting == [True, is_shared]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "cannot join the cluster at 127.0.0.1:9.*ray start --head"),
        ("nowhere", "expected host:port or auto"),
    ],
)
def test_cluster_that_cannot_be_reached_is_one_clear_error(
    small_plan: Callable[..., Plan], address: str, message: str
) -> None:
    with pytest.raises(EngineError, match=f"placement.ray.address: .*{message}"):
        finish(small_plan("hacpo", *RAY, f"placement.ray.address={address}"))


def test_ray_that_does_not_start_here_is_one_clear_error(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: Any) -> None:
        raise RuntimeError("no room in /dev/shm\nand more")

    monkeypatch.setattr(ray_cluster.ray, "init", init)
    with pytest.raises(
        EngineError, match=r"placement.kind: Ray does not start here: no room in /dev/shm; test it with `hacpo doc"
    ):
        finish(small_plan("hacpo", *RAY))


def test_ray_is_given_the_processors_that_the_agents_ask_for_and_not_the_machines(
    small_plan: Callable[..., Plan], asked_of_ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "usable_cores", lambda: 64)
    for words, expected in (((), 2), (("placement.colocated=true",), 1), (("engine.num_threads=40",), 64)):
        with pytest.raises(EngineError, match="enough"):
            ray_cluster.start_ray(small_plan("hacpo", *RAY, *words).config)
        assert asked_of_ray["num_cpus"] == expected, words
