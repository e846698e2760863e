"""What the rounds of a campaign run: which command, how often at once, with which engine."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VLLM_PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"


def _is_missing(*modules: str) -> str:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def _lacks_vllm() -> str:
    return "" if VLLM_PYTHON.exists() else "vLLM is not installed (`make test-vllm` installs it)"


@dataclass(frozen=True, slots=True)
class Setup:
    """A kind of round."""

    name: str
    words: tuple[str, ...] = ("train.num_steps=10",)
    """overrides; experiments with other words have a reference of their own"""
    command: str = "train"
    runner: str = "direct"
    num_commands: int = 1
    """commands that run at once, of the same experiments"""
    has_clock: bool = True
    """whether its clock can be set: Ray's programs wait for a time of day, which only a machine's clock may change"""
    may_abort: bool = False
    """whether a library ends the command's process when a process of its own dies, as Ray does, with a C++ stack"""
    python: str = sys.executable
    obstacle: Callable[[], str] = lambda: ""
    """why this machine cannot run it, "" if it can"""


_SHORT = "train.num_steps=6"
_RANKS = ("placement.kind=ray", "engine.num_threads=1", "placement.num_ranks=2", "placement.colocated=true")
_VLLM = (
    *("engine.sampler=vllm", "engine.vllm.kv_cache_gb=0.25", "engine.vllm.enforce_eager=true"),
    *(f"pair.agents.{agent}.tiny.hidden_size=128" for agent in ("qwen", "llama")),  # for which vLLM has kernels
)
SETUPS = (
    Setup("train"),
    Setup("grid", command="grid"),
    Setup("train with Prefect", runner="prefect"),
    Setup(
        "train on DeepSpeed",
        (_SHORT, "engine.learner=deepspeed", "engine.deepspeed.stage=2"),
        obstacle=lambda: _is_missing("deepspeed"),
    ),
    Setup("two grids at once", command="grid", num_commands=2),
    Setup(
        "train on Ray, two ranks",
        (_SHORT, "engine.learner=deepspeed", "engine.deepspeed.stage=1", *_RANKS),
        has_clock=False,
        may_abort=True,
        obstacle=lambda: _is_missing("ray", "deepspeed"),
    ),
    Setup("two trains at once", num_commands=2),
    Setup("train with vLLM", (_SHORT, *_VLLM), python=str(VLLM_PYTHON), obstacle=_lacks_vllm),
)
