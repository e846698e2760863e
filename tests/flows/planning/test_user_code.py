"""A user's code is a part of the id with what it imports beside itself."""

import sys
from pathlib import Path

import pytest

from flows.planning.user_code import code_digest
from hacpo_core.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in sys.modules if name.startswith("uc_")]:  # of the test before
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "uc_pack" / "deep").mkdir(parents=True)
    (tmp_path / "uc_pack" / "__init__.py").write_text("")
    (tmp_path / "uc_pack" / "deep" / "__init__.py").write_text("")
    (tmp_path / "uc_pack" / "est.py").write_text("import numpy\nfrom . import near\nfrom uc_pack.deep import far\n")
    (tmp_path / "uc_pack" / "near.py").write_text("A = 1\n")
    (tmp_path / "uc_pack" / "deep" / "far.py").write_text("from ..near import A\nimport uc_beside\n")
    (tmp_path / "uc_pack" / "other.py").write_text("B = 1\n")
    (tmp_path / "uc_beside.py").write_text("C = 1\n")
    return tmp_path


@pytest.mark.parametrize("file", ["uc_pack/est.py", "uc_pack/near.py", "uc_pack/deep/far.py", "uc_beside.py"])
def test_digest_changes_with_each_module_that_is_imported(file: str, folder: Path) -> None:
    before = code_digest("method.plan", "uc_pack.est")
    (folder / file).write_text((folder / file).read_text() + "# changed\n")
    assert code_digest("method.plan", "uc_pack.est") != before


def test_digest_stays_with_modules_that_are_not_imported(folder: Path) -> None:
    before = code_digest("method.plan", "uc_pack.est")
    (folder / "uc_pack" / "other.py").write_text("B = 2\n")
    assert code_digest("method.plan", "uc_pack.est") == before


def test_module_that_is_not_there_or_no_python_is_one_sentence(folder: Path) -> None:
    with pytest.raises(ConfigError, match="method.plan: there is no module uc_nothing; put it on PYTHONPATH"):
        code_digest("method.plan", "uc_nothing")
    (folder / "uc_beside.py").write_text("def (")
    with pytest.raises(ConfigError, match=r"method.plan: .*uc_beside.py, line 1: .*; fix it"):
        code_digest("method.plan", "uc_pack.est")
