"""How services are started and ended."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.service.processes import end_child, module_command


@pytest.mark.parametrize("shadow", ["flows.py", "flows/__init__.py"])
def test_module_is_run_from_the_installation_in_a_folder_that_has_one_of_its_name(shadow: str, tmp_path: Path) -> None:
    """Prefect's usual layout has flows.py or flows/."""
    path = tmp_path / shadow
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('the wrong one')", encoding="utf-8")
    assert subprocess.run(module_command("flows.process"), cwd=tmp_path).returncode == 0


def test_no_process_is_started_with_the_working_directory_on_its_path() -> None:
    sources = [path for folder in ("flows", "dashboards", "experiments") for path in Path(folder).rglob("*.py")]
    found = [path for path in sources if re.search(r'sys\.executable, "-[mc]"', path.read_text(encoding="utf-8"))]
    assert sources
    assert not found


def test_child_is_ended_although_an_interruption_left_the_lock_of_its_wait_taken() -> None:
    """SIGTERM may come between the taking of `Popen`'s lock and the block that frees it: `wait` then never returns."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    lock = child._waitpid_lock  # type: ignore[attr-defined]
    assert lock.acquire(timeout=1)
    end_child(child)
    assert not psutil.pid_exists(child.pid), "ended and waited for"
    lock.release()
    end_child(child)
