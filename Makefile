# Two commands on a machine with Python 3.11, pip and make: `make train`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
# Processes that share the tests; each holds 16 fake devices and about 1 GB.
WORKERS ?= 2
PYTEST := $(BIN)/pytest -n $(WORKERS)
# Tests compile hundreds of programs and run each a few times: plain machine code, in one
# piece, which is made in a sixth of the time. The programs are the same; those that
# people get are run by the commands of the pages, and by laws that start processes.
PLAIN := XLA_FLAGS="--xla_backend_optimization_level=0 \
  --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

.PHONY: train test laws laws-all targets system-tests system-packages commands results docs check format env env-dev clean

train: env
	$(BIN)/jaxdist train digits

test: env-dev
	$(PLAIN) $(PYTEST) -m "not laws and not slow and not system and not target"

# What must hold for every layout; laws-all has the full matrix, and what takes long.
laws: env-dev
	$(PLAIN) $(PYTEST) -m "laws and not slow" tests/laws

laws-all: env-dev
	$(PLAIN) $(PYTEST) -m "(laws or slow) and not system and not target"

# Steps compiled for TPUs and GPUs that are not here. Their compilers take 0.7 and 6 GB
# and would look for devices in every other test, so they have an environment of their
# own. With PLATFORMS=tpu those of GPUs are left out.
PLATFORMS ?= tpu,cuda12
targets: $(VENV)-targets/$(PLATFORMS).stamp
	$(VENV)-targets/bin/pytest -n $(WORKERS) tests/targets tests/launch/analysis \
	  -m "target$(if $(findstring cuda,$(PLATFORMS)),, and not cuda)"

$(VENV)-targets/$(PLATFORMS).stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-targets
	PIP_CONSTRAINT=constraints.txt $(VENV)-targets/bin/pip install --quiet \
	  --disable-pip-version-check --editable '.[dev,$(PLATFORMS)]'
	touch $@

# Tests that mount file systems, shape networks, or start sshd, SLURM, Open MPI and
# Chromium: as root, on Linux.
system-tests: env-dev system-packages
	$(BIN)/pytest -m system tests

system-packages:
	@missing=""; \
	command -v mount >/dev/null || missing="mount"; \
	command -v ip >/dev/null && command -v tc >/dev/null || missing="$$missing iproute2"; \
	command -v ssh >/dev/null && test -x /usr/sbin/sshd || \
	  missing="$$missing openssh-client openssh-server"; \
	command -v sbatch >/dev/null && test -x /usr/sbin/slurmctld || \
	  missing="$$missing slurm-client slurmctld slurmd"; \
	command -v mpirun >/dev/null || missing="$$missing openmpi-bin"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	test -z "$$missing" || { \
	  test "$$(id -u)" = 0 || { echo "install $$missing, or run as root"; exit 1; }; \
	  apt-get update --quiet && apt-get install --quiet --yes $$missing; }

# Every command that the README and docs/ show, in a fresh copy of the checkout.
commands:
	$(PYTHON) .ci/commands.py

# The pages of measured figures, from benchmarks/results.
results:
	$(PYTHON) benchmarks/pages.py

# The docs as a site, in site/: open site/index.html, with or without a server. What
# builds it has an environment of its own; the reference is read from the code.
docs: env $(VENV)-docs/docs.stamp
	$(BIN)/python docs/reference.py build/reference
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet --strict
	$(PYTHON) .ci/site.py site

EXTRA := import sys, tomllib; \
  print(*tomllib.load(sys.stdin.buffer)["project"]["optional-dependencies"]["docs"], sep="\n")
$(VENV)-docs/docs.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(PYTHON) -c '$(EXTRA)' < pyproject.toml > $(VENV)-docs/requirements.txt
	PIP_CONSTRAINT=constraints.txt $(VENV)-docs/bin/pip install --quiet \
	  --disable-pip-version-check --requirement $(VENV)-docs/requirements.txt
	touch $@

check: env-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env: $(VENV)/env.stamp
env-dev: $(VENV)/dev.stamp

$(VENV)/env.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/env.stamp
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-targets $(VENV)-docs .mypy_cache .pytest_cache .ruff_cache \
	  build dist site
