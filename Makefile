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

# Genesis would compile all its kernels anew, with probes of their coverage.
coverage:  ## the whole test suite, with the line coverage of the library; fails below 90 %
	QD_KERNEL_COVERAGE=0 pytest --cov --cov-report=term

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
