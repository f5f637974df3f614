# Two commands are all a fresh machine needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
TEST_VENV := build/test-venv
CHECK := build/check
PIP_FLAGS := --disable-pip-version-check --quiet -c constraints.txt
RANKS ?= 4
# A file runs in one worker, so that what its tests start together is started once. Tests that time out or fail leave their reasons in the closing lines (-ra in pyproject.toml).
ELSEWHERE = not vm and not gpu and not slurm and not frameworks and not sweep and not ecosystem
PYTEST_FLAGS ?= -n 3 --dist loadfile --durations 25 -m "not slow and $(ELSEWHERE)"
FRAMEWORKS_VENV := build/frameworks-venv
DOCS_VENV := build/docs-venv

# What a wheel is made of: one is built, and installed for the tests, where anything of it is newer.
SOURCES := pyproject.toml README.md $(shell find perfscope -type f -not -path '*/__pycache__/*')

.PHONY: help demo demo-neighbor test test-slow test-sweep check-overhead test-slurm test-frameworks test-vm test-exports test-ecosystem test-gpu lint types system-packages wheel clean update-golden docs docs-version pictures recording schemes-doc json-doc man check-dist test-matrix constraints-hashes

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e ".[torch]"
	@touch $@

demo: $(VENV)/ready ## train the example on 4 processes under perfscope and write its report
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" perfscope run --name demo -- \
		torchrun --standalone --nproc-per-node $(RANKS) examples/train_cnn.py
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" perfscope report perfscope-runs/latest

demo-neighbor: $(VENV)/ready ## trains on 2 processes beside a noisy neighbor that uses one CPU for 6 seconds
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; python examples/busy_neighbour.py --after 10 --seconds 6 & \
		perfscope run --name with-neighbor -- \
		torchrun --standalone --nproc-per-node 2 examples/train_cnn.py; wait
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" perfscope report perfscope-runs/latest

$(TEST_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install $(PIP_FLAGS) build setuptools wheel
	@touch $@

wheel: $(TEST_VENV)/wheel

$(TEST_VENV)/wheel: $(TEST_VENV)/ready $(SOURCES)
	rm -rf build/dist build/lib build/bdist.*
	$(TEST_VENV)/bin/python -m build --no-isolation --wheel --outdir build/dist . > build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	$(TEST_VENV)/bin/python -m pip install $(PIP_FLAGS) "$$(ls build/dist/perfscope_hpc-*.whl)[test,torch]"
	$(TEST_VENV)/bin/python -m pip install $(PIP_FLAGS) --force-reinstall --no-deps build/dist/perfscope_hpc-*.whl
	@touch $@

# The tests run beside nothing but what they need, so that `import perfscope` finds the installed wheel.
$(CHECK): wheel
	rm -rf $(CHECK) && mkdir -p $(CHECK)
	cp -r tests examples benchmarks docs packaging action.yml mkdocs.yml pyproject.toml \
		constraints*.txt CITATION.cff .ci .github .pre-commit-config.yaml *.md $(CHECK)/

system-packages: ## install the Debian packages the tests can use (as root)
	@sh tests/system-packages.sh

lint: wheel
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/ruff format --check .

types: wheel
	$(TEST_VENV)/bin/mypy

test: system-packages lint types $(CHECK) ## build the wheel and run ruff, mypy and the tests against it
	cd $(CHECK) && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" sh tests/pytest.sh $(PYTEST_FLAGS)

# Those that look at times go by themselves.
TIMED = tests/planted $(addprefix tests/integration/test_, benchmarks.py check.py clean_run.py clock_skew.py \
	predict_held_out.py server_bound.py)

# The matrix of faults trains with JAX too, where the package index has it.
$(TEST_VENV)/jax: | wheel
	$(TEST_VENV)/bin/python -m pip install $(PIP_FLAGS) jax || echo "JAX cannot be installed: its cases are skipped"
	@touch $@

test-slow: PYTEST_FLAGS = --durations 25 -m "slow and $(ELSEWHERE)"
test-slow: $(CHECK) $(TEST_VENV)/jax ## the tests `make test` leaves out
	cd $(CHECK) && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" && \
		sh tests/pytest.sh -n 3 --dist loadgroup $(PYTEST_FLAGS) $(addprefix --ignore=,$(TIMED)) && \
		sh tests/pytest.sh $(PYTEST_FLAGS) $(TIMED)

test-sweep: $(CHECK) ## further settings of what the slow tests cover: half an hour
	cd $(CHECK) && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" python -m pytest -n 2 --dist loadgroup --durations 10 -m sweep

check-overhead: $(CHECK) ## gate what perfscope costs a training with `perfscope check`; some minutes
	cd $(CHECK) && rm -rf overhead && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" && \
		python benchmarks/overhead.py --only perfscope --kinds resnet --pairs 8 --steps 150 --save overhead && \
		{ perfscope check overhead/resnet-perfscope-* --against overhead/resnet-plain-* --name overhead || \
		test $$? -eq 3; } # inconclusive says something of this machine, nothing of perfscope

test-vm: $(CHECK) ## boot emulated machines (two sockets, Knights Landing, RDMA) and read them; a few minutes
	@sh tests/system-packages.sh tests/vm/debian-packages.txt
	cd $(CHECK) && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" PERFSCOPE_VM_CACHE="$(CURDIR)/build/vm-cache" \
		sh tests/pytest.sh -m vm -raP tests/vm

test-slurm: $(CHECK) ## real Slurm daemons on this machine (as root); under three minutes
	@sh tests/system-packages.sh tests/slurm/debian-packages.txt
	cd $(CHECK) && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" sh tests/pytest.sh -m slurm --durations 10 tests/slurm

$(FRAMEWORKS_VENV)/ready: $(TEST_VENV)/wheel tests/frameworks/requirements.txt constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install $(PIP_FLAGS) -r tests/frameworks/requirements.txt
	# It asks for the package `tensorflow`, which for CPUs is called otherwise.
	$(FRAMEWORKS_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps tf_keras==2.21.0
	$(FRAMEWORKS_VENV)/bin/python -m pip install $(PIP_FLAGS) "$$(ls build/dist/perfscope_hpc-*.whl)[test,torch,mpi]"
	$(FRAMEWORKS_VENV)/bin/python -m pip install $(PIP_FLAGS) --force-reinstall --no-deps build/dist/perfscope_hpc-*.whl
	@touch $@

# Horovod is compiled only when asked for: PERFSCOPE_BUILD_HOROVOD=1 make test-frameworks
test-frameworks: $(CHECK) $(FRAMEWORKS_VENV)/ready ## TensorFlow, Keras, JAX, MXNet, MPI and (if built) Horovod; downloads 2 GB
	sh tests/frameworks/make-mxnet-venv.sh build/mxnet-venv
	if [ -n "$$PERFSCOPE_BUILD_HOROVOD" ]; then sh tests/frameworks/build-horovod.sh $(FRAMEWORKS_VENV); fi
	cd $(CHECK) && PATH="$(CURDIR)/$(FRAMEWORKS_VENV)/bin:$$PATH" \
		PERFSCOPE_MXNET_PYTHON="$(CURDIR)/build/mxnet-venv/bin/python" \
		python -m pytest -m frameworks --durations 10 tests/frameworks

EXPORTS_VENV := build/exports-venv

$(EXPORTS_VENV)/ready: $(TEST_VENV)/wheel
	$(PYTHON) -m venv --clear $(EXPORTS_VENV)
	$(EXPORTS_VENV)/bin/python -m pip install $(PIP_FLAGS) \
		"$$(ls build/dist/perfscope_hpc-*.whl)[test,trackers,otf2,darshan]"
	@touch $@

test-exports: $(CHECK) $(EXPORTS_VENV)/ready ## trackers (MLflow, Weights & Biases, TensorBoard), OTF2 archives and logs of Darshan
	cd $(CHECK) && PATH="$(CURDIR)/$(EXPORTS_VENV)/bin:$$PATH" sh tests/pytest.sh -ra \
		tests/unit/cli/test_export_trackers.py tests/unit/reports/test_otf2.py tests/unit/collectors/test_darshan.py

ECOSYSTEM_VENV := build/ecosystem-venv

$(ECOSYSTEM_VENV)/ready: $(TEST_VENV)/wheel tests/ecosystem/requirements.txt tests/ecosystem/timm.txt
	$(PYTHON) -m venv --clear $(ECOSYSTEM_VENV)
	$(ECOSYSTEM_VENV)/bin/python -m pip install $(PIP_FLAGS) \
		-r tests/ecosystem/requirements.txt "$$(ls build/dist/perfscope_hpc-*.whl)[test]"
	$(ECOSYSTEM_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps --target $(ECOSYSTEM_VENV)/timm \
		-r tests/ecosystem/timm.txt
	@touch $@

test-ecosystem: $(CHECK) $(ECOSYSTEM_VENV)/ready ## programs of Lightning, Hugging Face, accelerate, Flax, Optuna, notebooks
	cd $(CHECK) && PATH="$(CURDIR)/$(ECOSYSTEM_VENV)/bin:$$PATH" sh tests/pytest.sh -m ecosystem \
		--durations 10 tests/ecosystem

test-gpu: $(CHECK) ## the tests that need an NVIDIA GPU
	cd $(CHECK) && PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" python -m pytest -m gpu tests

update-golden: ## rewrite the golden files from what the code prints now; read the diff before committing
	PERFSCOPE_UPDATE_GOLDEN=1 $(TEST_VENV)/bin/python -m pytest tests -k golden

$(DOCS_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install $(PIP_FLAGS) -e ".[docs]"
	@touch $@

docs: $(DOCS_VENV)/ready ## build the documentation into build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict # --quiet would hide what strict counts

docs-version: $(DOCS_VENV)/ready ## add the documentation of this version to the local branch gh-pages
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases \
		"$$($(DOCS_VENV)/bin/python -c 'import perfscope; print(perfscope.__version__)')" latest
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike set-default latest

pictures: wheel ## every picture of README and docs, of kept runs; those of pages need Chromium and chromedriver
	$(TEST_VENV)/bin/python docs/_site/pictures.py

recording: wheel ## the recorded session in README: trains, reports and compares in a pty, about two minutes
	$(TEST_VENV)/bin/python docs/_site/recording.py

man: $(VENV)/ready ## write a man page per command into build/man; `man -M build/man perfscope-run` shows one
	rm -rf build/man
	$(VENV)/bin/python docs/_site/man_pages.py build/man

DIST_VENV := build/dist-venv

$(DIST_VENV)/ready: packaging/requirements.txt constraints.txt
	$(PYTHON) -m venv --clear $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install $(PIP_FLAGS) -r packaging/requirements.txt
	@touch $@

check-dist: $(DIST_VENV)/ready ## build wheel and sdist twice, compare and check them, install; under three minutes
	sh packaging/check-dist.sh $(DIST_VENV)/bin/python

test-matrix: wheel ## the probe's and the readers' tests on each Python and torch that there is; see docs/matrix.md
	sh packaging/test-matrix.sh build/dist/perfscope_hpc-*.whl

constraints-hashes: $(DIST_VENV)/ready ## write constraints-hashes.txt anew from pyproject.toml and constraints.txt
	{ sed -n '/^#/p' constraints-hashes.txt; $(DIST_VENV)/bin/uv pip compile -q pyproject.toml --universal \
		--python-version 3.11 -c constraints.txt --generate-hashes --no-annotate --no-header \
		--no-emit-index-url; } > build/constraints-hashes.txt
	mv build/constraints-hashes.txt constraints-hashes.txt

schemes-doc: $(VENV)/ready ## write docs/schemes.md anew from the registry of schemes
	$(VENV)/bin/python -m perfscope.runners.catalogue.scheme_docs docs/schemes.md

json-doc: $(VENV)/ready ## write docs/json.md anew from the types of the JSON report
	$(VENV)/bin/python -m perfscope.reports.schema docs/json.md

clean: ## remove what the other targets made, but for the runs in perfscope-runs
	rm -rf build $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache
