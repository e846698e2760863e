"""Sections of the configuration about agents: the source of each agent's model."""

from dataclasses import dataclass
from typing import Any

from hacpo_core.config.fields import setting, unless
from hacpo_core.config.problems import TEMPLATE

MAX_LAYERS = 10_000
"""most decoder layers of a model"""


@dataclass(frozen=True)
class TinyModelConfig:
    """A model created on this machine with random weights: an architecture of transformers at toy size."""

    family: str = setting("qwen3", "architecture", choices=("qwen3", "llama", "gpt_neox"))
    tokenizer: str = setting(
        "character",
        "vocabulary of the tokenizer",
        choices={
            "character": "single characters",
            "merged": "numbers and phrases as single tokens",
            "word": "numbers up to 99 and words",
            "byte": "any text",
        },
    )
    hidden_size: int = setting(96, "width of the residual stream", at_least=1, at_most=1e5)
    num_layers: int = setting(2, "transformer blocks", at_least=1, at_most=MAX_LAYERS)
    num_heads: int = setting(4, "query heads", at_least=1, at_most=1e4)
    num_kv_heads: int = setting(2, "key and value heads; must divide num_heads", at_least=1, at_most=1e4)
    max_positions: int = setting(128, "longest sequence", unit="tokens", at_least=1, at_most=1e7)
    seed: int = setting(0, "seed of the initial weights", at_least=0, at_most=2**53)


_NOT_WEAK_DRIVEN = unless(".kind", "weak_driven")


@dataclass(frozen=True)
class WarmUpConfig:
    """Supervised training of an agent's model on worked solutions, before reinforcement learning.

    The warmed-up model is made once and cached in <runtime.runs_dir>/models. Examples of more than 4,096 tokens, or of
    more than the model takes, are left out and counted. With kind weak_driven (WMSS), the loss is that of logits mixed
    with an earlier, weaker checkpoint's, and an example is drawn with a probability that depends on the entropy of its
    solution (`hacpo_core.warm_up.training`).
    """

    kind: str = setting(
        "sft",
        "what is trained",
        choices={
            "sft": "cross-entropy of the solutions' tokens; every epoch is shuffled anew",
            "weak_driven": "the same against an earlier, weaker checkpoint (WMSS)",
        },
    )
    source: str = setting(
        "file",
        "where the solutions come from",
        choices={
            "file": "a file of the data folder",
            "word_problems": "the embedded word problems, training split",
            "letters": "embedded counts of a letter in words of 3 to 6 letters, training split",
            "long_letters": "the same in words of 5 to 20 letters, training split",
            "arithmetic": "demonstrations of the embedded sums, training split, with misconceptions",
        },
    )
    file: str = setting(
        "", "JSONL or Parquet with problems and worked solutions, by its path in data.directory", identity=False
    )
    problem_field: str = setting("problem", "column of the problem's text")
    solution_field: str = setting("solution", "column of the worked solution, the target text")
    num_demonstrations: int = setting(
        16000, "demonstrations of arithmetic, each with misconceptions of its own", at_least=1
    )
    misconceptions: list[float] = setting(
        lambda: [0.0, 0.0, 0.0],
        "probabilities that a demonstration ignores parentheses, drops the minus sign of results, or forgets the last "
        "operand",
    )
    spaces: list[float] = setting(
        lambda: [0.0, 0.0],
        "probabilities that an equals sign or an end of a line in a demonstration has a space before it, or behind it",
    )
    template: str = setting(TEMPLATE, "user message; {problem} is replaced by the problem's text", contains="{problem}")
    system: str | None = setting(None, "system message; null: none")
    num_steps: int = setting(200, "optimizer steps", unit="steps", at_least=1)
    batch_size: int = setting(32, "examples per step", at_least=1)
    learning_rate: float = setting(
        1e-5, "peak learning rate; linear warm-up over a tenth of the steps, then cosine decay", above=0, at_most=1e3
    )
    seed: int = setting(0, "seed of the examples' order", at_least=0, at_most=2**53)
    weak: str = setting("", "model folder of the weak checkpoint", identity=False, inert=_NOT_WEAK_DRIVEN)


@dataclass(frozen=True)
class AgentConfig:
    """Source of an agent's model: a model that exists or a tiny one created here, exactly one of them."""

    path: str | None = setting(
        None,
        "local folder (config.json, *.safetensors, tokenizer), name on the Hugging Face hub, .gguf file, or file in an "
        "installed package, as package:NAME/FILE",
        identity=False,
    )
    tiny: TinyModelConfig | None = setting(None, "tiny model that is created here")
    chat_template: str | None = setting(None, "Jinja template that replaces the tokenizer's own, or a file with it")
    chat_template_kwargs: dict[str, Any] = setting(
        dict,
        "arguments of the chat template for every prompt of this agent, such as enable_thinking: false; an argument "
        "set to null is not passed",
    )
    warm_up: WarmUpConfig | None = setting(None, "supervised warm-up before training; null: none")
    num_ranks: int | None = setting(
        None, "ranks (processes) of this agent; null: placement.num_ranks", at_least=1, at_most=4096, identity=False
    )
    recomputed_layers: int | None = setting(
        None,
        "decoder layers of this agent whose activations are recomputed; null: engine.gradient_checkpointing",
        at_least=0,
        at_most=MAX_LAYERS,
        identity=False,
    )


@dataclass(frozen=True)
class TeamConfig:
    """The agents that train together: one or more; the section `pair`."""

    name: str = setting("unnamed", "name of the pair, the readable part of the experiment's id", identity=False)
    agents: dict[str, AgentConfig] = setting(dict, "agents by name, in order")
