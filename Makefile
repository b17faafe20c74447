# make demo | make test | make check | make nightly | make e2e | make install | make bench | make simulate | make charts |
# make docs | make release | make artifacts; each does all of its own set-up, but for what `make e2e` needs of a machine: Docker, kind, kubectl and helm, or
# KIT=1; and `make charts`: Go.
SHELL := /bin/bash
# Of the virtual environment; none: as .ci/python finds one.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: demo test check nightly e2e e2e-ci install java tools bench simulate lint charts docs release artifacts clean

demo: $(VENV)/.demo java
	$(BIN)/python -m headrace_spark.demo

# make test ONLY="ruff,fast tests" | make test WITHOUT="spark tests"; .ci/stages.py has the stages.
ONLY ?=
WITHOUT ?=
test: $(VENV)/.dev java tools
	@$(BIN)/python .ci/stages.py --only "$(ONLY)" --without "$(WITHOUT)"

# Lint, types, imports, and the tests of changed packages: three minutes at most.
check: $(VENV)/.dev
	@$(BIN)/python .ci/check.py

# What finds more the longer it runs: see CONTRIBUTING.md.
nightly: $(VENV)/.dev java tools
	@$(BIN)/python .ci/nightly.py

# On kind, all of it (an hour and a quarter, then docs/e2e.md), or the gate's part. KIT=1 has kind from e2e/kind-kit, for machines
# that can pull no image: it changes the machine.
KIT ?= $(HEADRACE_E2E_KIT)
E2E := HEADRACE_E2E_KIT=$(KIT) $(BIN)/pytest e2e
e2e: $(VENV)/.dev tools
	@rm -f $${HEADRACE_E2E_REPORT:-e2e/report.jsonl}
	$(E2E)
	$(BIN)/python .ci/e2e_report.py

e2e-ci: $(VENV)/.dev
	HEADRACE_PATIENCE=$${HEADRACE_PATIENCE:-4} $(E2E) -m ci_part --durations=10

install: $(VENV)/.installed

bench: $(VENV)/.dev java
	$(BIN)/python -m bench.run

# One seed with its trace, or many: make simulate SEED=4711 | make simulate SEEDS=0:2000 JOBS=2
SEEDS ?= 0:200
JOBS ?= 1
simulate: $(VENV)/.dev
	@PYTHONPATH=nodeimage/tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --jobs $(JOBS))

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# Charts and CRDs as helm and Kubernetes' own code see them; needs Go.
charts: $(VENV)/.dev
	@.ci/charts $(BIN)

# A release of the version that the code names, by a commit and a tag; then the code is of the next one. Pushes nothing.
# make release | make release NEXT=1.0.0 | make artifacts: wheel, charts and images of what is checked out.
NEXT ?=
release: $(VENV)/.dev
	@$(BIN)/python .ci/release.py --next "$(NEXT)"

artifacts: $(VENV)/.dev
	@$(BIN)/python .ci/release.py --artifacts

# docs/resources.md, from crds/; the chart's dashboards, from .ci/dashboards.py.
docs: $(VENV)/.dev
	$(BIN)/python .ci/resources.py
	$(BIN)/python .ci/dashboards.py

# One stamp per set of extras; a change of pyproject.toml installs again.
$(VENV)/.venv:
	@.ci/python $(VENV) "$(PYTHON)"
	@touch $@

# The node's native pieces, beside their sources; without a C compiler it does without them.
NATIVE := nodeimage/headrace/native
$(VENV)/.native: $(VENV)/.venv .ci/build_native.py $(wildcard $(NATIVE)/*.c $(NATIVE)/_*.py $(NATIVE)/*.pxd)
	@for each in $$($(BIN)/python .ci/build_native.py --requires-inplace); do $(BIN)/python -m pip install --quiet $$each; done
	@$(BIN)/python .ci/build_native.py --inplace
	@touch $@

$(VENV)/.demo: $(VENV)/.venv $(VENV)/.native pyproject.toml
	@echo "installing headrace and the demo's packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@ && rm -f $(VENV)/.installed

$(VENV)/.dev: $(VENV)/.venv $(VENV)/.native pyproject.toml
	@echo "installing headrace and the developers' packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	@touch $@ $(VENV)/.demo && rm -f $(VENV)/.installed

# Not editable, and machine code where there is a C compiler; it replaces what the stamps above stand for.
$(VENV)/.installed: $(VENV)/.venv pyproject.toml .ci/build_native.py $(shell find nodeimage/headrace operator/headrace_operator spark/headrace_spark -name '*.py')
	@echo "installing headrace and the demo's packages into $(VENV); its hot layers are compiled where there is a compiler ..."
	@HEADRACE_COMPILE=$${HEADRACE_COMPILE:-auto} $(BIN)/python -m pip install --quiet '.[demo]'
	@touch $@ && rm -f $(VENV)/.demo $(VENV)/.dev
	@$(BIN)/headrace --version

java:
	@.ci/java

tools: $(VENV)/.venv
	@.ci/tools $(BIN)

clean:
	rm -rf $(VENV) .demo dist build $(NATIVE)/*.so
