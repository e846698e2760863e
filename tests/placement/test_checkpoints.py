"""Checkpoints: whole or not there."""

import hashlib
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hacpo_core.config import ExperimentConfig, PlacementConfig
from hacpo_core.engines.learning.weights import Fingerprint
from hacpo_core.engines.models.tensor_files import TensorFile, TensorPart
from hacpo_core.errors import StoreError
from hacpo_core.files import sha256_of
from hacpo_core.phases.checkpoint import checkpoint
from hacpo_core.placement.checkpoints import OPTIMIZER_FILE, latest_checkpoint, save_agent, save_checkpoint
from tests.engines.small import small_model
from tests.engines.training import learner_of, rows_of, run


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("disk is full"), StoreError)]
)
def test_checkpoint_that_is_broken_off_leaves_nothing(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    def save(folder: Path) -> dict[str, Any]:
        (folder / "qwen").mkdir(parents=True)
        (folder / "qwen" / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(raised):
        save_checkpoint(tmp_path, 2, save, {}, keep=1)
    assert not list((tmp_path / "checkpoints").iterdir())


def counted_parts(number: int, alive: list[int]) -> Iterator[TensorPart]:
    """Parts that count how many of their tensors are held at the same time, in `alive`."""
    held: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def read() -> torch.Tensor:
        alive.append(len(held))
        tensor = torch.randn(100)
        held.add(tensor)
        return tensor

    for i in range(number):
        yield TensorPart(f"exp_avg.{i}", torch.float32, (100,), read)


def agent_of(learner: Any) -> Any:
    def write(folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")

    tokens = SimpleNamespace(tokenizer=SimpleNamespace(save_pretrained=write))
    return SimpleNamespace(
        learner=learner,
        tokens=tokens,
        version=2,
        fingerprint=lambda: Fingerprint("sums128:d", (0.0,)),
        sampler=SimpleNamespace(rest=lambda: None),
        model=None,
    )


@pytest.mark.parametrize("writes", [True, False])
def test_no_rank_holds_more_than_one_tensor_of_the_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    alive: list[int] = []
    learner = SimpleNamespace(optimizer_parts=lambda: counted_parts(5, alive), num_updates=3)
    monkeypatch.setattr(
        "hacpo_core.placement.checkpoints.save_model",
        lambda _, folder: (folder / "model.safetensors").write_bytes(b"weights"),
    )
    entry = save_agent(agent_of(learner), tmp_path / "qwen", writes=writes)
    assert alive == [0] * 5, "when the next is read the one before it is gone"
    files = entry.pop("files", None)
    assert entry == {"version": 2, "num_updates": 3, "digest": "sums128:d"}
    if writes:
        assert set(files) == {OPTIMIZER_FILE, "model.safetensors", "tokenizer.json"}
        assert files == {name: sha256_of(tmp_path / "qwen" / name) for name in files}
    else:
        assert files is None
        assert not (tmp_path / "qwen").exists()


@pytest.mark.parametrize("writes", [True, False])
def test_sampler_sleeps_while_tensors_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    events: list[str] = []

    def parts() -> Iterator[TensorPart]:
        yield TensorPart("exp_avg.a", torch.float32, (1,), lambda: events.append("gather") or torch.zeros(1))

    learner = SimpleNamespace(optimizer_parts=parts, num_updates=3)
    agent = agent_of(learner)
    agent.sampler.rest = lambda: events.append("rest")
    monkeypatch.setattr("hacpo_core.placement.checkpoints.save_model", lambda *_: None)
    save_agent(agent, tmp_path / "qwen", writes=writes)
    assert events == ["rest", "gather"]


def test_optimizers_file_does_not_depend_on_the_order_in_which_tensors_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hacpo_core.placement.checkpoints.save_model", lambda *_: None)
    first = learner_of(small_model(), learning_rate=1e-3)
    run(first, [rows_of()])
    second, digests = learner_of(small_model(), learning_rate=1e-3), []
    for learner in (first, second):
        entry = save_agent(agent_of(learner), tmp_path / str(len(digests)))
        digests.append(entry["files"][OPTIMIZER_FILE])
        second.load_optimizer_tensors(TensorFile(tmp_path / "0" / OPTIMIZER_FILE), num_updates=1)
    assert digests[0] == digests[1]


def test_no_file_of_a_checkpoint_is_read_again_to_be_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(folder: Path) -> dict[str, dict[str, Any]]:
        for name in ("qwen", "llama"):
            (folder / name).mkdir(parents=True)
            (folder / name / OPTIMIZER_FILE).write_bytes(b"moments")
        files = {OPTIMIZER_FILE: hashlib.sha256(b"moments").hexdigest()}
        return {name: {"version": 2, "digest": "sums128:d", "files": dict(files)} for name in ("qwen", "llama")}

    with monkeypatch.context() as patch:
        patch.setattr(
            "hacpo_core.placement.checkpoints.sha256_of", lambda _: pytest.fail("was hashed while it was written")
        )
        save_checkpoint(tmp_path, 2, save, {"qwen": [0.5]}, keep=1)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.agents["llama"] == {"version": 2, "digest": "sums128:d"}
    (found.folder / "qwen" / OPTIMIZER_FILE).write_bytes(b"momentum")
    assert latest_checkpoint(tmp_path) is None


class Side:
    """Stands for an experiment whose agents are in processes of their own; each waits until all others write."""

    agents = ("qwen", "llama")

    def __init__(self, root: Path, then: Callable[[str], None] = lambda agent: None) -> None:
        self.config = ExperimentConfig(placement=PlacementConfig(kind="ray"))
        self.ledger = SimpleNamespace(store=SimpleNamespace(root=root, sync=lambda: None), state=lambda *_: {})
        self.placement: Any = self
        self._barrier, self._then, self.broken = threading.Barrier(2, timeout=20), then, False

    def save(self, agent: str, folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        (folder / OPTIMIZER_FILE).write_bytes(b"moments")
        self._barrier.wait()
        self._then(agent)
        return {"version": 2, "files": {OPTIMIZER_FILE: sha256_of(folder / OPTIMIZER_FILE)}}

    def break_off(self) -> None:
        self.broken = True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hacpo_core.phases.checkpoint.agent_at", lambda *_: nullcontext())


def test_agents_in_processes_of_their_own_are_saved_side_by_side(tmp_path: Path, at_once: None) -> None:
    checkpoint(Side(tmp_path), 2, best=())  # type: ignore[arg-type]
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert list(found.agents) == ["qwen", "llama"]


def test_interruption_ends_what_other_agents_still_write(tmp_path: Path, at_once: None) -> None:
    def interrupt(agent: str) -> None:
        if agent == "qwen":
            raise KeyboardInterrupt

    side = Side(tmp_path, interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoint(side, 2, best=())  # type: ignore[arg-type]
    assert side.broken
    assert latest_checkpoint(tmp_path) is None


def test_process_that_is_killed_while_agents_are_saved_side_by_side_leaves_the_earlier_checkpoint(
    tmp_path: Path, at_once: None
) -> None:
    checkpoint(Side(tmp_path), 2, best=())  # type: ignore[arg-type]
    child = os.fork()
    if not child:  # the second agent is written, the first half
        checkpoint(Side(tmp_path, lambda agent: os.kill(os.getpid(), signal.SIGKILL)), 4, best=())  # type: ignore[arg-type]
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2, "a temporary folder is left, which opening removes"
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 2
