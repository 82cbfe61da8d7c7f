# The two commands of the README do the whole set-up on a bare machine with Python 3.11 or 3.12.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO ?= demo
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test check docs slow clean

demo: $(READY)
	$(BIN)/driftlab study --profile smoke -o $(DEMO) --resume
	@echo "Open $(DEMO)/report.html"

test: $(READY)
	$(BIN)/python -m pytest -n auto

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) docs

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

slow: $(READY)
	$(BIN)/python -m pytest -m slow

# torch first and pinned: a looser request may fetch gigabytes of another build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) $(DEMO) dist build site
