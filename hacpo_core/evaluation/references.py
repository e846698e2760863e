"""Reference solutions under an agent: a figure that compares agents with different tokenizers.

    solution ─agent's tokens─▶ behind the agent's chat prompt ─training engine─▶ log-probabilities ─▶ bits
                                                                                 UTF-8 of the text ─▶ bytes

Shapes: P problem, N token of one solution, R solution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pyarrow

from hacpo_core.columns import Ragged
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.data.rows import warn_once
from hacpo_core.engines.models.loading import length_limits
from hacpo_core.evaluation.results import is_done, score_phase
from hacpo_core.experiment import Experiment
from hacpo_core.phases.agent_at import agent_at
from hacpo_core.records import PhaseCost
from hacpo_core.responses import ORDINARY, Responses


def reference_texts(benchmark: Benchmark) -> list[str]:
    """The solution of each problem, without white space around it."""
    return [problem.solution.strip() for problem in benchmark.problems]


def score_references(experiment: Experiment, step: int, agent: str, benchmark: Benchmark, *, digest: str) -> None:
    """Commit how many bits an agent needs for each reference solution of a benchmark, and the solution's bytes.

        bits[p] = - sum_n log2 pi(token n of solution p | chat prompt of p, earlier tokens),   at temperature 1

    The end-of-turn token is not scored: it is no part of the text, and an agent may end its turn with any of several
    tokens. Bytes are those of the text alone. An unknown token, of a tokenizer that cannot spell every text, counts as
    any other token, which makes the text look shorter than it is.

    Solutions that are empty, or too long for the model's positions with their prompts, are left out (nan bits); their
    number is logged once. All of a benchmark are scored together, so that bits depend on no size of shards.

    Args:
        experiment, step, agent, benchmark: the evaluation.
        digest: of its problems and settings.
    """
    store, phase = experiment.ledger.store, score_phase(benchmark.name, agent)
    if is_done(store, step, phase, digest):
        return
    tokens, texts = experiment.placement.tokenizers[agent], reference_texts(benchmark)
    tokens.render(benchmark.problems)
    prompts = [tokens.prompt_ids(problem) for problem in benchmark.problems]
    solutions = tokens.response_ids(texts)
    scored = _places_to_score(experiment, agent, benchmark, prompts, solutions)
    responses = Responses(
        step=step,
        agent=agent,
        problem_id=tuple(benchmark.problems[place].id for place in scored),
        sample_R=np.zeros(len(scored), np.int64),
        tag=(ORDINARY,) * len(scored),
        policy_version_R=np.full(len(scored), step),
        prompt_ids=Ragged.of([prompts[place] for place in scored], np.int32),
        token_ids=Ragged.of([solutions[place] for place in scored], np.int32),
        logprobs=Ragged.of([[0.0] * len(solutions[place]) for place in scored], np.float32),  # placeholders
        text=tuple(texts[place] for place in scored),
        finish_reason=("stop",) * len(scored),
    )
    bits_P, cost = np.full(len(texts), np.nan), PhaseCost(0.0)
    if scored:
        with agent_at(experiment, agent, step) as (placed, watch):
            logprobs = placed.score(responses, temperature=1.0)
        cost = watch.cost()
        bits_P[scored] = [-logprob_N.sum(dtype=np.float64) / math.log(2) for logprob_N in logprobs]
    table = {
        "problem_id": [problem.id for problem in benchmark.problems],
        "num_bytes": [len(text.encode()) for text in texts],
        "num_tokens": [len(ids) for ids in solutions],
        "bits": pyarrow.array(bits_P, from_pandas=True),
    }
    store.commit(step, phase, {f"{phase}.parquet": table, f"{phase}.json": {"digest": digest, "cost": asdict(cost)}})


def _places_to_score(
    experiment: Experiment,
    agent: str,
    benchmark: Benchmark,
    prompts: Sequence[Sequence[int]],
    solutions: Sequence[Sequence[int]],
) -> list[int]:
    """Positions of the problems whose solution is scored; a warning counts the others."""
    limits = length_limits(experiment.placement.folder(agent))
    room = min([limit for limit in (limits.positions, limits.hard) if limit is not None], default=math.inf)
    filled = [place for place, ids in enumerate(solutions) if len(ids)]
    fitting_places = [place for place in filled if len(prompts[place]) + len(solutions[place]) <= room]
    num_empty, num_long = len(solutions) - len(filled), len(filled) - len(fitting_places)
    if num_empty or num_long:
        reasons = {"empty": num_empty, f"longer than the model's {room} positions with the prompt": num_long}
        warn_once(
            f"benchmark {benchmark.name}, agent {agent}: {num_empty + num_long} of {len(solutions)} reference "
            "solutions are left out of bits_per_byte: "
            + ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        )
    return fitting_places
