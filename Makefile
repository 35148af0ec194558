# `make run` and `make test` need only Python >= 3.11, git and make.
PYTHON ?= python3
export OPENBLAS_NUM_THREADS ?= 1
# Else each of the many processes of the tests would compile Prefect, pandas and the rest from their sources again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test test-all test-newest check style layers types site bench clean lock

run: $(STAMP)
	$(BIN)/slackwater run

test: $(STAMP)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

# Two workers, however many cores there are: the slow tests start processes of their own.
test-all: $(STAMP)
	SLACKWATER_THREADS=2 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Independent of each other: `make -j2 check` runs two at a time.
check: style layers types site

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: $(STAMP)
	$(BIN)/lint-imports

types: $(STAMP)
	mkdir -p .types && ln -sfn .. .types/slackwater # mypy does not follow the editable install
	$(BIN)/mypy

# The docs as a site in build/site; a broken link or anchor fails. Only the layers with public names are linked for the API pages:
# the collector would walk .venv too.
site: $(STAMP)
	mkdir -p .types/api/slackwater
	ln -sfn ../../../__init__.py ../../../warehouse ../../../forecasting ../../../optimization .types/api/slackwater/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The environment: a virtual environment, uv in it through pip, and uv installs the locked versions. Every file is checked by its hash.
$(STAMP): requirements.lock requirements-uv.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --require-hashes -r requirements-uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $(STAMP)

# Refresh the lock file within the bounds of pyproject.toml.
lock:
	test -x $(BIN)/uv || ($(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv)
	$(BIN)/uv pip compile --quiet pyproject.toml --extra serve --group test --group check --group build --group docs --universal --generate-hashes \
	    --no-emit-index-url --no-annotate --custom-compile-command "make lock" --upgrade -o requirements.lock
	echo uv | $(BIN)/uv pip compile --quiet - --universal --generate-hashes --no-emit-index-url --no-annotate \
	    --custom-compile-command "make lock" --upgrade -o requirements-uv.lock

# The tests with the newest version of everything that pyproject.toml allows, in an environment of its own.
test-newest:
	test -x build/newest/bin/python || $(PYTHON) -m venv build/newest
	test -x build/newest/bin/uv || build/newest/bin/python -m pip install --quiet --require-hashes -r requirements-uv.lock
	build/newest/bin/uv pip install --quiet --python build/newest/bin/python --upgrade --group test --group build
	build/newest/bin/uv pip install --quiet --python build/newest/bin/python --upgrade --no-build-isolation --editable '.[serve]'
	build/newest/bin/uv pip list --python build/newest/bin/python --outdated
	build/newest/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

clean:
	rm -rf $(VENV) build dist reports .prefect .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
