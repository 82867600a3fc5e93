.PHONY: install train test test-slow test-directml coverage check format wheel site serve

install:  ## everything a developer needs, into the active virtual environment
	pip install -e ".[dev]"

train:  ## the main job
	python -m trainers.run agent=sac env=fanuc

test:  ## the tests that are not marked slow
	pytest

test-slow:  ## the others
	pytest -m slow

test-directml:  ## the tests marked directml, on torch-directml in a separate virtual environment
	.ci/test-directml

# Before Python 3.12 coverage needs a tracer, under which Genesis compiles for minutes.
GENESIS = $(addprefix --ignore=tests/envs/,lift_cube test_genesis.py fanuc/test_genesis.py)

coverage:  ## line coverage of the library without `lift_cube`, by `make test`; fails below 90 %
	pytest $(GENESIS) --cov-report=term --cov=agents --cov=trainers --cov=torchrl_gpu \
	    --cov=envs/fanuc --cov=envs/gym --cov=envs/marinenav

check:  ## style, types, layers
	ruff check .
	ruff format --check .
	mypy
	lint-imports

format:  ## correct formatting and the lint errors that can be corrected automatically
	ruff check --fix .
	ruff format .

wheel:  ## build wheel and source distribution, run and test them outside the checkout
	.ci/wheel

MKDOCS = NO_MKDOCS_2_WARNING=1 python -m mkdocs

site:  ## the documentation as a site in site/; needs the extra `docs`
	$(MKDOCS) build

serve:  ## the site at http://127.0.0.1:8000 while its pages are edited
	$(MKDOCS) serve
