"""Agents on a cluster of several machines: each on one of them where it fits, with the environment of the run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.planning.plans import Plan, models_dir
from hacpo_core.placement.initial_model import InitialModel
from tests.placement.ray.conftest import RAY

pytest.importorskip("ray", reason="the ray extra is not installed: pip install 'hacpo[ray]'")
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from hacpo_core.placement import ray_actors

pytestmark = [pytest.mark.ray, pytest.mark.system]


class Seeing(ray_actors.Rank):
    """Knows a variable of its environment."""

    def process(self) -> Any:
        return os.environ.get("NCCL_SOCKET_IFNAME")


def test_agent_has_one_machine_where_it_fits_and_the_runs_variables_there(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_actors, "ONE_MACHINE_LIMIT_S", 3.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=3)
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")  # no raylet has it
        words = (*RAY, f"placement.ray.address={cluster.address}", "engine.learner=deepspeed", "placement.num_ranks=2")
        config = small_plan("hacpo", *words).config
        agents = config.pair.agents
        folders = {name: InitialModel(name, agent, models_dir(config)).make() for name, agent in agents.items()}
        for agent_ranks, num_machines in (((2, 2), [1, 1]), ((4, 2), [2, 1])):
            for agent, num_ranks in zip(agents, agent_ranks, strict=True):
                object.__setattr__(agents[agent], "num_ranks", num_ranks)
            placement = ray_actors.RayPlacement(config, root=Path(config.runtime.runs_dir), initial=folders)
            tables: list[Any] = [placement_group_table(placement.groups[name]) for name in agents]
            monkeypatch.setattr(ray_actors, "Rank", Seeing)
            rank = ray_actors.place_process(
                (config, "qwen", folders["qwen"], 0, 1),
                group=placement.groups["qwen"],
                title="r",
                num_cpus=1,
                num_gpus=0,
            )
            seen = ray.get(rank.process.remote())
            placement.close()
            assert [len(set(table["bundles_to_node_id"].values())) for table in tables] == num_machines
            assert seen == "eth7"
    finally:
        cluster.shutdown()
    assert "agent qwen: no machine has 4 x" in caplog.text
