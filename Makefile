# Two commands do everything on a fresh machine: `make run` and `make test`.
# Both set up .venv first; the second time that takes no time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
DOCS   := .venv-docs
SERVE  := .venv-serve
FRESH  := .venv-release
TORCH  := torch==2.13.0
SPEC   ?= digits
SERVED := tests/serving src/mixup_inference/serving "tests/test_docs.py::test_the_code_of_a_page_runs[serving]"

.PHONY: help run test slow serve-test serve-slow serve-bench bench lint format docs pages modules cards release-check clean

help:
	@echo "make run     set up, then run the digits experiment (SPEC=name or file for another)"
	@echo "make test    set up, then run the tests"
	@echo "make slow    the tests that take minutes"
	@echo "make serve-test  the tests of the server, in .venv-serve (serve-slow: those that take minutes)"
	@echo "make bench   measure speed against the limit and against peers (some minutes)"
	@echo "make serve-bench  measure the server against the bare model behind it (10 minutes)"
	@echo "make lint    formatting, lint, types, import layers"
	@echo "make format  apply the formatter"
	@echo "make docs    build the documentation into site/"
	@echo "make pages   fill the README and the results pages from results/"
	@echo "make modules fill the list of modules in docs/architecture.md"
	@echo "make cards   write the cards of the shipped models (needs CIFAR-10 and CIFAR-100)"
	@echo "make release-check  build sdist and wheel, and try the wheel in an empty environment"
	@echo "make clean   remove .venv and caches (runs/ is kept)"

# torch comes first and with its own dependencies, because its builds differ between sources;
# everything else is pinned in the locks, with hashes, and needs no resolver.
$(VENV)/.run-ready: requirements/run.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 2; }
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet $(TORCH)
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/run.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev-ready: requirements/dev.lock $(VENV)/.run-ready
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/dev.lock
	@touch $@

run: $(VENV)/.run-ready
	@$(BIN)/mixup-inference run $(SPEC)

test: $(VENV)/.dev-ready
	@$(BIN)/python -m pytest -q -n 2 -m "not slow"

slow: $(VENV)/.dev-ready
	@$(BIN)/python -m pytest -q -m slow

# kserve wants an older python-dateutil than the other locks have, so the server's packages get an
# environment of their own, which sees those of .venv behind its own.
$(SERVE)/.ready: requirements/serve.lock $(VENV)/.dev-ready
	@echo "Setting up $(SERVE) ..."
	@$(PYTHON) -m venv --clear $(SERVE)
	@$(SERVE)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r $<
	@$(SERVE)/bin/python -c "import sysconfig as s; from pathlib import Path; own = s.get_path('purelib'); \
		below = Path('$(VENV)').resolve() / Path(own).relative_to(Path('$(SERVE)').resolve()); \
		Path(own, 'below.pth').write_text(f'import site; site.addsitedir({str(below)!r})\n')"
	@touch $@

serve-test: $(SERVE)/.ready
	@$(SERVE)/bin/python -m pytest -q -m "not slow" $(SERVED)

serve-slow: $(SERVE)/.ready
	@$(SERVE)/bin/python -m pytest -q -m slow $(SERVED)

serve-bench: $(SERVE)/.ready
	@$(SERVE)/bin/python -m benchmarks.serving

bench: $(VENV)/.dev-ready
	@$(BIN)/python -m benchmarks

lint: $(VENV)/.dev-ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev-ready
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# The site needs neither torch nor the package: the API reference is read from the source.
$(DOCS)/.ready: requirements/docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r $<
	@touch $@

docs: $(DOCS)/.ready
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@$(DOCS)/bin/python tools/check_site.py site
	@echo "site/index.html"

pages: $(VENV)/.run-ready
	@$(BIN)/python tools/page.py

modules: $(VENV)/.run-ready
	@$(BIN)/python tools/modules.py

cards: $(VENV)/.run-ready
	@$(BIN)/python tools/cards.py

# The wheel is built from the sdist, so that both are whole.
release-check: $(VENV)/.run-ready
	@rm -rf dist build $(FRESH)
	@$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" > /dev/null
	@$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	@$(PYTHON) -m venv $(FRESH)
	@$(FRESH)/bin/python -m pip --disable-pip-version-check install --quiet $(TORCH)
	@$(FRESH)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes \
		-r requirements/run.lock
	@$(FRESH)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps dist/*.whl
	@cd $(FRESH) && bin/mixup-inference run digits --smoke --quiet && test -s runs/digits-smoke/report.html
	@ls -l dist

clean:
	rm -rf $(VENV) $(DOCS) $(SERVE) $(FRESH) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		build dist src/*.egg-info
