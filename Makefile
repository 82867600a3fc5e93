.PHONY: install train test test-fast test-directml coverage check format wheel site serve

install:  ## everything a developer needs, into the active virtual environment
	pip install -e ".[dev]"

train:  ## the main job
	python -m trainers.run agent=sac env=fanuc

test:  ## the whole test suite
	pytest

test-fast:  ## the tests that are not marked slow
	pytest -m "not slow"

test-directml:  ## the tests marked directml, on torch-directml in a separate virtual environment
	.ci/test-directml

# Before Python 3.12 coverage needs a tracer, under which Genesis compiles for minutes; and it sees
# no line of other processes, in which most of the code runs that the other tests are about.
UNSEEN = tests/envs/lift_cube tests/envs/test_genesis.py tests/envs/fanuc/test_genesis.py \
    tests/test_clusters.py tests/torchrl_gpu/redirect/test_scripts.py \
    tests/trainers/test_console_script.py tests/trainers/test_ranks.py tests/trainers/test_signals.py

coverage:  ## line coverage of the library without lift_cube, by fast tests; fails below 90 %
	pytest -m "not slow" $(addprefix --ignore=,$(UNSEEN)) --cov-report=term --cov=agents \
	    --cov=trainers --cov=torchrl_gpu --cov=envs/fanuc --cov=envs/gym --cov=envs/marinenav

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
