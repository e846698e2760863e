"""The checkout's top level, and the package as `pip install .` installs it, used in a folder of its own."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("hacpo_core", "flows", "experiments", "dashboards")
TOP_LEVEL = {*PACKAGES, "tests", "prefect.yaml", "pyproject.toml", "README.md"}
BESIDE = {"docs", "benchmarks", "examples", "hacpo.py", "CONTRIBUTING.md", "LICENSE", "Makefile", "constraints.txt"}
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
DEPLOY = """
import sys
from pathlib import Path
from flows.service import deployments, prefect_server
found = prefect_server.ensure_server(Path(sys.argv[1]))
client = deployments.connect(found.url, found.auth)
deployments.deploy(client)
print(deployments.__file__, *sorted(each.name for each in client.read_deployments()))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what the wheel of this checkout installs."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in PACKAGES:
        shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "prefect.yaml", "hacpo.py"):
        shutil.copy(CHECKOUT / name, source)
    subprocess.run([sys.executable, "-c", BUILD, str(source)], cwd=source, check=True, capture_output=True)
    (wheel,) = source.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run(installed: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked(*folders: str) -> list[str]:
    """Files of the checkout that git knows."""
    command = ["git", "ls-files", *folders]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.split()


def test_top_level_is_what_was_ordered() -> None:
    names = {name.partition("/")[0] for name in tracked() if not name.startswith(".")}
    assert TOP_LEVEL <= names <= TOP_LEVEL | BESIDE


@pytest.mark.slow
def test_wheel_holds_every_file_of_its_packages(installed: Path) -> None:
    names = tracked(*PACKAGES)
    assert len(names) > 300
    assert [name for name in names if not (installed / name).is_file()] == []
    deployments = (installed / "flows" / "service" / "prefect.yaml").read_bytes()
    assert deployments == (CHECKOUT / "prefect.yaml").read_bytes()


@pytest.mark.slow
@pytest.mark.system
def test_server_of_an_installed_package_knows_its_deployments(
    installed: Path, tmp_path: Path, migrated: Callable[[Path], None]
) -> None:
    migrated(tmp_path / "runs")
    try:
        printed = run(installed, tmp_path, "-c", DEPLOY, "runs").split()
        deployments = str(installed / "flows" / "service" / "deployments.py")
        assert printed == [deployments, "experiment", "grid"]
    finally:
        run(installed, tmp_path, "-m", "flows.cli", "server", "stop", "--runs-dir", "runs")


@pytest.mark.slow
def test_installed_commands_find_pairs_grids_and_methods(installed: Path, tmp_path: Path) -> None:
    assert "tiny_table1" in run(installed, tmp_path, "-m", "flows.cli", "show")
    assert "cross_clip" in run(installed, tmp_path, "-m", "flows.cli", "show", "tiny", "hacpo")
    assert run(installed, tmp_path, "-c", "import hacpo; print(len(hacpo.runs()), hacpo.__file__)").startswith("0 ")
