"""Sections of the configuration about agents: the source of each agent's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hacpo_core.config.fields import setting
from hacpo_core.config.problems import TEMPLATE


@dataclass(frozen=True)
class WarmupConfig:
    """Supervised warm-up of a tiny model on noisy demonstrations."""

    num_demonstrations: int = setting(16000, "demonstrations, each with misconceptions of its own", at_least=1)
    steps: int = setting(650, "optimizer steps; 0 leaves the weights random", at_least=0)
    batch_size: int = setting(64, "demonstrations per step", at_least=1)
    learning_rate: float = setting(4e-3, "peak learning rate of a cosine schedule", above=0, at_most=1e3)
    misconceptions: list[float] = setting(
        lambda: [0.0, 0.0, 0.0],
        "probabilities that a demonstration ignores parentheses, drops the minus sign of results, or forgets the last "
        "operand",
    )
    seed: int = setting(0, "seed of the initial weights and of the demonstrations")


@dataclass(frozen=True)
class TinyModelConfig:
    """A model created on this machine: an architecture of transformers at toy size."""

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
    num_layers: int = setting(2, "transformer blocks", at_least=1, at_most=1e4)
    num_heads: int = setting(4, "query heads", at_least=1, at_most=1e4)
    num_kv_heads: int = setting(2, "key and value heads; must divide num_heads", at_least=1, at_most=1e4)
    max_positions: int = setting(128, "longest sequence", unit="tokens", at_least=1, at_most=1e7)
    warmup: WarmupConfig = setting(WarmupConfig, "supervised warm-up before training")


@dataclass(frozen=True)
class WeakWarmupConfig:
    """Supervised warm-up against an earlier, weaker checkpoint of the same model, before reinforcement learning (WMSS).

    An example is drawn with a probability proportional to gain_weight [-dH]+ + entropy_weight H + loss_weight [dH]+. H
    is the mean entropy of its solution's tokens, dH the increase in H since the weak checkpoint.
    """

    weak: str = setting("", "model folder of the weak checkpoint", identity=False)
    file: str = setting(
        "", "JSONL or Parquet with problems and worked solutions, by its path in data.directory", identity=False
    )
    problem_field: str = setting("problem", "column of the problem's text")
    solution_field: str = setting("solution", "column of the worked solution, the target text")
    template: str = setting(TEMPLATE, "user message; {problem} is replaced by the problem's text")
    system: str | None = setting(None, "system message; null: none")
    num_steps: int = setting(200, "optimizer steps", unit="steps", at_least=1)
    batch_size: int = setting(32, "examples per step, drawn with replacement", at_least=1)
    learning_rate: float = setting(
        1e-5,
        "peak learning rate; linear warm-up over a tenth of the steps, then cosine decay",
        above=0,
        at_most=1e3,
    )
    mix: float = setting(
        0.5, "lambda: share of the model's own logits in the mixed logits; 1: no weak logits", above=0, at_most=1
    )
    gain_weight: float = setting(
        0.2, "alpha: weight of a decrease in entropy since the weak checkpoint", at_least=0, at_most=1e6
    )
    entropy_weight: float = setting(0.5, "beta: weight of the current entropy", at_least=0, at_most=1e6)
    loss_weight: float = setting(
        0.3, "gamma: weight of an increase in entropy since the weak checkpoint", at_least=0, at_most=1e6
    )
    max_tokens: int = setting(
        4096,
        "longest example, prompt and solution together; longer ones are left out and counted",
        unit="tokens",
        at_least=2,
    )
    micro_batch_tokens: int = setting(
        8192, "most tokens (padding included) in one forward and backward pass", unit="tokens", at_least=1
    )
    seed: int = setting(0, "seed of the examples' order", at_least=0, at_most=2**53)


@dataclass(frozen=True)
class AgentConfig:
    """Source of an agent's model: a Hugging Face model folder or a tiny model created here, exactly one of them."""

    path: str | None = setting(
        None, "local folder (config.json, *.safetensors, tokenizer) or a name on the Hugging Face hub", identity=False
    )
    tiny: TinyModelConfig | None = setting(None, "tiny model that is created here")
    chat_template: str | None = setting(None, "Jinja template that replaces the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = setting(
        dict,
        "arguments of the chat template for every prompt of this agent, such as enable_thinking: false; an argument "
        "set to null is not passed",
    )
    weak_warmup: WeakWarmupConfig | None = setting(
        None, "supervised warm-up against a weak checkpoint, before training; null: none", added_later=True
    )
    trust_remote_code: bool = setting(False, "run Python code from the model folder")
    num_ranks: int | None = setting(
        None, "ranks (processes) of this agent; null: placement.num_ranks", at_least=1, at_most=4096, identity=False
    )


@dataclass(frozen=True)
class PairConfig:
    """The agents that train together: one or more, despite the name."""

    name: str = setting("unnamed", "name of the pair, the readable part of the experiment's id", identity=False)
    agents: dict[str, AgentConfig] = setting(dict, "agents by name, in order")
