# Each target does its own set-up, the first time and when pyproject.toml or the pinned versions change. All of it goes
# into .venv; the one exception is a browser for the tests. `make PYTHON=python3.12 test` chooses another Python.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
DEMO ?= demo
JOBS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
SOURCES := commands recorder site templates traces tests benchmarks
# Two test workers on two cores would fight if each let torch use both.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS)

OLDEST := 5.14.1
BETWEEN := 5.17.0 5.20.2

.PHONY: help demo test matrix ray lint format browser nginx clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '  make %-8s %s\n' "$$target" "$$text"; done

demo: .venv/record.stamp ## Record three small real runs on this machine and build a site from them (DEMO=folder).
	@$(BIN)/cbtrace demo -o $(DEMO)

test: .venv/dev.stamp .venv/transformers-$(OLDEST)/.stamp browser nginx ## Run all tests but those of make ray, on the newest and the oldest Transformers.
	$(PYTEST) -m 'not ray'
	PYTHONPATH=.venv/transformers-$(OLDEST) $(PYTEST) -m engine

matrix: .venv/dev.stamp $(patsubst %,.venv/transformers-%/.stamp,$(BETWEEN)) browser ## Run the engine tests on the supported Transformers that `make test` leaves out, and on a newer one if there is one; and those of make ray.
	@for version in $(BETWEEN); do \
		echo "== Transformers $$version"; \
		PYTHONPATH=.venv/transformers-$$version $(PYTEST) -m engine; \
	done
	@newest=$$($(BIN)/python -m pip --disable-pip-version-check index versions transformers 2>/dev/null \
		| sed -n '1s/.*(\(.*\)).*/\1/p'); \
	if [ -z "$$newest" ]; then echo 'PyPI did not say which Transformers is the newest.' >&2; exit 1; fi; \
	if $(BIN)/python -c "import importlib.metadata as m, sys; sys.exit(m.version('transformers') != '$$newest')"; then \
		echo "== Transformers $$newest, the newest on PyPI for this Python, is the one of make test"; \
	else \
		echo "== Transformers $$newest, the newest on PyPI for this Python"; \
		$(MAKE) --no-print-directory .venv/transformers-$$newest/.stamp; \
		PYTHONPATH=.venv/transformers-$$newest $(PYTEST) -m engine; \
	fi
	@$(MAKE) --no-print-directory ray

ray: .venv/dev.stamp ## Run the tests that need a Ray cluster; they start their own, of several nodes on this machine.
	$(PYTEST) --dist loadfile -m ray

lint: .venv/dev.stamp ## Check style (ruff) and types (mypy --strict, on the installed package).
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@rm -rf .venv/typed build && $(PIP) install --no-deps --no-build-isolation --target .venv/typed .
	@MYPYPATH=.venv/typed $(BIN)/mypy -p cbtrace

format: .venv/dev.stamp ## Format the code.
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

browser: # The tests of the pages need a real Chromium.
	@if command -v chromium chromium-browser google-chrome >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'Installing chromium for the tests of the pages.'; \
		apt-get update -qq >/dev/null; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo 'The tests of the pages need a browser: install Chromium (Debian: apt-get install chromium).' >&2; \
		exit 1; \
	fi

# Installing the package would start a server, so it is unpacked into .venv instead.
nginx: | .venv/bin/python # The test of publishing needs a real nginx.
	@if PATH=$$PATH:/usr/sbin command -v nginx >/dev/null || [ -x .venv/nginx/usr/sbin/nginx ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'Unpacking nginx into .venv for the test of publishing.'; \
		apt-get update -qq >/dev/null; \
		rm -rf .venv/nginx && mkdir .venv/nginx && cd .venv/nginx; \
		apt-get download -qq -o APT::Sandbox::User=root nginx >/dev/null; \
		dpkg-deb -x nginx_*.deb .; \
	else \
		echo 'The test of publishing needs nginx: install it (Debian: apt-get install nginx).' >&2; \
		exit 1; \
	fi

clean: ## Remove the environment and everything built.
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(DEMO)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
		{ echo 'cbtrace needs Python 3.10 to 3.13: name one, as in make PYTHON=python3.12 test.' >&2; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/record.stamp: pyproject.toml constraints/dev.txt | .venv/bin/python
	@echo 'Installing cbtrace with PyTorch and Transformers into .venv (minutes, the first time).'
	@$(PIP) install -c constraints/dev.txt -e '.[record]'
	@touch $@

.venv/dev.stamp: .venv/record.stamp
	@echo 'Installing the tools for tests and checks into .venv.'
	@$(PIP) install -c constraints/dev.txt -e '.[record,export,ray,zstd,dev]'
	@touch $@

# Another Transformers beside the one in the environment: first on PYTHONPATH, it is the one that is imported. Old ones
# bring the libraries that they need in other versions; one that is too new for a file of its own brings everything.
.SECONDEXPANSION:
.venv/transformers-%/.stamp: $$(wildcard constraints/transformers-$$*.txt) | .venv/dev.stamp
	@echo 'Installing Transformers $* beside the environment.'
	@rm -rf $(@D)
	@if [ -e constraints/transformers-$*.txt ]; then \
		$(PIP) install --no-deps --target $(@D) -r constraints/transformers-$*.txt; \
	else \
		$(PIP) install --target $(@D) transformers==$*; \
	fi
	@touch $@
