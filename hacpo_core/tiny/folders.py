"""Folders of tiny models and the marks of their chat templates; needs neither torch nor transformers."""

from dataclasses import asdict
from pathlib import Path

from hacpo_core.config import TinyModelConfig, digest_of

RECIPE_VERSION = 2
"""Raise it when the same configuration would give a different model, so that old caches are not used."""

TEMPLATE_MARKS = {
    "character": ("<|user|>", "<|assistant|>", "<|end|>"),
    "merged": ("<|begin|>", "<|answer|>", "<|eot|>"),
    "word": ("[Q]", "[A]", "[END]"),
    "byte": ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
}
"""of each tokenizer: the tokens before a question and an answer, and the one that ends a response; every kind has its
own chat template, as model families do"""


def tiny_model_folder(config: TinyModelConfig, cache: Path) -> Path:
    """Folder of the model with this configuration, which may not exist yet."""
    digest = digest_of({"recipe": RECIPE_VERSION, **asdict(config)})
    return cache / f"{config.family}-{config.tokenizer}-{digest[:10]}"
