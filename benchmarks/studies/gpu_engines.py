"""Speed of a hardware file's engines: hand-over, sampling, scoring, update, checkpoint, resume and replay.

The steps are those of `hacpo doctor --gpu` (flows/doctor/engine_trial.py), with a larger workload. The model has random
weights, so that nothing need be downloaded; responses rarely end early. Without a GPU, the toy size is measured on the
CPU.

Usage: python -m benchmarks.studies.gpu_engines [--hardware one_gpu_vllm] [--size 0.5b|0.6b|1.7b|4b|toy]
                                                [--model FOLDER] [--max-tokens 256] [WORD...]
Adds an entry to benchmarks/results/gpu_engines.json; `python -m benchmarks.tables` updates docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.measure import RESULTS, write_result
from benchmarks.models import SIZES, random_model
from flows.doctor.engine_trial import trial_report
from flows.doctor.trials import Workload
from hacpo_core.tiny.tokenizers import build_tokenizer

WORK = {
    "0.5b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "0.6b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "1.7b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "4b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "toy": Workload(num_problems=16, num_samples=4, max_tokens=64),
}


def write_random_model(folder: Path, size: str) -> None:
    """Save a model with random bfloat16 weights, and a tokenizer with a chat template."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random_model(size, device=device, dtype=torch.bfloat16, eos_token_id=1).save_pretrained(folder)
    build_tokenizer("byte").save_pretrained(folder)


def main() -> None:
    """Measure one model with one hardware file; earlier results of other combinations are kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hardware", default="one_gpu_vllm" if torch.cuda.is_available() else "cpu_deepspeed")
    parser.add_argument("--size", choices=SIZES, default="1.7b" if torch.cuda.is_available() else "toy")
    parser.add_argument("--model", type=Path, help="a model folder, instead of random weights")
    parser.add_argument("--max-tokens", type=int, help="longest response; default: by size")
    parser.add_argument("overrides", nargs="*", help="section.field=value")
    arguments = parser.parse_args()
    model, size, overrides = arguments.model, arguments.size, arguments.overrides
    workload = replace(WORK[size], max_tokens=arguments.max_tokens or WORK[size].max_tokens)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = model or Path(temporary)
        if model is None:
            write_random_model(folder, size)
        report = trial_report(arguments.hardware, model=folder, workload=workload, overrides=overrides, on_step=print)
    entry = report | {"model": model.name if model else f"random, {size}", "words": overrides}
    path = RESULTS / "gpu_engines.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["results"] if path.is_file() else []
    same = ("model", "hardware", "device", "words")
    kept = [other for other in kept if any(other[name] != entry[name] for name in same)]
    write_result("gpu_engines", {"results": [*kept, entry]}, ["torch", "transformers"])


if __name__ == "__main__":
    main()
