"""Time and memory of a step's responses on their way from the sampler to the loss, without the model.

128 problems x 8 responses x 4,096 random tokens of one agent: from the sampler's tensors to a table, through pickle (as
with Ray), into the step store and back, into mini-batches, through pickle again, into the tensors of the passes.

Usage: python -m benchmarks.studies.data_path; writes benchmarks/results/data_path.json.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import child, write_result
from hacpo_core.columns import Ragged
from hacpo_core.data.batches import RowReader, learner_batch
from hacpo_core.engines.base import Sampled
from hacpo_core.engines.layouts import forward_passes
from hacpo_core.methods.base import Carried, Estimate, History
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.records import PhaseCost, Verdict
from hacpo_core.responses import Responses, Verdicts
from hacpo_core.store.ledger import Ledger, SampledBatch, VerifiedBatch
from hacpo_core.store.steps import StepStore

PROBLEMS, SAMPLES, TOKENS, PROMPT_TOKENS = 128, 8, 4096, 200
VOCABULARY = 150_000
BEFORE = {
    "seconds": {
        "sampler": 0.49,
        "pickle and unpickle": 0.53,
        "save": 0.77,
        "load": 0.45,
        "mini-batches": 0.04,
        "pickle and unpickle mini-batches": 0.50,
        "tensors of passes": 0.93,
        "total": 3.71,
    },
    "peak_gib": 0.97,
}
"""the same measurement with rows as objects that hold tuples (commit 1dcfa84), on a machine of the same type"""


def measure() -> dict[str, object]:
    """Time of each part, s, and peak memory beyond that at the start, GiB."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    num_rows = PROBLEMS * SAMPLES
    token_BT = torch.from_numpy(random.integers(0, VOCABULARY, (num_rows, TOKENS)))
    logprob_BT = torch.from_numpy(random.normal(-1, 0.1, (num_rows, TOKENS)).astype(np.float32))
    prompts = random.integers(0, VOCABULARY, (PROBLEMS, PROMPT_TOKENS)).astype(np.int32)
    names, text = [f"p{problem}" for problem in range(PROBLEMS)], "word " * 3000
    start = _memory_gib()
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - begun

    with timed("sampler"):
        sampled = Sampled.of([(*each, True) for each in zip(token_BT.numpy(), logprob_BT.numpy(), strict=True)])
        responses = Responses(
            step=1,
            agent="a",
            problem_id=tuple(name for name in names for _ in range(SAMPLES)),
            sample_R=np.tile(np.arange(SAMPLES), PROBLEMS),
            tag=("",) * num_rows,
            policy_version_R=np.zeros(num_rows, np.int64),
            prompt_ids=Ragged.of([prompts[row // SAMPLES] for row in range(num_rows)], np.int32),
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            text=(text,) * num_rows,
            finish_reason=("length",) * num_rows,
        )
    with timed("pickle and unpickle"):
        responses = pickle.loads(pickle.dumps(responses, protocol=5))
    verdicts = Verdicts.of([Verdict("correct", 1.0, "1", 0.0), Verdict("wrong", 0.0, "2", 0.0)] * (num_rows // 2))
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(StepStore(Path(folder)), ["a"])
        with timed("save"):
            ledger.save_rollouts(1, "a", SampledBatch(responses, PhaseCost(1.0)))
        ledger.save_verdicts(1, "a", VerifiedBatch(replace(responses, verdicts=verdicts), PhaseCost(1.0)))
        del ledger, responses, sampled
        later = Ledger(StepStore(Path(folder)), ["a"])
        with timed("load"):
            loaded = later.verdicts(1, "a").responses
        carried = Carried(random.normal(size=num_rows), np.ones(num_rows))
        estimate = Estimate({"a": {"a": carried}})
        history = History(1, tuple(names), ("a",), SAMPLES, 0, lambda *_: loaded, lambda _: estimate, lambda _: {})
        with timed("mini-batches"):
            batches, _ = Shuffled().build(history, {})
            reader = RowReader(
                learner="a",
                agents=("a",),
                step=1,
                responses=history.responses,
                estimate=history.estimate,
                prompt_ids=lambda _: (),
                retokenizers={},
                eos_ids={"a": frozenset({1})},
                token_advantages=None,
                drops_eos=False,
            )
            minibatches = learner_batch(reader, batches, SequenceClip(), max_response_tokens=TOKENS).minibatches
        with timed("pickle and unpickle mini-batches"):
            minibatches = pickle.loads(pickle.dumps(minibatches, protocol=5))
        with timed("tensors of passes"):
            num_passes = 0
            for batch in minibatches:
                for forward in forward_passes(batch.tokens, layout="shared_prompts", max_tokens=16384):
                    num_passes += 1
                    torch.from_numpy(batch.take(forward.rows).old_logprobs.value_N)
    seconds["total"] = sum(seconds.values())
    return {"seconds": seconds, "passes": num_passes, "peak_gib": _memory_gib() - start}


def _memory_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Measure five times, each in a new process, and write the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", action="store_true")
    if parser.parse_args().one:
        print(json.dumps(measure()))
        return
    runs = [child("studies.data_path", "--one") for _ in range(5)]
    seconds = {name: statistics.median(run["seconds"][name] for run in runs) for name in runs[0]["seconds"]}
    medians = {"seconds": seconds, "peak_gib": statistics.median(run["peak_gib"] for run in runs)}
    print(json.dumps(medians, indent=1))
    write_result("data_path", {"now": medians, "before": BEFORE}, ["torch", "pyarrow"])


if __name__ == "__main__":
    main()
