.PHONY: install train test test-fast test-directml check format wheel

install:  ## everything a developer needs, into the environment at hand
	pip install -e ".[dev]"

train:  ## the main job
	python -m trainers.run agent=sac env=fanuc

test:  ## the whole test suite
	pytest

test-fast:  ## the tests that are not marked slow
	pytest -m "not slow"

test-directml:  ## the tests marked directml, on torch-directml in an environment of their own
	.ci/test-directml

check:  ## style, types, layers
	ruff check .
	ruff format --check .
	mypy
	lint-imports

format:  ## mend style where it can be mended by itself
	ruff check --fix .
	ruff format .

wheel:  ## build the wheel, install it alone, run it outside the checkout
	.ci/wheel
