# Each target says what it does; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo test test-slow test-extras soak mutants style quality audit bench gpu-check clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-11s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Create .venv and install Lacuna with pinned dependencies

# The mark is written last: an installation that was interrupted is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "== install: a virtual environment in $(VENV), versions from constraints.txt"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lacuna needs Python 3.11 or newer; say which with: make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,interop,tasks,web]"
	@mkdir -p $(VENV)/types && ln -sfn ../.. $(VENV)/types/lacuna  # for mypy and editors, which see no import hooks
	@touch $(INSTALLED)

demo: install ## From raw text to fine-tuned models, six or seven minutes on two cores
	@echo "== demo: tokenizer, encoder, decoder, classification, questions; then try them"
	@$(BIN)/python recipes/demo.py

test: install ## Run the fast tests, a process for each core
	@echo "== test: pytest"
	@$(BIN)/python -m pytest --numprocesses logical --dist loadfile --no-loadscope-reorder -m "not slow" --durations=10

test-slow: install ## Run the slow tests too
	@echo "== test-slow: pytest, with the slow ones"
	@LACUNA_EXAMPLES=1 $(BIN)/python -m pytest

test-extras: install ## Install wandb, trackio, lm_eval, trl, gensim and a notebook's kernel and run their tests, minutes
	@echo "== test-extras: versions from constraints.txt, then pytest"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[wandb,trackio,harness,trl,notebook,vectors]"
	@$(BIN)/python -m pytest -rs tests/training/test_trackers.py tests/recipes/test_lm_eval.py tests/interop/test_trl.py tests/test_notebook.py \
		tests/evaluation/test_word_vectors.py tests/benchmarks/test_transfer.py

soak: install ## Kill runs at random and take them up again, until they end equal to the bit; a few minutes
	@echo "== soak: pytest"
	@$(BIN)/python -m pytest tests/faults/test_soak.py

mutants: install ## Break 100 lines that matter, one at a time, and see whether a test notices; half an hour
	@echo "== mutants: tests that learn which lines they run, then mutants"
	@$(BIN)/python tests/mutants.py

style: install ## Format the code
	@echo "== style: ruff"
	@$(BIN)/ruff check --fix --quiet --exit-zero . && $(BIN)/ruff format .

quality: install ## Check format, lint and types
	@echo "== quality: ruff and mypy"
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/mypy recipes

# In an environment of its own: what is audited stays as it is. --strict: what nobody could look up is no success.
audit: ## Look up known flaws of the packages in constraints.txt, where the network allows
	@echo "== audit: pip-audit on constraints.txt, by way of pypi.org"
	@test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	@$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement constraints.txt \
	|| { echo "== audit: failed. A table above names the flaws; without one there is no verdict: the network does not reach pypi.org"; exit 1; }

bench: install ## Measure training speed and memory beside transformers' own models, ten minutes
	@echo "== bench: tokens per second and memory beside BERT, ModernBERT and GPT-2"
	@$(BIN)/python benchmarks/side_by_side.py

gpu-check: install ## Check kernels, compile, FSDP2, fp16 and resuming on one GPU, then measure its speed; ten minutes
	@echo "== gpu-check: a table of checks and speeds; it fails if anything is wrong"
	@$(BIN)/python tests/gpu_check.py

clean: ## Remove the environment, caches and the demo's runs
	@echo "== clean: $(VENV), caches, runs/demo"
	@rm -rf $(VENV) runs/demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
