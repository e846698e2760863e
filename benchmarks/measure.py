"""What all measurements share: results as files, with the machine and the versions that they were measured on."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, result: Mapping[str, Any], packages: Sequence[str]) -> None:
    """Write and print a result, with the versions and the machine that it was measured on."""
    versions = {package: version(package) for package in packages}
    whole = {**result, "versions": versions, "machine": f"{platform.machine()}, Python {platform.python_version()}"}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
