"""What a plan decides before anything is loaded: how many ranks each agent gets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.grids.planner import plan_grid
from flows.planning.capacity import step_cost, with_ranks
from flows.planning.compose import compose, load_config, to_yaml
from flows.planning.memory import peak_gib, published_shapes, sizes_of
from flows.planning.plans import Plan, check_databases, find_plan
from flows.records.states import CONFIG_FILE
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import num_ranks, occupied_gpus
from hacpo_core.errors import ConfigError

SHARED = ("placement.kind=ray", "placement.num_ranks=auto", "engine.learner=deepspeed")


def ranks_of(config: ExperimentConfig) -> tuple[int, ...]:
    return tuple(num_ranks(config, k) for k in config.pair.agents)


@pytest.mark.parametrize(
    ("pair", "words", "expected"),
    [
        ("qwen3-4b+qwen3-4b-instruct", (), (4, 4)),
        ("qwen3-1.7b-base+qwen3-4b-base", (), (3, 5)),
        ("llama3.2-1b-instruct+llama3.2-3b-instruct", (), (3, 5)),
        ("qwen3-1.7b-base+llama3.2-1b-instruct", (), (4, 4)),
        ("qwen3-4b-base+qwen3-8b-base", (), (3, 5)),
        ("qwen3-4b-base+qwen3-8b-base", ("placement.total_ranks=4",), (2, 2)),
        ("qwen3-4b-base+qwen3-8b-base", ("pair.agents.qwen3-8b-base.num_ranks=6",), (2, 6)),
        ("qwen3-4b-base+qwen3-8b-base", ("placement.num_ranks=4",), (4, 4)),
    ],
)
def test_agents_of_the_paper_share_eight_gpus_by_what_their_steps_cost(
    pair: str, words: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    config = compose(pair, "hacpo", hardware="eight_gpus", overrides=words)
    shapes = published_shapes(config)
    placed = with_ranks(config, sizes_of(shapes))
    assert ranks_of(placed) == expected
    assert occupied_gpus(placed) == sum(expected)
    if expected == (3, 5) and "8b" in pair:  # the sums of memory go by the same numbers
        equal = with_ranks(compose(pair, "hacpo", hardware="eight_gpus", overrides=["placement.num_ranks=4"]), {})
        more, fewer = (peak_gib(one, shapes, gpu_gib=79, is_least=True) for one in (placed, equal))
        assert more < fewer, "the 8 B agent divides its optimizer among five"


def test_step_costs_sampling_by_the_root_of_the_size_and_training_by_the_size() -> None:
    config = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", hardware="eight_gpus")
    assert step_cost(config, 4 * 10**9) == 1.0 + 2 * 1.0, "both agents' responses are trained on"
    assert step_cost(config, 10**9) == 0.5 + 2 * 0.25
    assert step_cost(replace(config, method=compose("qwen3-1.7b-base+qwen3-4b-base", "gspo").method), 10**9) == 0.75


@pytest.mark.slow
def test_agent_that_trains_alone_gets_half_of_the_machine(tmp_path: Path) -> None:
    grid = plan_grid("table1", runs_dir=tmp_path)  # no model is there: all are planned with the published shapes
    found = {(len(one.config.pair.agents), occupied_gpus(one.config)) for one in grid.plans.values()}
    assert found == {(1, 4), (2, 8)}
    ranks = {ranks_of(one.config) for one in grid.plans.values() if len(one.config.pair.agents) == 2}
    assert ranks == {(4, 4), (3, 5)}


def test_ranks_that_cannot_be_shared_out_are_one_clear_error() -> None:
    for words, message in {
        (): "placement.total_ranks: got None with placement.num_ranks=auto, expected at least 2, one for each",
        ("placement.total_ranks=3", "pair.agents.qwen-tiny.num_ranks=3"): "got 3 .* expected at least 4",
        ("placement.total_ranks=8", "placement.colocated=true"): "got auto with placement.colocated=true.*set a num",
    }.items():
        with pytest.raises(ConfigError, match=message):
            compose("tiny", "hacpo", overrides=[*SHARED, *words])


def test_numbers_stand_in_the_saved_configuration_and_in_no_id(small_plan: Callable[..., Plan]) -> None:
    one = ("pair.agents.qwen.tiny.hidden_size=96",)
    planned = small_plan("hacpo", *SHARED, *one, "placement.total_ranks=3")
    assert planned.config.pair.agents["qwen"].num_ranks == 2, "some 169 against 50 thousand parameters"
    assert planned.config.pair.agents["llama"].num_ranks == 1
    assert ranks_of(load_config(planned.root / CONFIG_FILE)) == (2, 1)
    assert small_plan("hacpo", *SHARED, *one, "placement.total_ranks=8").id == planned.id


def test_whole_name_comes_before_the_beginning_of_a_longer_one(tmp_path: Path) -> None:
    config = to_yaml(compose("tiny", "hacpo"))
    ids = ["tiny-hacpo-s0-0a", "tiny_size-hacpo-s0-0b", "tiny_size-hacpo-s1-0c", "tiny_state-hacpo-s0-0d"]
    for name in ids:
        (tmp_path / "experiments" / name).mkdir(parents=True)
        (tmp_path / "experiments" / name / CONFIG_FILE).write_text(config, encoding="utf-8")
    found = {name: find_plan(tmp_path, name).id for name in ("tiny", "tiny_size-hacpo-s1", "tiny_st", ids[1])}
    assert list(found.values()) == [ids[0], ids[2], ids[3], ids[1]]
    with pytest.raises(ConfigError, match=f"found {ids[1]}, {ids[2]}$"):
        find_plan(tmp_path, "tiny_size")
    with pytest.raises(ConfigError, match=f"the nearest are {ids[3]}, {ids[1]}, {ids[2]}$"):
        find_plan(tmp_path, "tini_state-hacpo-s0-0d")


def test_database_on_a_file_system_that_a_cluster_shares_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4")]
    monkeypatch.setattr("flows.planning.plans.psutil.disk_partitions", lambda *, all: mounts)

    def why_refused(*words: str) -> str | None:
        runs_dir = f"runtime.runs_dir={tmp_path / 'runs'}"
        try:
            check_databases(compose("tiny", "hacpo", overrides=[runs_dir, "placement.kind=ray", *words]))
        except ConfigError as error:
            return str(error)
        return None

    cluster, direct = "placement.ray.address=auto", "runtime.runner=direct"
    assert f"{tmp_path}/runs/prefect is a SQLite database on nfs4" in (why_refused(cluster) or "")
    assert f"{tmp_path}/runs/mlflow.db is a SQLite" in (why_refused(cluster, direct) or "")
    assert why_refused(cluster, direct, "tracking.enabled=false") is None
    assert why_refused(cluster, direct, "tracking.uri=http://host:5000") is None
    assert why_refused() is None, "one machine"
    mounts.pop()
    assert why_refused(cluster) is None, "a disk of this machine"
