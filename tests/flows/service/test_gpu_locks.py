"""GPU locks: two experiments never hold one GPU, a dead one holds none, and CUDA sees only what is held."""

import dataclasses
import fcntl
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows.service import gpu_locks
from hacpo_core.config import (
    AgentConfig,
    EngineConfig,
    ExperimentConfig,
    PlacementConfig,
    RayConfig,
    TeamConfig,
    VllmConfig,
)
from hacpo_core.errors import EngineError

TRAIN = """
import dataclasses, sys, time
from pathlib import Path
from flows.service import gpu_locks
from hacpo_core.config import AgentConfig, EngineConfig, ExperimentConfig, TeamConfig, PlacementConfig
gpu_locks.LOCKS_FOLDER = Path(sys.argv[1])
pair = TeamConfig("pair", {name: AgentConfig(path=name) for name in sys.argv[2].split(",")})
placement = PlacementConfig(kind="ray", num_ranks=4)
config = dataclasses.replace(ExperimentConfig(), pair=pair, engine=EngineConfig(device="cuda"), placement=placement)
with gpu_locks.gpu_locks(config):
    print(gpu_locks.os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    time.sleep(600)
"""
HOLD = """
import sys, time
from pathlib import Path
from flows.service.gpu_locks import locked_devices
with locked_devices(["0", "1"], int(sys.argv[2]), Path(sys.argv[1])) as own:
    print(",".join(own), flush=True)
    time.sleep(600)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def holder(folder: Path, number: int) -> subprocess.Popen[str]:
    return python(HOLD, folder, number)


def await_refusal(process: subprocess.Popen[str]) -> None:
    """Until the process has looked for free GPUs, found too few, and said so."""
    assert process.stderr is not None
    assert "which other experiments use" in process.stderr.readline()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_locked(folder: Path, device: str) -> bool:
    """Whether another process would find the device held; a lock is the open file's, not the process's."""
    path = folder / f"hacpo-gpu-{device}.lock"
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_all_or_none_are_held_while_too_few_are_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = holder(tmp_path, 1)
    assert first_line(one) == "0"
    got: list[list[str]] = []

    def take_two() -> None:
        with gpu_locks.locked_devices(["0", "1"], 2, tmp_path) as own:
            got.append(own)

    with caplog.at_level(logging.WARNING, logger="flows.service.gpu_locks"):
        waiting = threading.Thread(target=take_two)
        waiting.start()
        while "waiting for 2 of the GPUs 0, 1, which other experiments use" not in caplog.text:
            waiting.join(timeout=0.1)
            assert waiting.is_alive() and got == []
        two = holder(tmp_path, 1)
        assert first_line(two) == "1", "the one that waits for two sits on none"
        for process in (one, two):
            process.kill()
            process.communicate()
        waiting.join(timeout=30)
    assert got == [["0", "1"]]


@pytest.fixture
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cards, as its nvidia-smi says."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '0, GPU-aaaa-1'\necho '1, GPU-abbb-2'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("two_cards")
def test_card_has_one_lock_whatever_it_is_called(tmp_path: Path) -> None:
    names = ["0", "GPU-abbb-2", "GPU-aa", "GPU-a", "MIG-7", "9"]
    assert list(gpu_locks.cards_of(names).values()) == ["GPU-aaaa-1", "GPU-abbb-2", "GPU-aaaa-1", "GPU-a", "MIG-7", "9"]
    with gpu_locks.locked_devices(["1"], 1, tmp_path) as own:
        assert own == ["1"], "CUDA is given the name that the person chose"
        assert is_locked(tmp_path, "GPU-abbb-2")
        with gpu_locks.locked_devices(["GPU-abbb-2", "GPU-aaaa-1"], 1, tmp_path) as other:
            assert other == ["GPU-aaaa-1"]


def test_lock_file_of_another_user_will_do_and_a_link_will_not(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with gpu_locks.locked_devices(["0"], 1, tmp_path):
            pass
    finally:
        os.umask(before)
    path = tmp_path / "hacpo-gpu-0.lock"
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o444)
    with gpu_locks.locked_devices(["0"], 1, tmp_path):
        assert is_locked(tmp_path, "0")
    (tmp_path / "victim").touch()
    (tmp_path / "hacpo-gpu-1.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(EngineError, match="hacpo-gpu-1.lock: .*have its owner remove it"):
        gpu_locks.locked_devices(["1"], 1, tmp_path).__enter__()


@pytest.mark.parametrize(("named", "seen"), [("-1", []), ("", []), ("1, 3", ["1", "3"]), ("2,-1,3", ["2"])])
def test_visible_gpus_end_before_a_negative_number_as_for_cuda(
    named: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpu_locks.visible_devices() == seen


@pytest.mark.parametrize(
    ("engine", "placement", "seen", "locked"),
    [
        (EngineConfig(device="cuda"), PlacementConfig(), "4", ["4"]),
        (
            *(EngineConfig(device="cuda", sampler="vllm", vllm=VllmConfig("own", tensor_parallel_size=2)), None),
            *("4,7", ["4", "7"]),
        ),
        (EngineConfig(device="cuda"), PlacementConfig(kind="ray"), "4,7", ["4", "7"]),
        (EngineConfig(device="cuda"), PlacementConfig(kind="ray", colocated=True), "4", ["4"]),
        (EngineConfig(device="cuda"), PlacementConfig(kind="ray", num_ranks=8), "4,7", ["4", "7"]),  # Ray says so
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
    monkeypatch.setattr(gpu_locks, "LOCKS_FOLDER", tmp_path)
    pair = TeamConfig("pair", {"a": AgentConfig(path="a"), "b": AgentConfig(path="b")})
    placement = placement or PlacementConfig()
    config = dataclasses.replace(ExperimentConfig(), pair=pair, engine=engine, placement=placement)
    with gpu_locks.gpu_locks(config):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
        assert [device for device in ("4", "7") if is_locked(tmp_path, device)] == locked
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"
