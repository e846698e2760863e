"""Configurations: composed, checked in one sentence each, identified."""

import re
from collections.abc import Mapping
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml

from flows.planning.compose import compose, load_config, to_yaml
from flows.planning.declarations import DECLARATION_FOLDERS, available
from hacpo_core.config import BenchmarkConfig, RetokenizeConfig, VerifierConfig, as_dict, flatten
from hacpo_core.config.counts import num_minibatches
from hacpo_core.config.fields import declaration, options, setting
from hacpo_core.config.identity import experiment_id, inert_fields
from hacpo_core.errors import ConfigError


def test_every_declared_method_fits_the_tiny_pair() -> None:
    assert [method for method in available("method") if compose("tiny", method).method.name != method] == []


BAD_FIELDS = {
    "rollout.num_sample=4": r"rollout.num_sample \(in the command line\): .*num_samples.*; see hacpo fields",
    "trian.num_steps=4": r"trian \(in the command line\): .*train",
    "rollout.num_samples=many": r"rollout.num_samples \(in .*\): Value 'many' of type 'str' could not be",
    "rollout.num_samples=null": r"rollout.num_samples \(in .*\): .*None",
    "train=3": r"\(in the command line\): .*TrainConfig",
    "pair=[1]": r"\(in the command line\): .*list",
    f"rollout.temperature=1{400 * '0'}": r"\(in the command line\): .*too large",
    "evaluate.final={a: b}": r"\(in the command line\): Cannot merge",
    "verifier.style=bocksed": r"verifier.style .*'bocksed', expected one of \['boxed', ",
    "method.estimate.window=0": r"method.estimate.window: got 0, expected .*\[1, .*K counts the averaged steps",
    "rollout.temperature=0": r"rollout.temperature: got 0.0, expected a value in \(0",
    "engine.device=gpu": r"engine.device: got 'gpu', expected one of cpu, cuda \(CUDA_VISIBLE_DEVICES chooses the",
    "method.build.problems=7": r"method.build.problems: got 7, expected a divisor of the 64 problem groups",
    "method.objective.name=token_clip": r"method.objective.name: got token_clip, .*with method.shares_rollouts",
    "method.objective.token_low=0.1": r"method.objective.token_low \(in the command line\): cross_clip has no such",
    "method.plan=foo": r"method.plan \(in .*\): got 'foo', expected a mapping; write method.plan.name=foo",
    "conformance=[paper]": r"conformance: got \['paper'\], expected one of official, original, paper",
    "pair.agents.qwen-tiny.tiny.num_heads=5": r"qwen-tiny.tiny.hidden_size: got \d+, .*set it to a multiple of 10",
    "pair.agents.qwen-tiny.tiny.num_kv_heads=3": r"tiny.num_kv_heads: got 3, set it to a divisor of num_heads=4",
    "nonsense": r"'nonsense': expected section.field=value",
    "pair.name=../../escaped": r"pair.name: got '../../escaped', expected at most 128 letters, digits",
    "method.name=its-own": r"method.name: got 'its-own', expected at most 64 letters, digits",
    "placement.num_ranks=some": r"placement.num_ranks: got 'some', expected auto or a whole number in \[1,",
    "placement.num_ranks=auto": r"got auto with placement.kind=local and engine.learner=torch; set placement",
    "placement.total_ranks=8": r"placement.total_ranks cannot take effect: placement.num_ranks is 1",
    "data.sets.arithmetic.template=solve": r"template: got 'solve', expected a text with \{problem\}",
    "data.sets.arithmetic.system=${nobody}": r"data.sets.arithmetic.system: .*nobody.*fix the value",
}


def sentences(cases: Mapping[str, str]) -> list[str]:
    """What is wrong with the messages of overrides, each of which must be refused in one line that matches."""
    wrong = []
    for word, message in cases.items():
        try:
            compose("tiny", "hacpo", overrides=[word])
        except ConfigError as error:
            if "\n" in str(error) or re.search(message, str(error)) is None:
                wrong.append(f"{word[:60]}: {error}")
        else:
            wrong.append(f"{word}: accepted")
    return wrong


def test_one_response_to_a_problem_is_refused_where_its_advantage_is_always_zero() -> None:
    for method, message in (("gspo", "baseline: got own with one response"), ("rloo", "name: got leave_one_out")):
        with pytest.raises(ConfigError, match=message):
            compose("tiny", method, overrides=["rollout.num_samples=1"])


def test_bad_field_is_one_sentence_that_names_it() -> None:
    assert sentences(BAD_FIELDS) == []


def test_method_without_a_name_of_its_own_is_not_taken_for_hacpo(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("method: {estimate: {name: group}, objective: {name: sequence_clip}}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"method .*mine.yaml: got no method.name"):
        compose("tiny", str(file))
    assert compose("tiny", str(file), overrides=["method.name=mine"]).method.name == "mine"
    file.write_text("method: {name: mine}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"method.estimate.name: got none, expected one of group, .*; add it"):
        compose("tiny", str(file))


@pytest.mark.parametrize("uri", ["https://me:s3cret@mlflow.example", "postgresql://db/mlflow?user=me&password=s3cret"])
def test_password_in_the_tracking_address_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri: contains a password.*MLFLOW_TRACKING_URI") as caught:
        compose("tiny", "hacpo", overrides=[f"tracking.uri='{uri}'"])
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["http://mlflow.example:5000", "postgresql://me@db/mlflow", "sqlite:////runs/a:b.db"])
def test_tracking_address_without_a_password_is_taken(uri: str) -> None:
    assert compose("tiny", "hacpo", overrides=[f"tracking.uri='{uri}'"]).tracking.uri == uri


def test_two_benchmarks_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "mine.yaml").write_text("{kind: arithmetic, split: dev}", encoding="utf-8")
    words = [f"evaluate.during=[{tmp_path}/a/mine.yaml]", f"evaluate.final=[{tmp_path}/b/mine.yaml]"]
    with pytest.raises(ConfigError, match=r"a/mine.yaml and .*b/mine.yaml have the same name; rename one of them"):
        compose("tiny", "gspo", overrides=words)


def test_one_benchmark_file_may_be_named_in_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("file: p.jsonl\ntemplate: '{problem}'", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["evaluate.during=[mine.yaml]", f"evaluate.final=[{tmp_path / 'mine.yaml'}]"]
    assert list(compose("tiny", "hacpo", overrides=words).evaluate.benchmarks) == ["mine"]


def test_files_that_a_pair_names_are_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("file: p.jsonl\ntemplate: '{problem}'", encoding="utf-8")
    pair = tmp_path / "pair.yaml"
    (tmp_path / "mine.jinja").write_text("{{ messages }}", encoding="utf-8")
    (tmp_path / "model").mkdir()
    agents = "{one: {path: model, chat_template: mine.jinja}, two: {path: elsewhere}}"
    names = f"pair: {{agents: {agents}}}\ndata: {{train: [mine.yaml]}}\nevaluate: {{final: [mine.yaml]}}"
    pair.write_text(names, encoding="utf-8")
    config = compose(str(pair), "hacpo")
    one, two = config.pair.agents.values()
    assert (one.path, one.chat_template, two.path) == (str(tmp_path / "model"), "{{ messages }}", "elsewhere")
    assert (config.data.sets["mine"].file, config.evaluate.benchmarks["mine"].file) == ("p.jsonl", "p.jsonl")


@pytest.mark.parametrize("template", ["{% for m in messages %}{{ m }}{% endfor %}", "{{ messages }}"])
def test_chat_template_of_a_word_is_taken_as_it_is(template: str) -> None:
    words = [f"pair.agents.qwen-tiny.chat_template={template}"]
    assert compose("tiny", "gspo", overrides=words).pair.agents["qwen-tiny"].chat_template == template


def test_chat_template_is_read_from_a_file_and_is_part_of_the_id(tmp_path: Path) -> None:
    file, template = tmp_path / "mine.jinja", "{{ messages[0].content }}="
    file.write_text(template, encoding="utf-8")
    words = [f"pair.agents.qwen-tiny.chat_template={file}"]
    config = compose("tiny", "gspo", overrides=words)
    assert config.pair.agents["qwen-tiny"].chat_template == template
    file.write_text(template + " ", encoding="utf-8")
    assert experiment_id(compose("tiny", "gspo", overrides=words), {}) != experiment_id(config, {})
    with pytest.raises(ConfigError, match=r"chat_template: /.*no/such.jinja cannot be read .*a file that holds"):
        compose("tiny", "gspo", overrides=["pair.agents.qwen-tiny.chat_template=no/such.jinja"])


def test_arguments_of_a_chat_template_are_read_from_words_and_from_files_and_are_part_of_the_id(tmp_path: Path) -> None:
    field = "pair.agents.qwen-tiny.chat_template_kwargs"
    silent = compose("tiny", "hacpo", overrides=[f"{field}.enable_thinking=false", f"{field}.budget=3"])
    assert silent.pair.agents["qwen-tiny"].chat_template_kwargs == {"enable_thinking": False, "budget": 3}
    assert silent.pair.agents["llama-tiny"].chat_template_kwargs == {}
    path = tmp_path / "mine.yaml"
    path.write_text("extends: tiny\npair: {agents: {qwen-tiny: {chat_template_kwargs: {enable_thinking: true}}}}")
    assert compose(str(path), "hacpo").pair.agents["qwen-tiny"].chat_template_kwargs == {"enable_thinking": True}
    configs = [silent, compose(str(path), "hacpo"), compose("tiny", "hacpo")]
    for value in (1, 2):  # a field of that name says where something lies elsewhere, and is no part of the id
        path.write_text(f"extends: tiny\npair: {{agents: {{qwen-tiny: {{chat_template_kwargs: {{path: {value}}}}}}}}}")
        configs.append(compose(str(path), "hacpo"))
    assert len({experiment_id(config, {}) for config in configs}) == 5
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(silent), encoding="utf-8")
    assert load_config(saved) == silent


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"pair: got 'huge', expected one of .*tiny"):
        compose("huge", "hacpo")
    with pytest.raises(ConfigError, match=r"method: got 'ppo', expected one of .*gspo"):
        compose("tiny", "ppo")
    with pytest.raises(ConfigError, match=r"method: there is no file /.*nope.yaml; correct the path"):
        compose("tiny", "nope.yaml")
    with pytest.raises(ConfigError, match=r"data.train: got 'daly', expected one of daily, .*; did you mean daily"):
        compose("tiny", "gspo", overrides=["data.train=[daly]", "data.sets.daily.file=daily.jsonl"])


def test_field_that_shares_nothing_is_refused_for_a_method_without_sharing() -> None:
    with pytest.raises(ConfigError, match=r"method.build.order cannot take effect: method gspo shares no rollouts"):
        compose("tiny", "gspo", overrides=["method.build.order=own_first"])
    with pytest.raises(ConfigError, match=r"method.objective.cross_floor .*: sequence_clip has no such field, it has"):
        compose("tiny", "gspo", overrides=["method.objective.cross_floor=0.9"])


def test_layer_below_the_one_that_names_an_implementation_may_set_fields_of_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: tiny\nmethod: {objective: {cross_floor: 0.7, token_low: 0.3}}", encoding="utf-8")
    assert compose(str(path), "hacpo").method.objective.cross_floor == 0.7
    assert compose(str(path), "grpo").method.objective.token_low == 0.3
    path.write_text("extends: tiny\nmethod: {objective: {cros_floor: 0.7}}", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"method.objective.cros_floor \(in pair .*mine.yaml\): cross_clip has no such"
    ):
        compose(str(path), "hacpo")


def test_command_line_beats_hardware_beats_method_beats_pair_beats_preset() -> None:
    assert compose("tiny", "hacpo").method.objective.cross_exponent == 1.0
    assert compose("tiny", "hacpo_alpha3").method.objective.cross_exponent == 3.0
    word = "method.objective.cross_exponent=2"
    assert compose("tiny", "hacpo_alpha3", overrides=[word]).method.objective.cross_exponent == 2.0
    assert compose("tiny", "hacpo", entry={"seed": 4}).seed == 4
    assert compose("tiny", "hacpo", entry={"seed": 4}, overrides=["seed=5"]).seed == 5


def test_all_presets_set_every_field_in_which_they_differ() -> None:
    names, composed = [], []
    for preset in ("paper", "official", "original"):
        file = Path(__file__).parents[2] / "experiments" / DECLARATION_FOLDERS["conformance"] / f"{preset}.yaml"
        names.append(set(flatten(yaml.safe_load(file.read_text(encoding="utf-8")))))
        both = (compose("tiny", method, overrides=[f"conformance={preset}"]) for method in ("hacpo", "grpo"))
        composed.append({name: value for config in both for name, value in flatten(as_dict(config)).items()})
    different = {name for name, value in composed[0].items() if any(other[name] != value for other in composed[1:])}
    assert names == [different] * 3


@pytest.mark.slow
def test_nested_yaml_without_an_end_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*quote the value"):
        compose("tiny", "hacpo", overrides=[f"pair.name={'[' * 10_000}"])
    (tmp_path / "deep.yaml").write_text("pair: " + "[" * 10_000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"deep.yaml is not valid YAML: .*(nesting depth|recursion)"):
        compose(str(tmp_path / "deep.yaml"), "hacpo")


def test_range_without_a_lower_bound_is_said_in_words() -> None:
    declared = declaration(fields(make_dataclass("Section", [("share", float, setting(0.5, "a share", at_most=5))]))[0])
    declared.check("share", -3.0)
    with pytest.raises(ConfigError, match=r"share: got 6.0, expected a value of at most 5"):
        declared.check("share", 6.0)


def test_reward_by_letters_takes_boxes_and_starts_no_worker() -> None:
    words = ["verifier.equality=normalised", "verifier.style=last_number"]
    with pytest.raises(ConfigError, match=r"verifier.style: got last_number with .*set verifier.style=boxed"):
        compose("tiny", "hacpo", overrides=words)
    words[1] = "evaluate.benchmarks.arithmetic_dev.style=auto"
    with pytest.raises(ConfigError, match=r"evaluate.benchmarks.arithmetic_dev.style: got auto with .*normalised"):
        compose("tiny", "hacpo", overrides=words)
    equalities = ("verifier.equality=math_verify", "verifier.equality=normalised")
    assert len({experiment_id(compose("tiny", "hacpo", overrides=[word]), {}) for word in equalities}) == 2


def test_official_preset_sets_all_its_fields_and_single_ones_can_differ() -> None:
    config = compose("tiny", "hacpo", overrides=["conformance=official", "method.objective.kl_coef=0"])
    assert (config.method.estimate.metric, config.method.estimate.cross_baseline) == ("positive_rate", "learner")
    assert (config.method.objective.aggregation, config.retokenize.eos) == ("mean_of_rows", "drop")
    assert config.method.objective.kl_coef == 0.0
    assert compose("tiny", "hacpo").method.objective.aggregation == "sum_of_means"


def test_updates_per_step_follow_the_rollouts() -> None:
    counts = {name: num_minibatches(compose("tiny", name)) for name in ("gspo", "gspo_x2", "naive", "hacpo")}
    assert counts == {"gspo": 2, "gspo_x2": 4, "naive": 4, "hacpo": 4}
    assert num_minibatches(compose("tiny_trio", "hacpo")) == 6


def test_id_changes_with_results_alone() -> None:
    def name(*overrides: str, method: str = "hacpo", contents: str = "x") -> str:
        return experiment_id(compose("tiny", method, overrides=overrides), {"train": contents})

    same = [(), ("runtime.runs_dir=/elsewhere",), ("tracking.enabled=false",), ("checkpoint.every=3",)]
    assert len({name(*overrides) for overrides in same}) == 1
    other = [
        (),
        ("optimizer.learning_rate=1e-5",),
        ("method.objective.cross_step=0.0",),
        ("train.num_steps=9",),
        ("seed=1",),
    ]
    assert len({name(*overrides) for overrides in other}) == len(other)
    assert name(contents="x") != name(contents="y")


def test_id_of_a_single_agent_method_ignores_what_only_sharing_reads() -> None:
    plain = experiment_id(compose("tiny", "gspo"), {})
    assert experiment_id(compose("tiny", "gspo", entry={}), {}) == plain
    assert "method.build.order" in inert_fields(compose("tiny", "gspo"))


def test_resolved_configuration_is_read_back_equal(tmp_path: Path) -> None:
    config = compose("tiny_trio", "hacpo", overrides=["seed=3"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(path) == config


def test_configuration_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("seed: 1\nsampler: old\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="does not fit this version"):
        load_config(path)


@pytest.mark.parametrize("text", ["seed: ${nobody}\n", "engine: ${nobody}\n"])
def test_stored_configuration_that_names_nothing_is_one_error_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"\(in {re.escape(str(path))}\): .*nobody"):
        load_config(path)


def test_preset_is_no_part_of_the_id_but_all_that_it_sets_is() -> None:
    official = compose("tiny", "hacpo", overrides=["conformance=official"])
    assert experiment_id(official, {}) != experiment_id(compose("tiny", "hacpo"), {})
    assert experiment_id(replace(official, conformance="paper"), {}) == experiment_id(official, {})


def test_user_declarations_are_yaml_files_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: hacpo\nmethod: {name: mine, estimate: {name: 'tests.plugins:RunningMean', share: 0.25}}\n",
        encoding="utf-8",
    )
    config = compose("tiny", str(path))
    estimator = config.method.estimate
    assert (config.method.name, estimator.name, estimator.share) == ("mine", "tests.plugins:RunningMean", 0.25)
    path.write_text("extends: hacpo\nmethod: {name: mine\ntrain: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine.yaml is not valid YAML: line 3, column 6: did not find expected"):
        compose("tiny", str(path))


def test_method_that_extends_another_may_name_another_implementation_of_a_seam(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: naive\nmethod: {name: mine, estimate: {name: leave_one_out}}\n", encoding="utf-8")
    method = compose("tiny", str(path)).method
    assert (type(method.estimate).__name__, method.shares_rollouts) == ("LeaveOneOut", True)
    path.write_text("extends: hacpo_window1\nmethod: {name: mine, estimate: {binary_guard: false}}\n", encoding="utf-8")
    estimate = compose("tiny", str(path)).method.estimate
    assert (estimate.window, estimate.binary_guard) == (1, False), "the same implementation keeps what is below"


def test_template_of_a_set_is_taken_as_it_is_typed() -> None:
    data = compose("tiny", "gspo", overrides=["data.sets.arithmetic.template={problem}"]).data
    assert data.sets["arithmetic"].template == "{problem}"


def test_declaration_that_extends_itself_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"extends: {one}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"one.yaml extends itself; name another method under extends"):
        compose("tiny", str(one))
    one.write_text(f"extends: {two}", encoding="utf-8")
    two.write_text(f"extends: {one}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"one.yaml extends itself"):
        compose("tiny", str(one))


def test_every_declared_benchmark_can_be_evaluated() -> None:
    words = [f"evaluate.final=[{','.join(available('benchmark'))}]", "data.development_share=0.1"]
    config = compose("tiny", "hacpo", overrides=words)
    assert set(config.evaluate.benchmarks) == set(available("benchmark"))


def test_benchmark_is_its_declaration_and_what_the_layers_say_about_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{file: mine.jsonl, count: 9, num_samples: 4, temperature: 0.6}", encoding="utf-8")
    words = [f"evaluate.final=[{path},gsm8k]", "evaluate.benchmarks.mine.limit=3", "evaluate.benchmarks.gsm8k.limit=2"]
    evaluate = compose("tiny", "hacpo", overrides=words).evaluate
    assert evaluate.final == ["mine", "gsm8k"]
    mine = evaluate.benchmarks["mine"]
    assert (mine.file, mine.count, mine.num_samples, mine.temperature, mine.limit) == ("mine.jsonl", 9, 4, 0.6, 3)
    assert (evaluate.benchmarks["gsm8k"].count, evaluate.benchmarks["gsm8k"].limit) == (1319, 2)


BAD_BENCHMARKS = {
    "evaluate.during=[maths]": r"evaluate: got 'maths', expected one of aime2025, .*file; did you mean math or math500",
    "evaluate.final=[nope.yaml]": r"evaluate: there is no file /.*nope.yaml; correct the path",
    "evaluate.benchmarks.gsm8k.limit=2": r"limit cannot take effect: gsm8k is neither in evaluate.during nor",
    "evaluate.benchmarks.arithmetic_dev.limt=2": r"arithmetic_dev.limt.*see hacpo fields",
    "evaluate.benchmarks.arithmetic_dev.limit=0": r"arithmetic_dev.limit: got 0, expected a value of at least 1",
    "evaluate.benchmarks.arithmetic_dev.file=f": r"file cannot take effect: .*kind is arithmetic",
    "evaluate.benchmarks.arithmetic_dev.num_samples=9": r"num_samples: got 9 with temperature 0",
    "evaluate.benchmarks.arithmetic_dev.kind=file": r"arithmetic_dev.file: got none; set it to a JSONL or Parquet",
}


def test_bad_benchmark_is_one_sentence_that_names_it() -> None:
    assert sentences(BAD_BENCHMARKS) == []


def test_broken_benchmark_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{file: mine.jsonl, cuont: 9}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cuont \(in benchmark .*mine.yaml\): .*fix the declaration"):
        compose("tiny", "hacpo", overrides=[f"evaluate.final=[{path}]"])


def test_id_hashes_what_a_benchmark_asks_and_not_where_it_lies() -> None:
    def name(*words: str) -> str:
        return experiment_id(compose("tiny", "hacpo", overrides=["evaluate.final=[gsm8k]", *words]), {})

    same = [(), ("evaluate.benchmarks.gsm8k.file=/elsewhere.jsonl",)]
    assert len({name(*words) for words in same}) == 1
    fields = ("limit=5", "temperature=0.5", "style=auto", "max_response_tokens=9", "template='{problem}?'")
    other = [(), *((f"evaluate.benchmarks.gsm8k.{field}",) for field in fields), ("evaluate.during=[]",)]
    assert len({name(*words) for words in other}) == len(other)


def test_field_of_literal_type_describes_each_of_its_values() -> None:
    schemas: list[Any] = [BenchmarkConfig, RetokenizeConfig, VerifierConfig]
    described = {
        f"{schema.__name__}.{field.name}": (get_args(literal), tuple(declaration(field).choices))
        for schema in schemas
        for field in fields(schema)
        for literal in options(get_type_hints(schema)[field.name])
        if get_origin(literal) is Literal
    }
    assert set(described) == {
        "BenchmarkConfig.style",
        "RetokenizeConfig.eos",
        "VerifierConfig.equality",
        "VerifierConfig.style",
    }
    for values, choices in described.values():
        assert values == choices
