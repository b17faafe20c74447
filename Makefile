# make demo | make test | make install | make bench; each does all of its own set-up.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test install java bench lint clean

demo: $(VENV)/.demo java
	$(BIN)/python -m headrace_spark.demo

test: $(VENV)/.dev java
	@.ci/stages $(BIN)

install: $(VENV)/.demo

bench: $(VENV)/.dev java
	$(BIN)/python -m bench.run

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# One stamp per set of extras; a change of pyproject.toml installs again.
$(VENV)/.venv:
	@.ci/python $(VENV) "$(PYTHON)"
	@touch $@

$(VENV)/.demo: $(VENV)/.venv pyproject.toml
	@echo "installing headrace and the demo's packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.venv pyproject.toml
	@echo "installing headrace and the developers' packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.demo

java:
	@.ci/java

clean:
	rm -rf $(VENV) .demo dist build
