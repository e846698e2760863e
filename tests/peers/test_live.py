"""The committed fixture is what the installed TRL and verl compute (`make test-peers` installs them)."""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"
INSTALLED = HERE.parents[1] / ".venv-peers" / "installed.txt"

pytestmark = [pytest.mark.peers, pytest.mark.slow]


@pytest.mark.skipif(not INSTALLED.exists(), reason="the peers are not installed; run tests/peers/install.sh")
def test_committed_fixture_is_what_the_installed_peers_compute() -> None:
    command = [str(PEERS_PYTHON), str(HERE / "make_fixture.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
