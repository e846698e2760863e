"""What README.md and docs/architecture.md show fits the code."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

from flows.planning.compose import compose
from flows.planning.declarations import available
from hacpo_core.config import as_dict, flatten

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_pair_of_the_readme_sets_default_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```yaml\n(pair:\n.*?)```", README, re.DOTALL)
    assert found is not None
    (tmp_path / "my_pair.yaml").write_text(found[1], encoding="utf-8")
    bare = re.sub(r"^  objective: .*\n", "", found[1], flags=re.MULTILINE)
    (tmp_path / "bare.yaml").write_text(bare, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = flatten(as_dict(compose("my_pair.yaml", "hacpo")))
    shown = yaml.safe_load(found[1])
    default = flatten(as_dict(compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo")))
    numbers = {f"{part}.{name}" for part in ("train", "rollout", "optimizer") for name in shown[part]}
    numbers.add("method.build.problems")
    assert {name: config[name] for name in numbers} == {name: default[name] for name in numbers}
    assert bare != found[1] and flatten(as_dict(compose("bare.yaml", "hacpo"))) == config


def test_readme_names_every_hardware_file_and_every_default_benchmark() -> None:
    listed = set(re.findall(r"`(\w+)`", README))
    assert {name for name in available("hardware") if not name.startswith("_")} <= listed
    final = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo").evaluate.final
    names = {"math500": "MATH-500", "math": "MATH", "gsm8k": "GSM8K", "aime2025": "AIME 2025", "amc23": "AMC 2023"}
    names |= {"minerva": "Minerva", "olympiadbench": "OlympiadBench"}
    assert set(final) == set(names)
    assert all(name in README for name in names.values())


def equations(text: str) -> set[int]:
    """Numbers in a text such as "5, 11-13"."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_equation_is_in_the_table_with_functions_whose_docstrings_name_it() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([\d, ]+) \| (`(?:algo|engines)\..*`) \|$", ARCHITECTURE, re.MULTILINE)
    assert set().union(*(equations(numbers) for numbers, _ in rows)) == equations("5-14, 47-53")
    for numbers, names in rows:
        named = set()
        for module, function in re.findall(r"`([\w.]+)\.(\w+)`", names):
            described = getattr(importlib.import_module(f"hacpo_core.{module}"), function).__doc__
            for source in re.findall(r"Eq\. (\d[\d, -]*)", described.partition("Source:")[2]):
                named |= equations(source)
        assert equations(numbers) <= named, names


def test_files_from_sampler_to_loss_exist_and_are_at_most_forty() -> None:
    section = ARCHITECTURE.partition("| folder of `hacpo_core` | files |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `?([\w/()]+)`? \| (`.*`) \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| "), "every row is read"
    files = [
        f"{'' if folder == '(itself)' else folder + '/'}{name}.py"
        for folder, names in rows
        for name in re.findall(r"`([\w/]+)`", names)
    ]
    assert len(set(files)) == len(files) <= 40
    assert [file for file in files if not (ROOT / "hacpo_core" / file).is_file()] == []


def test_types_from_sampler_to_loss_are_defined_where_the_table_says() -> None:
    section = ARCHITECTURE.partition("## A response, from sampler to loss")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]*\| (`\w+`[^|]*) \| `([\w/]+\.py)` \|$", section, re.MULTILINE)
    assert len(rows) == section.count(".py` |"), "every row is read"
    types = [(name, file) for names, file in rows for name in re.findall(r"`(\w+)`", names)]
    assert len({name for name, _ in types}) == len(types), "each stands once"
    before_the_sampler = [name for name, _ in types].index("Sampled")
    said = re.search(r"seven before the sampler, and (\d+)\s+from it to the loss", section)
    assert said is not None and (before_the_sampler, int(said[1])) == (7, len(types) - 7)
    assert len(types) - before_the_sampler <= 30
    for name, file in types:
        source = (ROOT / "hacpo_core" / file).read_text(encoding="utf-8")
        assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{name} is not defined in {file}"
