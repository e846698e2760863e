"""Trials that never end, run by the doctor in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path


def hang_with_a_child() -> None:
    """Start a child, say so, and hang."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(os.environ["HACPO_TEST_BEGUN"]).write_text(str(child.pid), encoding="utf-8")
    time.sleep(1000)


def hang_in_ray() -> None:
    """As above, with a Ray that has been started."""
    from hacpo_core.config import ExperimentConfig
    from hacpo_core.placement import ray_cluster

    ray_cluster.start_ray(ExperimentConfig(), num_cpus=1, object_store_memory=80 * 2**20)
    hang_with_a_child()
