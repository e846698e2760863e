"""Versions of the packages and the code that results depend on."""

import functools
import logging
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_log = logging.getLogger(__name__)
_PACKAGES = ("hacpo", "torch", "transformers", "tokenizers", "sympy", "prefect", "mlflow", "pandas", "omegaconf")


@functools.cache
def version_tags() -> Mapping[str, str]:
    """Versions of the relevant packages, and the git commit of this code if it runs from a checkout.

    Determined once per process, because the checkout may change after the process has imported it.
    """
    tags = {}
    for package in _PACKAGES:
        try:
            tags[f"version.{package}"] = version(package)
        except PackageNotFoundError:
            continue
    here = Path(__file__).resolve().parent
    try:
        git = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        _log.info("%s is not a git checkout; no commit is recorded", here)
        return tags
    return tags | {"mlflow.source.git.commit": git.stdout.strip()}
