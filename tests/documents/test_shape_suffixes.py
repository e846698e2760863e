"""Names like reward_PAG say their shape, and the docstring of each file with such names explains the letters."""

import ast
import re
from pathlib import Path

NAME = re.compile(r"[a-z_][a-z0-9_]*_([A-Z1]+)")
LEGEND = re.compile(r"^Shapes: ((?:.+\n?)+)", re.MULTILINE)
OTHERS_NAMES = {"lora_A", "lora_B"}
"""peft's"""


def suffix_letters(tree: ast.Module) -> set[str]:
    names = {getattr(node, field, None) for node in ast.walk(tree) for field in ("id", "attr", "arg")}
    matches = [NAME.fullmatch(name) for name in names - OTHERS_NAMES if isinstance(name, str)]
    return {letter for match in matches if match for letter in match[1] if letter != "1"}


def test_each_file_explains_the_shape_suffixes_of_its_names() -> None:
    unexplained = {}
    paths = [path for folder in ("hacpo_core", "flows", "experiments") for path in Path(folder).rglob("*.py")]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if not re.search(r"[a-z0-9]_[A-Z1]+\b", text):
            continue
        tree = ast.parse(text)
        legend = LEGEND.search(ast.get_docstring(tree) or "")
        letters = suffix_letters(tree) - set(re.findall(r"\b[A-Z]\b", legend[1] if legend else ""))
        if letters:
            unexplained[str(path)] = sorted(letters)
    assert unexplained == {}
    assert len(paths) > 250, "run from the repository's root"


def test_letters_are_read_from_parameters_attributes_and_locals() -> None:
    source = "def f(reward_PAG, x):\n    self.mask_BT = difference_N\n    lora_A = block_C1 = CONSTANT_X"
    assert suffix_letters(ast.parse(source)) == set("PAGBTNC")
