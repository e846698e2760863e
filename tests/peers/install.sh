#!/usr/bin/env bash
# Makes .venv-peers: TRL and verl as published, away from the project's own environment. Does nothing the second time.
#
# torch goes first, with its needs, and its version is exact: a plain `torch` fetches gigabytes of CUDA. The rest is
# installed with --no-deps from requirements.txt, which names every package: verl asks for twice as many as the four
# modules used here import (peft, torchdata, wandb, tensorboard, pybind11, pylatexenc and hydra-core are left out).
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
wanted=$root/tests/peers/requirements.txt
venv=$root/.venv-peers
stamp=$venv/installed.txt

if cmp --silent "$wanted" "$stamp"; then
    exit 0
fi
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "$(grep '^torch==' "$wanted")"
"$venv/bin/python" -m pip install --quiet --no-deps --requirement "$wanted"
"$venv/bin/python" -c "import trl.trainer.grpo_trainer, verl.trainer.ppo.core_algos"
cp "$wanted" "$stamp"
