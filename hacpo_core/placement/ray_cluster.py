"""The Ray that holds the agents: a cluster that is joined, or one started on this machine for one run."""

import logging
import os
import socket
from pathlib import Path
from typing import Any

import ray

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import num_processes
from hacpo_core.config.threads import num_threads, usable_cores
from hacpo_core.errors import EngineError, first_line

_START_ERRORS = (OSError, RuntimeError, ValueError)
_PASSED_ON = ("HF_", "NCCL_", "VLLM_")
"""beginnings of the names of variables that agents on other machines get, too"""


def start_ray(config: ExperimentConfig, **options: Any) -> None:
    """Join the configured cluster, or start one here, with additional options for `ray.init`.

    Raises:
        EngineError: Ray does not start, or no cluster responds.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 would give agents the lowest priority
    address = config.placement.ray.address
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # By default, Ray starts a process per CPU of the machine, as would the Ray of every other run here.
        num_cpus_needed = num_processes(config) * num_threads(config)
        options.setdefault("num_cpus", min(num_cpus_needed, usable_cores()))
        try:
            ray.init(address="local", include_dashboard=False, **common, **options)
        except _START_ERRORS as error:
            message = f"placement.kind: Ray does not start here: {first_line(error)}"
            raise EngineError(f"{message}; test it with `hacpo doctor`, or set placement.kind=local") from error
        return
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _noted_address()
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise EngineError(f"placement.ray.address: got {address!r}, expected host:port or auto")
    try:  # Ray itself would try for minutes to reach a machine that does not answer
        socket.create_connection((host, int(port)), timeout=10.0).close()
        variables = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        ray.init(address=address, runtime_env={"env_vars": variables}, **common)
    except _START_ERRORS as error:
        raise EngineError(
            f"placement.ray.address: cannot join the cluster at {address} ({first_line(error)}); start it with "
            "`ray start --head`, or leave placement.ray.address out"
        ) from error


def _noted_address() -> str:
    """The cluster that `ray start` recorded here. Ray's own `auto` would also find a Ray that another run started."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise EngineError(
            "placement.ray.address: got auto, but this machine is in no cluster; start it with `ray start --head`"
        ) from error
