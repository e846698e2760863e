#!/usr/bin/env bash
# Three of vLLM's real tests, run before every change lands: agreement with the learner, a hand-over, one training. At
# most 18 minutes: 9 for the installation, which is skipped where there is no package index, and 9 for the tests, which
# have to pass.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
timeout --kill-after=10 540 bash "$root/tests/vllm/install.sh" >"$log" 2>&1 || status=$?
if [ "$status" != 0 ]; then
    if grep -q ResolutionImpossible "$log"; then # our own requirements contradict each other
        grep -v "^WARNING" "$log" | tail -n 20
        exit 1
    fi
    reason=$(grep -m 1 "ERROR: " "$log" | sed "s/^ *//" || true)
    [ "$status" != 124 ] || reason="it takes longer than 9 minutes"
    echo "short vLLM trial: skipped, .venv-vllm cannot be installed: ${reason:-exit status $status}"
    exit 0
fi

tests=(
    "test_reported_logprobs_are_those_of_the_learner[qwen3-1.0]"
    "test_weights_are_the_learners_after_a_hand_over_and_not_before[qwen3]"
    test_experiment_trains_and_its_sampler_stays_with_its_learner
)
cd "$root"
timeout --kill-after=10 540 .venv-vllm/bin/python -m pytest "${tests[@]/#/tests/engines/vllm/test_vllm_sampler.py::}"
