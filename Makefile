# Every target creates .venv and installs what it needs; nothing is installed twice while pyproject.toml stays.

PYTHON ?= python3
VENV   ?= .venv

PY      := $(VENV)/bin/python
# Neither installer compiles to bytecode what may never be imported. uv takes a fifth of pip's time; where it
# fails (an index that only pip's settings name, say), pip tries, and says what is wrong.
PIP     := $(PY) -m pip --disable-pip-version-check install --quiet --no-compile
UV      := UV_SYSTEM_CERTS=1 $(VENV)/bin/uv pip install --quiet --python $(PY)
install = { $(PIP) uv && $(UV) -e "$(1)"; } 2>/dev/null || $(PIP) -e "$(1)"
RUN     := $(VENV)/.installed-run
TEST    := $(VENV)/.installed-test
BENCH   := $(VENV)/.installed-bench
DOCS    := $(VENV)/.installed-docs
SOURCES := pyproject.toml setup.py

# Threads that wait give way: on a machine with other work, OpenMP's busy waiting makes parallel code many times
# slower.
export OMP_WAIT_POLICY ?= passive

# Tests start many Pythons, each of which would read the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test lint compiled stress bench docs clean

help:
	@echo "make demo    fit every loss on generated data and print a table (installs run-time packages only)"
	@echo "make test    lint, format, types, import directions, doctests and tests"
	@echo "make lint    the static part of make test"
	@echo "make stress  the tests that take minutes: what must not crash, get lost or go silently wrong; ends with a table"
	@echo "make docs    the site with its gallery, its inner links and all of its code; warnings are errors"
	@echo "make bench   speed and quality against other packages, on the real data where they are at hand"
	@echo "make clean   remove .venv and every cache"

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rgals needs Python >= 3.11: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Creating $(VENV) ..." >&2
	@$(PYTHON) -m venv $(VENV)

$(RUN): $(SOURCES) | $(PY)
	@echo "Installing rgals and its run-time packages into $(VENV) ..." >&2
	@$(call install,.)
	@touch $@

$(TEST): $(SOURCES) | $(PY)
	@echo "Installing rgals with its test packages into $(VENV) ..." >&2
	@$(call install,.[test])
	@touch $(RUN) $@

$(DOCS): $(SOURCES) | $(PY)
	@echo "Installing rgals with what its site needs into $(VENV) ..." >&2
	@$(call install,.[docs])
	@touch $(RUN) $@

$(BENCH): $(SOURCES) | $(PY)
	@echo "Installing rgals with the packages it is compared with into $(VENV) ..." >&2
	@$(call install,.[bench])
	@touch $(RUN) $@

demo: $(RUN)
	@$(VENV)/bin/rgals demo

lint: $(TEST)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Tests start many processes: what these need is compiled first, by two.
compiled: $(TEST)
	PYTHONPATH=tests $(PY) -m instruments.warm_up

test: $(TEST)
	@$(MAKE) --no-print-directory lint & lint=$$!; $(MAKE) --no-print-directory compiled && wait $$lint
	$(PY) -m pytest -n 3 --dist worksteal

stress: $(TEST)
	$(PY) -m pytest tests/stress --full
	$(PY) -m pytest -n 3 --dist worksteal --full

bench: $(BENCH)
	@for script in benchmarks/speed.py benchmarks/published.py; do \
	  if [ -f $$script ]; then echo "== $$script" && $(PY) $$script || exit 1; fi; \
	done

# Pages, examples and their pictures; then links and the code that is too long for make test.
docs: $(DOCS)
	$(PY) -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	$(PY) docs/check_site.py docs/_build/html
	$(PY) -m pytest tests/docs tests/test_readme.py --full

clean:
	rm -rf $(VENV) build dist docs/_build docs/api docs/gallery docs/sg_execution_times.rst *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find rgals tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
