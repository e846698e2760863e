"""`make` makes .venv with a Python that is new enough, and says which one is not."""

import shutil
import subprocess
import sys
from pathlib import Path

OLD = f"""#!/bin/sh
echo "$@" >> {{log}}
[ "$1" = -c ] || exit 1
exec {sys.executable} -c "import sys; sys.version_info = (3, 10, 1); sys.version = '3.10.1'; exec(sys.argv[1])" "$2"
"""


def make(folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    words = ["make", "-C", str(folder), "demo", f"PYTHON={python}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_wrong_python_is_named_before_anything_is_made_and_its_environment_is_replaced(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)
    log, old, new = tmp_path / "log", tmp_path / "python3.10", tmp_path / "python3"
    old.write_text(OLD.format(log=log), encoding="utf-8")
    new.write_text(OLD.format(log=log).replace("(3, 10, 1)", "(3, 12, 1)"), encoding="utf-8")
    for path in (old, new):
        path.chmod(0o755)
    done = make(tmp_path, old)
    assert done.returncode != 0
    assert f"Python 3.11 or newer is needed, {old} is 3.10.1; name another" in done.stderr
    assert not (tmp_path / ".venv").exists()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(old, tmp_path / ".venv" / "bin" / "python")
    make(tmp_path, new)
    assert "-m venv --clear .venv" in log.read_text(encoding="utf-8")


def test_too_little_memory_for_the_tests_is_one_sentence(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nulimit -v 900000\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    for stamp in (".installed", ".llm", ".engines"):
        (tmp_path / ".venv" / stamp).touch()
    done = subprocess.run(
        ["make", "-C", str(tmp_path), "test"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0 and not [line for line in done.stdout.splitlines() if "directory" not in line]
    sentence, *rest = done.stderr.splitlines()
    assert sentence == "The tests need 2.5 GB of memory, and 0.9 GB are free here"
    assert all(line.startswith("make") for line in rest)
