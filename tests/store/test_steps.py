"""The step store: what is committed is whole, what is torn counts as absent."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hacpo_core.errors import LockedError, StoreError
from hacpo_core.files import write_errors
from hacpo_core.store.lock import ExperimentLock, is_locked
from hacpo_core.store.steps import StepStore

TABLE = {"id": ["a", "b"], "tokens": [[1, 2], [3]]}


def test_committed_table_and_value_are_read_back(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    store.commit(3, "rollout.qwen", {"rollouts.parquet": TABLE, "cost.json": {"seconds": 0.25}})
    assert store.committed(3) == ("rollout.qwen",)
    assert [list(tokens) for tokens in store.read_table(3, "rollout.qwen", "rollouts.parquet")["tokens"]] == [
        [1, 2],
        [3],
    ]
    assert store.read_value(3, "rollout.qwen", "cost.json") == {"seconds": 0.25}


def test_phase_without_commit_is_not_there(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    assert not store.is_intact(1, "verify.qwen")
    with pytest.raises(StoreError, match="no committed verify.qwen"):
        store.read_value(1, "verify.qwen", "x.json")


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damaged_file_makes_its_phase_absent(tmp_path: Path, damage: str) -> None:
    store = StepStore(tmp_path)
    store.commit(1, "rollout.qwen", {"rollouts.parquet": TABLE})
    path = store.folder(1) / "rollouts.parquet"
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[10] ^= 1
        path.write_bytes(content if damage == "flip" else content[:20])
    assert not store.is_intact(1, "rollout.qwen")
    with pytest.raises(StoreError, match="missing or was altered"):
        store.read_table(1, "rollout.qwen", "rollouts.parquet")


def test_torn_manifest_makes_the_step_absent_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = StepStore(tmp_path)
    store.commit(1, "advantage", {"a.json": 1})
    (store.folder(1) / "manifest.json").write_text('{"phases": {"adv', encoding="utf-8")
    assert StepStore(tmp_path).committed(1) == ()
    assert "manifest of step 1 is corrupt" in caplog.text


def test_file_is_never_seen_half_written(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    store.commit(1, "advantage", {"a.json": [1, 2, 3]})
    with pytest.raises(TypeError):
        store.commit(1, "advantage", {"a.json": object()})
    assert store.read_value(1, "advantage", "a.json") == [1, 2, 3]
    assert not list(store.folder(1).glob(".*"))


def test_really_full_disk_gives_one_clear_error_and_keeps_what_was_there(small_disk: Callable[[str], Path]) -> None:
    store = StepStore(small_disk("64k"))
    store.commit(1, "small", {"a.json": 1})
    with pytest.raises(StoreError, match="the disk is full; free some space, then resume"):
        store.commit(1, "large", {"b.json": "x" * 200_000})
    assert store.read_value(1, "small", "a.json") == 1
    assert store.committed(1) == ("small",)
    store.sync()


def test_lock_is_refused_to_another_process_and_free_after_its_death(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hacpo_core.store.lock import ExperimentLock\n"
        "with ExperimentLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_locked(tmp_path)
    with pytest.raises(LockedError, match=f"process {holder.pid}"), ExperimentLock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with ExperimentLock(tmp_path):
        assert True, "the kernel freed the lock at the kill"
    assert not is_locked(tmp_path)


def test_lock_that_cannot_be_written_is_one_sentence_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(StoreError, match="the disk is full"), ExperimentLock(tmp_path):
        pass
    monkeypatch.undo()
    with ExperimentLock(tmp_path):
        assert is_locked(tmp_path), "the one that failed let go of it"


def broken(*_: Any) -> int:
    raise OSError(28, "the disk is full")


def test_what_is_no_folder_has_no_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert not is_locked(tmp_path / "file")
    assert not is_locked(tmp_path / "nothing")


def test_reader_without_the_right_to_write_sees_the_lock() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        with ExperimentLock(folder):
            (folder / "lock").chmod(0o444)
            with reading_only():
                assert is_locked(folder)
        assert not is_locked(folder)


@contextmanager
def reading_only() -> Iterator[None]:
    """As another user, where the tests run as the one whom no permission stops."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(me)


def test_lock_waits_for_a_reader_that_looks_at_it_for_an_instant(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a+") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        release = threading.Timer(0.2, fcntl.flock, (reader, fcntl.LOCK_UN))
        release.start()
        with ExperimentLock(tmp_path):
            assert is_locked(tmp_path)
        release.join()


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """What is synced from here on."""
    inner, synced = os.fsync, set()

    def noted(descriptor: int) -> None:
        inner(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    return synced


def test_what_cannot_be_synced_is_one_clear_error_of_a_later_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, inner = StepStore(tmp_path), os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    store.commit(1, "advantage", {"a.json": 1})
    with pytest.raises(StoreError, match="the disk is full; free some space, then resume"):
        store.sync()
    monkeypatch.setattr(os, "fsync", inner)
    synced = noted_syncs(monkeypatch)
    store.sync()
    assert store.folder(1) / "a.json" in synced, "tried again"
    assert store.committed(1) == ("advantage",)


def test_every_file_and_folder_of_a_commit_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = StepStore(tmp_path), noted_syncs(monkeypatch)
    store.commit(1, "rollout.qwen", {"r.parquet": {"token": [1]}, "r.json": {}})
    store.sync()
    folder = store.folder(1)
    files = {folder / "r.parquet", folder / "r.json", folder / "manifest.json"}
    assert synced == files | {folder, folder.parent, tmp_path}


def test_commit_takes_what_was_made_from_an_earlier_one_with_it(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    for phase in ("rollout.qwen", "rollout.llama", "verify.qwen", "advantage"):
        store.commit(1, phase, {f"{phase}.json": 1})
    store.commit(1, "rollout.qwen", {"rollout.qwen.json": 2}, outdates=["verify.qwen", "advantage"])
    assert store.committed(1) == StepStore(tmp_path).committed(1) == ("rollout.llama", "rollout.qwen")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "the disk is read-only; make it writable, or name another folder"),
        (errno.EACCES, "Permission denied; change its permissions, or name another folder"),
        (errno.ENOSPC, "the disk is full; free some space, then resume"),
    ],
)
def test_error_of_a_disk_has_a_remedy(number: int, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"cannot write {tmp_path}: {remedy}"), write_errors(tmp_path):
        raise OSError(number, os.strerror(number))
