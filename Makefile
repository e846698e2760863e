# Every target makes its own .venv when it is missing; a second call does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES := $(VENV)/.engines

.PHONY: demo test check bench dashboard clean test-peers peers-fixture test-vllm test-vllm-short

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard]"
	@touch $@

# Half a minute more: the engines whose tests would otherwise be skipped. vLLM has an environment of its own.
$(ENGINES): $(STAMP)
	@echo "adding DeepSpeed, Ray, peft and the driver of PostgreSQL to $(VENV)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard,deepspeed,ray,lora,team]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/hacpo demo

# Three processes on two cores: many tests wait for others' processes.
test: $(ENGINES)
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: $(ENGINES)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -m "not slow"

# Every measurement of docs/performance.md; vLLM takes part where `make test-vllm` has installed it. Verification comes
# first: it alone needs data (HACPO_DATA_DIR), and says so at once.
SAMPLING := $(or $(wildcard .venv-vllm/bin/python),$(BIN)/python)
bench: $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,dashboard,ray,bench]"
	@$(BIN)/python -m benchmarks.verification
	@$(BIN)/python -m benchmarks.against_trl
	@$(SAMPLING) -m benchmarks.sampling
	@$(BIN)/python -m benchmarks.update
	@$(BIN)/python -m benchmarks.orchestration
	@$(BIN)/python -m benchmarks.scaling

dashboard: $(STAMP)
	@$(BIN)/hacpo dashboard

# TRL and verl, in an environment of their own, still compute the committed fixture, and we agree with it.
test-peers: $(STAMP)
	@bash tests/peers/install.sh
	@$(BIN)/python -m pytest tests/peers/test_live.py tests/algo/test_peers.py

peers-fixture:
	@bash tests/peers/install.sh
	@.venv-peers/bin/python tests/peers/make_fixture.py

# vLLM for the CPU, in an environment of its own (the first time: 200 MB to download). The last file has a process of its
# own: an engine of vLLM in the process ends torch.distributed, whose group an earlier DeepSpeed of the process keeps.
test-vllm:
	@bash tests/vllm/install.sh
	@.venv-vllm/bin/python -m pytest --durations=5 tests/engines/vllm tests/flows/doctor/test_doctor.py
	@.venv-vllm/bin/python -m pytest --durations=5 tests/flows/doctor/test_engine_trial.py

# A few of them for .ci/run, at most 15 minutes with the installation; skipped where nothing can be installed.
test-vllm-short:
	@bash tests/vllm/short.sh

clean:
	rm -rf $(VENV) .venv-peers .venv-vllm runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
