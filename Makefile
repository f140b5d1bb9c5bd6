# Needs Python 3.11, make and git. Another interpreter: make test PYTHON=/path/to/python3.11
# torch from your CPU wheel index, which is smaller: make test TORCH_INDEX_URL=...

PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3) python3)
VENV := .venv/bin/python
export TORCH_INDEX_URL

.PHONY: help reproduce reproduce-full test bench soak

help:
	@echo 'make reproduce        set up, run every paper at laptop scale, write results/index.html'
	@echo 'make reproduce-full   the same with the long runs'
	@echo 'make test             set up, run the tests'
	@echo 'make bench            set up, time training steps beside other libraries'
	@echo 'make soak             set up, kill ranks and damage checkpoints for half an hour'

reproduce:
	@$(PYTHON) -m infra.setup reproduce
	@$(VENV) -m papers --reproduce --html results/index.html

reproduce-full:
	@$(PYTHON) -m infra.setup reproduce-full
	@$(VENV) -m papers.sequence_parallelism.held_out --store
	@$(VENV) -m papers --reproduce --full --store --html results/index.html

test:
	@$(PYTHON) -m infra.setup test
	@$(VENV) -m pytest

bench:
	@$(PYTHON) -m infra.setup bench
	@$(VENV) -m tests.benchmarks

soak:
	@$(PYTHON) -m infra.setup soak
	@$(VENV) -m tests.soak
