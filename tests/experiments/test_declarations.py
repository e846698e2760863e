"""The declarations of experiments/ say what the paper says."""

import pytest

from dashboards.report.published import AVERAGE, paper_values_in, printed_ratios, published_rows
from flows.planning.compose import compose
from flows.planning.declarations import available, read_declaration
from hacpo_core.config.counts import num_minibatches, num_samples
from hacpo_core.config.identity import experiment_id

TABLE_5 = list(published_rows("table5_hyperparameters.csv"))
PAIRS = [row["pair"] for row in TABLE_5]
GRIDS = {"table1", "table2", "table3", "table4", "table6", "table7", "figure3", "figure4"}


@pytest.mark.parametrize("row", TABLE_5, ids=PAIRS)
def test_pair_is_its_row_of_table_5(row: dict[str, str]) -> None:
    config = compose(row["pair"], "hacpo")
    assert config.pair.name == row["pair"]
    assert list(config.pair.agents) == row["pair"].split("+")
    objective = config.method.objective
    # the table prints the cross floor under delta; see docs/decisions.md#cross-floor
    printed = (float(row[name]) for name in ("alpha", "delta_as_printed", "delta_step"))
    assert (objective.cross_exponent, objective.cross_floor, objective.cross_step) == tuple(printed)


@pytest.mark.parametrize("pair", PAIRS)
def test_qwen3_does_not_think_and_nothing_is_told_to_templates_without_the_switch(pair: str) -> None:
    for name, agent in compose(pair, "hacpo").pair.agents.items():
        has_switch = name.startswith("qwen3") and name != "qwen3-4b-instruct"  # that one is the release 2507
        assert agent.chat_template_kwargs == ({"enable_thinking": False} if has_switch else {}), name


def test_training_settings_are_those_of_appendix_a() -> None:
    config = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", hardware="eight_gpus")
    assert (config.train.problems, config.method.build.problems, config.rollout.num_samples) == (128, 64, 8)
    assert (config.rollout.max_prompt_tokens, config.rollout.max_response_tokens) == (1024, 4096)
    assert config.train.num_steps == 7500 // config.train.problems
    assert config.optimizer.learning_rate == 1e-6
    assert {benchmark.max_response_tokens for benchmark in config.evaluate.benchmarks.values()} == {8196}
    assert config.method.estimate.window == 5
    assert (config.method.objective.sequence_low, config.method.objective.sequence_high) == (3e-4, 4e-4)
    grpo = compose("qwen3-1.7b-base+qwen3-4b-base", "grpo", hardware="eight_gpus").method.objective
    assert (grpo.token_low, grpo.token_high) == (0.2, 0.28)


def test_updates_of_a_step_stand_in_the_papers_proportion() -> None:
    gspo, twice, hacpo = (compose(PAIRS[1], name) for name in ("gspo", "gspo_x2", "hacpo"))
    assert [num_samples(config) for config in (gspo, twice, hacpo)] == [8, 16, 8]
    assert [num_minibatches(config) for config in (gspo, twice, hacpo)] == [2, 4, 4]


def test_path_of_an_agent_with_a_dot_in_its_name_can_be_set_and_is_no_part_of_the_id() -> None:
    word = "pair.agents.qwen3-1.7b-base.path=/models/one"
    config = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", overrides=[word])
    assert list(config.pair.agents) == ["qwen3-1.7b-base", "qwen3-4b-base"]
    assert config.pair.agents["qwen3-1.7b-base"].path == "/models/one"
    elsewhere = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", overrides=[word.replace("one", "two")])
    assert experiment_id(config, {}) == experiment_id(elsewhere, {})


@pytest.mark.parametrize("name", available("hardware"))
def test_every_hardware_file_composes(name: str) -> None:
    config = compose(PAIRS[0], "hacpo", hardware=name)
    found = (config.placement.kind, config.engine.sampler, config.engine.learner, config.placement.num_ranks)
    assert (
        found
        == {
            "cpu": ("local", "transformers", "torch", 1),
            "cpu_vllm": ("local", "vllm", "torch", 1),
            "cpu_deepspeed": ("local", "transformers", "deepspeed", 1),
            "one_gpu": ("local", "transformers", "deepspeed", 1),
            "one_gpu_vllm": ("local", "vllm", "deepspeed", 1),
            "eight_gpus": ("ray", "vllm", "deepspeed", "auto"),
            "two_nodes": ("ray", "vllm", "deepspeed", 8),
        }[name]
    )


def test_every_cell_of_a_paper_grid_composes_and_all_are_estimated_alike() -> None:
    for name in sorted(GRIDS):
        tree = read_declaration("grid", name)
        assert (tree["report"], tree["hardware"], tree["seeds"]) == ({"table": name}, "eight_gpus", [0])
        assert tree["rates"] == read_declaration("grid", "_eight_gpus")["rates"]
        for entry in tree["entries"]:
            for pair in entry["pairs"]:
                for method in entry["methods"]:
                    compose(pair, method, hardware=tree["hardware"], entry=entry.get("settings"))


def test_toy_grid_has_every_ablation_and_table_6_the_rows_of_advantage_zero() -> None:
    planned = {method for entry in read_declaration("grid", "tiny_ablations")["entries"] for method in entry["methods"]}
    ablations = {name for name in available("method") if name.startswith(("hacpo_no_", "hacpo_alpha"))}
    assert "hacpo_no_guard" in ablations <= planned
    (entry,) = read_declaration("grid", "table6")["entries"]
    assert entry["settings"] == {"engine": {"skip_zero_advantage": False}}


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table7"])
def test_grid_covers_every_printed_cell(name: str) -> None:
    tree = read_declaration("grid", name)
    planned = {(pair, method) for entry in tree["entries"] for pair in entry["pairs"] for method in entry["methods"]}
    printed = {(pair, method) for pair, _, method, _ in paper_values_in(name) if method != "base"}
    assert planned == printed


def test_printed_tables_are_complete() -> None:
    cells = [tuple(row.values())[:5] for row in published_rows("results.csv")]
    assert len(set(cells)) == len(cells) == 80 * 8 + 16
    printed = compose(PAIRS[0], "hacpo").evaluate.final
    for row in {cell[:4] for cell in cells if cell[0] != "table4"}:
        found = [cell[4] for cell in cells if cell[:4] == row]
        assert found == [*printed, AVERAGE], "the columns, in the order in which they are evaluated"
    assert paper_values_in("table1")["qwen3-4b+qwen3-4b-instruct", "qwen3-4b", "hacpo", "math500"] == 0.91
    assert [ratio["mean"] for ratio in printed_ratios().values()] == [1.00002, 0.8955]
