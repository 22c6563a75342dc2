# The menu. `make` prints it; everything else sets up what it needs first (setup.sh) and then calls one program.
SHELL      := bash
VENV       := .venv
READY      := $(VENV)/.ready
EXPERIMENT ?= config/smoke.yaml
CORES      ?= all
GPU        ?= h200
SNAKEMAKE  := $(VENV)/bin/snakemake --cores $(CORES)
PYTEST     := $(VENV)/bin/python -m pytest
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := menu
.PHONY: menu setup run again test test-gpu-emulated evidence bench-gpu check bars validate-all golden doctor unlock clean

menu: ## print this menu
	@echo "moapipe: kernels derived from Mathematics-of-Arrays definitions, predicted, measured and explained"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

# An environment that was copied or linked here runs the moapipe of the place where it was made.
ifeq ($(shell grep -sF '$(CURDIR)/$(VENV)' $(VENV)/bin/activate),)
.PHONY: $(READY)
endif

$(READY): constraints.txt pyproject.toml setup.sh
	@./setup.sh

setup: $(READY) ## set up what is missing: system programs, .venv from constraints.txt

run: $(READY) ## run an experiment to its archive and print its table (EXPERIMENT=config/smoke.yaml CORES=all)
	@$(SNAKEMAKE) --config experiment=$(EXPERIMENT) -- archive
	@moapipe table $(EXPERIMENT)

again: $(READY) ## measure again where a case has no valid sample or was killed, and nowhere else (EXPERIMENT=…)
	@$(SNAKEMAKE) --config experiment=$(EXPERIMENT) --forcerun bench -- archive
	@moapipe table $(EXPERIMENT)

# three workers for two cores: tests that go through a Slurm, a bench or a lock wait for much of their time
test: $(READY) ## run the tests, except those marked slow
	@$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

check: $(READY) ## lint, types, import contracts, sizes
	@ruff check .
	@mypy
	@lint-imports --no-logo
	@$(PYTEST) tests/test_architecture.py

test-gpu-emulated: $(READY) ## run texts for GPUs without one: under the shim, Oclgrind and PoCL, and what their compilers make of them
	@$(PYTEST) -n 2 --dist loadfile tests/lab/test_emulation.py tests/lab/test_opencl.py tests/lab/test_mutant.py tests/lab/test_offload.py tests/lab/test_evidence.py tests/lab/test_gpu.py tests/lab/test_binary.py tests/targets/test_device.py

evidence: $(READY) ## what is known of every text for a GPU, without one: compiled, emulated, interpreted (long; resumes)
	@$(SNAKEMAKE) --config experiment=config/evidence.yaml -- evidences
	@moapipe evidence config/evidence.yaml

bench-gpu: $(READY) ## build, validate and measure on one GPU, within ten minutes; resumes (GPU=h200: config/machines/h200.yaml)
	@moapipe doctor --machine $(GPU)
	@$(SNAKEMAKE) --config experiment=config/gpu.yaml machine=$(GPU) -- archive
	@moapipe table config/gpu.yaml --machine $(GPU)

bars: $(READY) ## speed comparisons against their floors, ratios within one run; wants a quiet machine
	@$(SNAKEMAKE) --config experiment=config/bars.yaml -- archive
	@moapipe bars config/bars.yaml

validate-all: $(READY) ## the whole validation matrix and every test marked slow (long)
	@$(PYTEST) -n 2 -m "slow and not gpu"

golden: $(READY) ## rewrite the golden texts after an intended change; review the difference like code
	@$(PYTEST) -m "not gpu" --update-golden tests/targets

doctor: $(READY) ## what this machine has, and what is wrong with it
	@moapipe doctor

unlock: $(READY) ## after a kill -9 of a run: take away the lock that it left
	@$(SNAKEMAKE) --unlock --config experiment=$(EXPERIMENT)

clean: ## remove derived texts, builds and logs; measurements and archives stay
	rm -rf results/derive results/build results/validate results/logs
