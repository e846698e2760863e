"""Sections of the configuration about agents: where each one's model comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hacpo_core.config.fields import setting
from hacpo_core.config.problems import TEMPLATE


@dataclass(frozen=True)
class WarmupConfig:
    """Supervised warm-up of an embedded agent on noisy demonstrations."""

    num_demonstrations: int = setting(16000, "demonstrations drawn, each with its own misconceptions", at_least=1)
    steps: int = setting(650, "optimizer steps; 0 leaves the weights random", at_least=0)
    batch_size: int = setting(64, "demonstrations per step", at_least=1)
    learning_rate: float = setting(4e-3, "peak of a cosine schedule", above=0, at_most=1e3)
    misconceptions: list[float] = setting(
        lambda: [0.0, 0.0, 0.0],
        "probability per demonstration of ignoring parentheses, of dropping the minus sign of results, and of "
        "forgetting the last operand",
    )
    seed: int = setting(0, "seed of the initial weights and of the demonstrations")


@dataclass(frozen=True)
class TinyModelConfig:
    """A model that is made on this machine: transformers' own classes at toy size."""

    family: str = setting("qwen3", "class of the model", choices=("qwen3", "llama", "gpt_neox"))
    tokenizer: str = setting(
        "character",
        "vocabulary of the tokenizer",
        choices={
            "character": "single characters",
            "merged": "numbers and phrases as single tokens",
            "word": "numbers to 99 and words",
            "byte": "any text",
        },
    )
    hidden_size: int = setting(96, "width of the residual stream", at_least=1, at_most=1e5)
    num_layers: int = setting(2, "transformer blocks", at_least=1, at_most=1e4)
    num_heads: int = setting(4, "query heads", at_least=1, at_most=1e4)
    num_kv_heads: int = setting(2, "key and value heads, divides num_heads", at_least=1, at_most=1e4)
    max_positions: int = setting(128, "longest sequence", unit="tokens", at_least=1, at_most=1e7)
    warmup: WarmupConfig = setting(WarmupConfig, "supervised warm-up before training")


@dataclass(frozen=True)
class WeakWarmupConfig:
    """Supervised warm-up against an earlier, weaker checkpoint of the same model, before reinforcement learning (WMSS).

    An example is drawn by gain_weight [-dH]+ + entropy_weight H + loss_weight [dH]+, where H is the mean entropy of its
    solution's tokens, and dH what it has grown by since the weak checkpoint.
    """

    weak: str = setting("", "model folder of the weak checkpoint", identity=False)
    file: str = setting(
        "", "JSONL or Parquet with problems and worked solutions, by its path in data.directory", identity=False
    )
    problem_field: str = setting("problem", "column of the problem's text")
    solution_field: str = setting("solution", "column of the text that is learned")
    template: str = setting(TEMPLATE, "the user's message; {problem} is replaced")
    system: str | None = setting(None, "the system's message; null: none")
    num_steps: int = setting(200, "optimizer steps", unit="steps", at_least=1)
    batch_size: int = setting(32, "examples per step, drawn with replacement", at_least=1)
    learning_rate: float = setting(
        1e-5, "peak; a linear rise over a tenth of the steps, then a cosine", above=0, at_most=1e3
    )
    mix: float = setting(
        0.5, "lambda: the model's own share of the fused logits; 1: none of the weak one's", above=0, at_most=1
    )
    gain_weight: float = setting(0.2, "alpha: weight of what the model has become surer of", at_least=0, at_most=1e6)
    entropy_weight: float = setting(0.5, "beta: weight of what the model is unsure of", at_least=0, at_most=1e6)
    loss_weight: float = setting(
        0.3, "gamma: weight of what the model has become less sure of", at_least=0, at_most=1e6
    )
    max_tokens: int = setting(
        4096, "an example with more, prompt and solution together, is left out and counted", unit="tokens", at_least=2
    )
    micro_batch_tokens: int = setting(
        8192, "most tokens (padding included) in one forward and backward pass", unit="tokens", at_least=1
    )
    seed: int = setting(0, "seed of which examples are drawn", at_least=0, at_most=2**53)


@dataclass(frozen=True)
class AgentConfig:
    """Where one agent comes from: a Hugging Face model folder, or a tiny model made here. Exactly one of the two."""

    path: str | None = setting(
        None, "local folder (config.json, *.safetensors, tokenizer) or a hub name", identity=False
    )
    tiny: TinyModelConfig | None = setting(None, "model that is made here")
    chat_template: str | None = setting(None, "Jinja template that replaces the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = setting(
        dict,
        "names that the chat template reads, and their values, for every prompt of this agent "
        "(enable_thinking: false); null: not handed over",
    )
    weak_warmup: WeakWarmupConfig | None = setting(
        None, "supervised warm-up against a weak checkpoint, before training; null: none", added_later=True
    )
    trust_remote_code: bool = setting(False, "run Python code that lies in the model folder")
    num_ranks: int | None = setting(
        None, "processes of this agent; null: placement.num_ranks", at_least=1, at_most=4096, identity=False
    )


@dataclass(frozen=True)
class PairConfig:
    """The agents that train together, one or more."""

    name: str = setting("unnamed", "name of the pair, a part of the experiment's id for people to read", identity=False)
    agents: dict[str, AgentConfig] = setting(dict, "agents by name; the order is the agents' order")
