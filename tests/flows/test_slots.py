"""GPU locks: two experiments never hold one GPU, a dead one holds none, and CUDA sees only what is held."""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows import slots
from hacpo_core.config import EngineConfig, ExperimentConfig, PlacementConfig, RayConfig, VllmConfig

HOLD = """
import sys, time
from pathlib import Path
from flows.slots import held
with held(["0", "1"], int(sys.argv[2]), Path(sys.argv[1])) as own:
    print(",".join(own), flush=True)
    time.sleep(600)
"""


def holder(folder: Path, number: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLD, str(folder), str(number)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_locked(folder: Path, device: str) -> bool:
    """Whether another process would find the device held; a lock is the open file's, not the process's."""
    path = folder / f"{device}.lock"
    if not path.exists():
        return False
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_gpus_are_held_by_one_process_each_and_freed_by_a_kill(tmp_path: Path) -> None:
    processes = [holder(tmp_path, 1), holder(tmp_path, 1)]
    try:
        assert sorted(map(first_line, processes)) == ["0", "1"]
        third = holder(tmp_path, 1)
        processes.append(third)
        time.sleep(3.0)
        assert third.poll() is None
        processes[0].kill()
        assert first_line(third) in ("0", "1")
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_all_or_none_are_held_while_too_few_are_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = holder(tmp_path, 1)
    assert first_line(one) == "0"
    got: list[list[str]] = []

    def take_two() -> None:
        with slots.held(["0", "1"], 2, tmp_path) as own:
            got.append(own)

    with caplog.at_level(logging.WARNING, logger="flows.slots"):
        waiting = threading.Thread(target=take_two)
        waiting.start()
        time.sleep(1.5)
        assert got == []
        two = holder(tmp_path, 1)
        assert first_line(two) == "1", "the one that waits for two sits on none"
        for process in (one, two):
            process.kill()
            process.communicate()
        waiting.join(timeout=30)
    assert got == [["0", "1"]]
    assert "waiting for 2 of the GPUs 0, 1, which other experiments hold" in caplog.text


@pytest.mark.parametrize(
    ("engine", "placement", "seen", "locked"),
    [
        (EngineConfig(device="cuda"), PlacementConfig(), "4", ["4"]),
        (
            *(EngineConfig(device="cuda", sampler="vllm", vllm=VllmConfig("own", tensor_parallel_size=2)), None),
            *("4,7", ["4", "7"]),
        ),
        (EngineConfig(device="cuda"), PlacementConfig(kind="ray"), "4,7", ["4", "7"]),
        (EngineConfig(device="cuda"), PlacementConfig(kind="ray", ray=RayConfig(address="auto")), "4,7", []),
        (EngineConfig(), PlacementConfig(), "4,7", []),
    ],
)
def test_cuda_sees_the_gpus_that_are_held_and_no_others(
    engine: EngineConfig,
    placement: PlacementConfig | None,
    seen: str,
    locked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(slots, "locks_folder", lambda: tmp_path)
    config = dataclasses.replace(ExperimentConfig(), engine=engine, placement=placement or PlacementConfig())
    with slots.gpu_slots(config):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
        assert [device for device in ("4", "7") if is_locked(tmp_path, device)] == locked
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"
