"""Writes fixture.json: what TRL and verl compute on the inputs of cases.py.

Run by the peers' own interpreter, which install.sh makes:

    .venv-peers/bin/python tests/peers/make_fixture.py            writes
    .venv-peers/bin/python tests/peers/make_fixture.py --check    compares with the committed file, exit status 1
                                                                  and the first differences if any

Shapes: B sequence, T token.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import peer_trl
import peer_verl
import torch
from cases import LossCase, RewardCase, iteration_case, loss_cases, reward_cases

FIXTURE = Path(__file__).with_name("fixture.json")
PACKAGES = ("trl", "verl", "torch", "transformers", "numpy")
SIGNIFICANT_DIGITS = 13
TOLERANCE = 1e-11


def make_fixture() -> dict[str, Any]:
    """Versions, and one record per case with its inputs and the peers' outputs."""
    case = iteration_case()
    return {
        "versions": {name: version(name).partition("+")[0] for name in PACKAGES},
        "advantages": [_advantages(case) for case in reward_cases()],
        "losses": [_losses(case) for case in loss_cases()],
        "iterations": {**dataclasses.asdict(case), "trl": peer_trl.iterations(case)},
    }


def _advantages(case: RewardCase) -> dict[str, Any]:
    peers = {"trl": peer_trl}
    if not np.isnan(case.reward_PAG).any():
        peers["verl"] = peer_verl
    return {
        "name": case.name,
        "reward_PAG": case.reward_PAG,
        "own": {name: peer.grpo_advantages(case.reward_PAG, is_pooled=False) for name, peer in peers.items()},
        "pooled": {name: peer.grpo_advantages(case.reward_PAG, is_pooled=True) for name, peer in peers.items()},
        "scaled": {
            scale: peer_trl.grpo_advantages(case.reward_PAG, is_pooled=False, scale=scale)
            for scale in ("batch", "none")
        },
        "num_tokens_PAG": case.num_tokens_PAG,
        "others": peer_verl.other_advantages(case.reward_PAG, case.num_tokens_PAG) if len(peers) > 1 else {},
    }


def _losses(case: LossCase) -> dict[str, Any]:
    return {
        **dataclasses.asdict(case),
        "verl": peer_verl.policy_losses(case),
        "verl_k3": peer_verl.k3(case),
        "trl": peer_trl.policy_losses(case),
        "trl_corrected": peer_trl.corrected_losses(case),
        "trl_truncated": peer_trl.truncated_losses(case),
        "trl_entropy": peer_trl.entropy_loss(case),
        "verl_weights": peer_verl.correction_weights(case),
    }


def to_json(fixture: dict[str, Any]) -> str:
    """JSON text, one record per line; NaN as null, floats to the digits that do not depend on the processor."""
    parts = [f'"versions": {json.dumps(fixture["versions"])}']
    for key in ("advantages", "losses"):
        records = ",\n".join(json.dumps(_plain(record), separators=(",", ":")) for record in fixture[key])
        parts.append(f'"{key}": [\n{records}\n]')
    parts.append(f'"iterations": {json.dumps(_plain(fixture["iterations"]), separators=(",", ":"))}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain((value.astype(int) if value.dtype == bool else value).tolist())
    if isinstance(value, float):
        return None if np.isnan(value) else float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return value


def differences(found: Any, expected: Any, *, where: str = "") -> Iterator[str]:
    """Every place where two parsed fixtures differ by more than the tolerance, relative to the larger of 1."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key in found:
            yield from differences(found[key], expected[key], where=f"{where}/{key}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, where=f"{where}/{index}")
    elif isinstance(found, float) and isinstance(expected, float):
        if abs(found - expected) > TOLERANCE * max(1.0, abs(expected)):
            yield f"{where}: got {found!r}, expected {expected!r}"
    elif found != expected:
        yield f"{where}: got {found!r}, expected {expected!r}"


def main() -> int:
    """Write the fixture or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    is_check = parser.parse_args().check
    torch.set_num_threads(1)
    text = to_json(make_fixture())
    if not is_check:
        FIXTURE.write_text(text)
        print(f"{FIXTURE}: {len(text)} bytes")
        return 0
    found = list(differences(json.loads(text), json.loads(FIXTURE.read_text())))
    print("\n".join(found[:20]) or f"{FIXTURE}: the peers still compute these numbers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
