# `make demo` and `make test` need Python 3.11 or later (and Java 17 or later for Spark); they install the rest.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
VENV   := .venv
BIN    := $(VENV)/bin
# The versions that are tested; another file tries others, as CI does.
CONSTRAINTS ?= constraints.txt
EXTRAS ?= all,deploy,dev,dg
# One process for Spark, one for Airflow, one for the other orchestrators, two for the rest: most of them wait.
# JOBS=0 runs all in one.
JOBS   ?= 5

# A shell that forbids bytecode makes every start compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test quick check matrix chaos bench peers race profile format docs java chromium clean

help:
	@echo "make demo    orders through Airflow, Spark and Dagster     (ARGS=--quick, ARGS=--cluster)"
	@echo "make test    all tests on private servers                  (ARGS='-k name' for some)"
	@echo "make quick   without Airflow, Spark, chaos, crash points and pages, on one kind of server"
	@echo "make check   format, lint, types, layers; prints figures of size and nesting"
	@echo "make matrix  Airflow's classes on Airflow 3.1, 3.2, 3.3    (VERSIONS=3.1 for one)"
	@echo "make format  formats, and fixes what the linter can fix"
	@echo "make chaos   workers, servers, database fail at random     (SECONDS=600 for longer)"
	@echo "make bench   ratios against raw redis-py                   (ONLY=core for a part)"
	@echo "make peers   the same job on other queues                  (ARGS='--only dramatiq')"
	@echo "make race    all of them, speed and kills, with a picture  (ARGS='--no-kills')"
	@echo "make profile where the time of a message goes              (ARGS='--kind no-op')"
	@echo "make docs    the documentation as a site, offline          (ARGS=--serve while you write)"
	@echo "make chromium finds Chromium for the tests of the page, or installs it where it can"
	@echo "make java    finds Java 17, or installs it where it can"
	@echo "make clean   removes .venv, .venv-airflow and caches"

demo: $(if $(findstring --quick,$(ARGS)),$(VENV)/.core,$(VENV)/.all java)
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(VENV)/.all java chromium $(VENV)/spark.jsa
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

quick: $(VENV)/.all
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --quick $(ARGS)

check: $(VENV)/.all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python .ci/figures.py

matrix: $(VENV)/.made
	.ci/matrix $(or $(VERSIONS),3.1 3.2 3.3)

chaos: $(VENV)/.all
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) $(ARGS)

bench: $(VENV)/.all
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(ARGS)

peers: $(VENV)/.all
	$(BIN)/python -m benchmarks.peers $(ARGS)

race: $(VENV)/.all
	$(BIN)/python -m benchmarks.peers.race $(ARGS)

profile: $(VENV)/.all
	$(BIN)/python -m benchmarks.flame_graph $(ARGS)

format: $(VENV)/.all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.all
	$(BIN)/python -m docs_site $(ARGS)

# Each stamp is newer than what it was made from: a second run does no set-up again.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; $(PYTHON) is older. Set PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) uv
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml $(CONSTRAINTS)
	$(call install,.[embedded],matplotlib psutil rich)

$(VENV)/.all: $(VENV)/.made pyproject.toml $(CONSTRAINTS)
	$(call install,.[$(EXTRAS)])
	@touch $(VENV)/.core

comma := ,
define install
	@echo "installing $(1) $(2) (once)"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint $(CONSTRAINTS) --editable '$(1)' $(2) \
	  || $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '$(1)' $(2)
	@touch $@
endef

java:
	@.ci/java

chromium:
	@.ci/chromium

# Every Java process of the tests maps Spark's classes from it, instead of loading each of them anew.
$(VENV)/spark.jsa: $(VENV)/.all | java
	@echo "archiving Spark's classes (once)"
	@$(BIN)/python -m tests.with_spark.class_archive $@ >/dev/null 2>&1 || echo "went without"

clean:
	rm -rf $(VENV) .venv-airflow .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
