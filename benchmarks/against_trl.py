"""A training step of hacpo against one of TRL's GRPOTrainer: same model, prompts, lengths, batch and optimizer.

A callback in TRL's training loop runs a step of ours after each of its own, so both alternate in one process, with the
same threads and allocator. A step is one generation for all prompts and two optimizer updates on half of the rows each.
Neither side uses a verifier or files: the reward is a trivial function of the text.

Usage: python -m benchmarks.against_trl [--rounds N]; writes benchmarks/results/against_trl.json. With --one, both run
on the GPU if there is one, and nothing is written.
"""

import argparse
import contextlib
import gc
import json
import math
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)

from benchmarks.measure import PeakMemory, child, linear_products, median_ratio, write_result
from benchmarks.models import real_model, smollm2_folder
from hacpo_core.algo.advantages import own_baseline, standardise
from hacpo_core.columns import TokenRows
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.data.batches import own_minibatch
from hacpo_core.data.prompts import render_prompts
from hacpo_core.data.tokens.retokenize import decode_response
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.records import Message, SamplingLimits
from hacpo_core.seeds import derive_seed, generator
from hacpo_core.tiny.tokenizers import build_tokenizer

NUM_SAMPLES, NUM_TOKENS, NUM_UPDATES = 8, 40, 2
SMOLLM2 = "SmolLM2-135M"
SIZES = {"0.17 M": (96, 2), "3.7 M": (320, 4)}
"""hidden size and layers of the small models"""
ROUNDS, NUM_PROMPTS = {"0.17 M": 9, "3.7 M": 4, SMOLLM2: 2}, {"0.17 M": 32, "3.7 M": 32, SMOLLM2: 4}
THREADS, LEARNING_RATE = 2, 1e-5
METHODS: dict[str, Objective] = {"grpo": TokenClip(token_low=0.2, token_high=0.2), "gspo": SequenceClip()}
TEXTS = [f"{10 + n}+{40 + n}" for n in range(max(NUM_PROMPTS.values()))]
TRL_LEVEL = {"grpo": "token", "gspo": "sequence"}


def reward(text: str, response: str) -> float:
    """1 or 0; for half of the problems the same for all responses, which then have zero advantage."""
    problem = int(text.partition("+")[0]) - 10
    chance = float(problem % 4 == 0) if problem % 2 == 0 else 0.5
    return float(zlib.crc32(response.encode()) % 1000 < 1000 * chance)


def model_of(size: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A model whose vocabulary excludes the EOS token, so that all responses have full length on both sides."""
    if size == SMOLLM2:
        model = real_model(SMOLLM2)
        assert model is not None, "main() leaves it out where it cannot be had"
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        return model
    width, layers = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=tokenizer.eos_token_id,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def tokenizer_of(size: str) -> Any:
    """The model's tokenizer, for small ones that of characters, with a new EOS as its last token."""
    is_small = size != SMOLLM2
    tokenizer: Any = build_tokenizer("character") if is_small else AutoTokenizer.from_pretrained(smollm2_folder())
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    assert tokenizer.eos_token_id == len(tokenizer) - 1
    return tokenizer


class Split:
    """Time of a step by part, s."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to a part."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def take(self, whole: float) -> dict[str, float]:
        """Times since the last call; the update is the rest of `whole`, without sampling and scoring."""
        measured = {name: self.seconds.pop(name, 0.0) for name in ("sampling", "logprobs")}
        return {**measured, "update": whole - sum(measured.values()), "step": whole}


class Ours:
    """A step of hacpo for one agent, without store, verifier and flow."""

    def __init__(self, size: str, objective: Objective, *, skips: bool, reuses: bool, device: str = "cpu") -> None:
        self.tokenizer, self.objective, self.reuses, self.split = tokenizer_of(size), objective, reuses, Split()
        self.num_prompts = NUM_PROMPTS[size]
        engine = EngineConfig(num_threads=THREADS, skip_zero_advantage=skips, device=device)
        self.model = model_of(size, self.tokenizer).to(device)  # type: ignore[arg-type]
        optimizer = OptimizerConfig(learning_rate=LEARNING_RATE)
        self.learner = TorchLearner(
            self.model, optimizer=optimizer, engine=engine, temperature=1.0, total_updates=10**6
        )
        self.eos_ids = frozenset({int(self.tokenizer.eos_token_id)})
        self.sampler = TransformersSampler(
            self.model, eos_ids=self.eos_ids, pad_id=int(self.tokenizer.pad_token_id), batch_size=256
        )
        self.prompts = render_prompts(self.tokenizer, [(Message("user", text),) for text in TEXTS[: self.num_prompts]])
        self.num_skipped = 0.0

    def step(self, number: int) -> dict[str, float]:
        """Sample, score, update twice."""
        started = time.perf_counter()
        with self.split.part("sampling"):
            owners = [(p, i) for p in range(self.num_prompts) for i in range(NUM_SAMPLES)]
            requests = [SampleRequest(self.prompts[p], derive_seed(0, "rollout", number, p, i)) for p, i in owners]
            sampled = self.sampler.sample(requests, SamplingLimits(1.0, 1.0, NUM_TOKENS))
        rows = TokenRows.of([request.prompt_ids for request in requests], sampled.token_ids)
        with self.split.part("logprobs"):
            old = sampled.logprobs if self.reuses else self.learner.logprobs(rows)
        texts = [decode_response(self.tokenizer, ids.tolist()) for ids in sampled.token_ids]
        reward_PAG = torch.tensor(
            [reward(TEXTS[p], text) for (p, _), text in zip(owners, texts, strict=True)], dtype=torch.float64
        ).reshape(self.num_prompts, 1, NUM_SAMPLES)
        is_scored_PAG = torch.ones_like(reward_PAG, dtype=torch.bool)
        advantage_PAG = standardise(reward_PAG, is_scored_PAG, own_baseline(reward_PAG, is_scored_PAG))
        advantage_R = advantage_PAG.flatten().numpy()
        order = generator(0, "minibatch", number).permutation(self.num_prompts)
        shuffled = (order[:, None] * NUM_SAMPLES + np.arange(NUM_SAMPLES)).ravel()
        minibatches = [
            own_minibatch(rows.take(part), old.take(part), advantage_R[part], self.objective)
            for part in np.array_split(shuffled, NUM_UPDATES)
        ]
        outcome = self.learner.update(minibatches, self.objective)
        self.num_skipped = sum(m.num_skipped for m in outcome.minibatches) / len(owners)
        return self.split.take(time.perf_counter() - started)


def train_with_trl(
    size: str, method: str, split: Split, *, num_steps: int, after: Callable[[int], None], device: str = "cpu"
) -> None:
    """Train with TRL, without its defaults that hacpo does not use: gradient checkpointing, bf16, logging.

    Args:
        size: key of SIZES.
        method: key of METHODS.
        split: records the time of sampling and scoring.
        num_steps: number of training steps.
        after: called after each step.
        device: cpu or cuda.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """Measures sampling and scoring."""

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            with split.part("sampling"):
                return super()._generate(*args, **kwargs)

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)
            with split.part("logprobs"):
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    class EachStep(TrainerCallback):
        """Calls `after` between two steps of TRL."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % NUM_UPDATES == 0:
                after(state.global_step // NUM_UPDATES)

    def rewards(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        return [reward(p[0]["content"], c[0]["content"]) for p, c in zip(prompts, completions, strict=True)]

    tokenizer, num_prompts = tokenizer_of(size), NUM_PROMPTS[size]
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=num_prompts * NUM_SAMPLES // NUM_UPDATES,
            gradient_accumulation_steps=1,
            steps_per_generation=NUM_UPDATES,
            num_generations=NUM_SAMPLES,
            max_completion_length=NUM_TOKENS,
            max_steps=NUM_UPDATES * num_steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            importance_sampling_level=TRL_LEVEL[method],
            loss_type="grpo",
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=device == "cpu",
            report_to=[],
            logging_steps=10**6,
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        prompts = [{"prompt": [{"role": "user", "content": text}]} for text in TEXTS[:num_prompts]]
        trainer = Timed(
            model=model_of(size, tokenizer),
            reward_funcs=rewards,
            args=args,
            train_dataset=Dataset.from_list(prompts),
            processing_class=tokenizer,
            callbacks=[EachStep()],
        )
        trainer.train()


class Way(TypedDict):
    """skips: leave out rows with zero advantage; reuses: use the sampled log-probabilities, after checking a few."""

    skips: bool
    reuses: bool


WAYS: dict[str, Way] = {
    "equal rows and passes": {"skips": False, "reuses": False},
    "equal rows": {"skips": False, "reuses": True},
    "as shipped": {"skips": True, "reuses": True},
}


def seconds_of_products(ours: Ours) -> float:
    """Time of the linear layers' matrix products alone, for the updates of a step on all rows, s."""
    num_tokens = NUM_SAMPLES * sum(len(prompt) + NUM_TOKENS - 1 for prompt in ours.prompts)
    multiply = linear_products(ours.model, num_tokens // NUM_UPDATES, has_gradients=True)
    started = time.perf_counter()
    for _ in range(NUM_UPDATES):
        multiply()
    return time.perf_counter() - started


def compare(size: str, method: str, rounds: int, device: str = "cpu") -> dict[str, Any]:
    """Median times of each part, for TRL and each of WAYS, and ratios of TRL's step to ours."""
    ours = {name: Ours(size, METHODS[method], **way, device=device) for name, way in WAYS.items()}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in ["trl", *ours]}
    started, split, products_s = [time.perf_counter()], Split(), list[float]()

    def after(number: int) -> None:
        whole = time.perf_counter() - started[0]
        measured["trl"].append(split.take(whole))
        for name, variant in ours.items():
            measured[name].append(variant.step(number))
        products_s.append(seconds_of_products(ours["equal rows"]) if device == "cpu" else math.nan)
        started[0] = time.perf_counter()

    train_with_trl(size, method, split, num_steps=rounds + 1, after=after, device=device)
    medians = {
        name: {part: statistics.median(step[part] for step in taken[1:]) for part in taken[0]}
        for name, taken in measured.items()
    }
    steps = {name: [step["step"] for step in taken[1:]] for name, taken in measured.items()}
    ratios = {name: median_ratio(steps["trl"], steps[name]) for name in ours}
    return {
        "seconds": medians,
        "trl_over_ours": ratios,
        "products_of_update_s": statistics.median(products_s[1:]),
        "weights": sum(p.numel() for p in ours["equal rows"].model.parameters()),
        "skipped_share": ours["as shipped"].num_skipped,
    }


def peak_mb(size: str, method: str, who: str) -> float:
    """Peak memory of three steps in a fresh process, beyond that of the imports, MiB."""
    import trl  # noqa: F401  so that both sides have the same imports

    gc.collect()
    peak = PeakMemory()
    if who == "trl":
        train_with_trl(size, method, Split(), num_steps=3, after=lambda _: None)
    else:
        ours = Ours(size, METHODS[method], **WAYS[who])
        for number in range(3):
            ours.step(number)
    return peak.mb()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "METHOD"))
    parser.add_argument("--memory-of", default="")
    parser.add_argument("--rounds", type=int, help=f"steps after an uncounted first one; default: {ROUNDS}")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    rounds = ROUNDS if arguments.rounds is None else dict.fromkeys(ROUNDS, arguments.rounds)
    if arguments.one:
        size, method = arguments.one
        memory_of = arguments.memory_of
        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(
            json.dumps(peak_mb(size, method, memory_of) if memory_of else compare(size, method, rounds[size], device))
        )
        return
    results = []
    cases = [(size, method) for size in SIZES for method in ("grpo", "gspo")]
    if smollm2_folder() is not None:
        cases.append((SMOLLM2, "gspo"))
    for size, method in cases:
        words = ["--one", size, method]
        row = {"size": size, "method": method, **child("against_trl", *words, "--rounds", str(rounds[size]))}
        if size in SIZES:
            row["peak_mb"] = {
                who: child("against_trl", *words, "--memory-of", who) for who in ("trl", "equal rows", "as shipped")
            }
        results.append(row)
        print(json.dumps(row), flush=True)
    shape = {"prompts": NUM_PROMPTS, "samples": NUM_SAMPLES, "tokens": NUM_TOKENS, "updates": NUM_UPDATES}
    title = {"step": shape, "threads": THREADS, "rounds": rounds, "dtype": "float32"}
    write_result("against_trl", title | {"results": results}, ["trl", "torch", "transformers"])


if __name__ == "__main__":
    main()
