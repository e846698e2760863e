"""`hacpo delete` and `hacpo clean`."""

from pathlib import Path

import pytest

from flows.commands.runs import clean, delete
from flows.planning.compose import compose
from flows.planning.plans import initial_models, plan, save_plan
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


def test_cleaning_keeps_the_models_that_a_run_begins_with_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = plan(compose("tiny", "gspo", overrides=[f"runtime.runs_dir={tmp_path}"]))
    save_plan(planned)
    models = initial_models(planned.config).values()
    used = {folder for model in models for folder in (model.base_folder, model.folder)}
    unused = {tmp_path / "models" / "qwen3-character-0123456789", tmp_path / "deleted" / "0123456789"}
    for folder in used | unused:
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(1_000_000))
    clean(tmp_path)
    assert capsys.readouterr().out == "deleted 2 folders: 2.0 MB are free again\n"
    assert set((tmp_path / "models").iterdir()) == used
    assert not list((tmp_path / "deleted").iterdir())
    delete(planned.id, tmp_path)
    clean(tmp_path)
    assert not list((tmp_path / "models").iterdir())
