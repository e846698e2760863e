"""`hacpo delete`."""

from pathlib import Path

import pytest

from flows.commands.runs import delete
from hacpo_core.errors import ConfigError, LockedError
from tests.dashboards.stores import hold_lock, write_run


def test_deletion_says_what_it_frees_and_never_touches_a_run_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, other = write_run(tmp_path), write_run(tmp_path, seed=1)
    root = tmp_path / "experiments" / experiment
    (root / "checkpoints" / "000040").mkdir(parents=True)
    (root / "checkpoints" / "000040" / "weights").write_bytes(bytes(3_000_000))
    with hold_lock(root), pytest.raises(LockedError):
        delete(experiment, tmp_path)
    assert (root / "checkpoints").is_dir()
    delete(experiment, tmp_path)
    assert capsys.readouterr().out == f"deleted {experiment}: 3.0 MB are free again\n"
    assert [path.name for path in (tmp_path / "experiments").iterdir()] == [other]
    assert not list((tmp_path / "deleted").iterdir())
    for wrong in (experiment, "../experiments", ".", ""):
        with pytest.raises(ConfigError, match="expected the complete id"):
            delete(wrong, tmp_path)
