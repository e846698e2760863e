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
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.measure import RESULTS, write_result
from flows.doctor.engine_trial import trial_report
from flows.doctor.trials import Workload
from hacpo_core.tiny.tokenizers import build_tokenizer

_QWEN = {"vocab_size": 151_936, "tie_word_embeddings": True}
_QWEN3 = _QWEN | {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128}
SIZES: dict[str, dict[str, Any]] = {
    "0.5b": _QWEN
    | {"model_type": "qwen2", "num_key_value_heads": 2}
    | {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "intermediate_size": 4864},
    "0.6b": _QWEN3
    | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072},
    "1.7b": _QWEN3
    | {"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 6144},
    "4b": _QWEN3 | {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728},
    "toy": _QWEN3
    | {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    | {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512},
}
WORK = {
    "0.5b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "0.6b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "1.7b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "4b": Workload(num_problems=64, num_samples=8, max_tokens=1024),
    "toy": Workload(num_problems=16, num_samples=4, max_tokens=64),
}


def random_model(size: str, *, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """A Qwen2 or Qwen3 with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(max_position_embeddings=8192, eos_token_id=1, **SIZES[size])
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def write_random_model(folder: Path, size: str) -> None:
    """Save a model with random bfloat16 weights, and a tokenizer with a chat template."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random_model(size, device=device, dtype=torch.bfloat16).save_pretrained(folder)
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
