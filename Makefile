# Two commands do everything on a fresh machine: `make sweep` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= tpu,openvino,onnx,dev
BIN    := $(VENV)/bin

.PHONY: setup sweep test test-slow selftest bench lint clean screenshot

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

# Exit code 1 means that the sweep worked and found failures: no reason for make to fail.
sweep: setup
	rm -rf runs/demo
	$(BIN)/calipers sweep configs/demo.yaml --out runs/demo || test $$? -eq 1

test: setup
	$(BIN)/python -m pytest -m 'not slow and not browser'

test-slow: setup
	$(BIN)/python -m pytest -m 'slow or browser'

selftest: setup
	$(BIN)/calipers selftest

bench: setup
	$(BIN)/python -m tests.bench

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) runs build *.egg-info

# The README's picture, of the page that the last `make sweep` wrote.
screenshot:
	chromium --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
	  --window-size=1280,1180 --screenshot=docs/page.png file://$(CURDIR)/runs/demo/site/index.html
