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
# no line of other processes, in which most of the code runs that some tests are about.
UNSEEN = $(addprefix tests/,envs/lift_cube envs/test_genesis.py envs/fanuc/test_genesis.py \
    test_clusters.py torchrl_gpu/redirect/test_scripts.py $(addprefix trainers/,collecting \
    test_console_script.py test_ranks.py test_robot.py test_signals.py))
# The longest of the others, which run few lines that no other test runs.
LONG = $(addprefix tests/,test_benchmarks.py test_benchmarks_peers.py test_benchmarks_resume.py \
    test_docs.py test_every_accelerator.py test_every_agent.py test_extending.py test_pretrained.py \
    test_site.py envs/fanuc/test_worker_pool.py envs/gym/test_state.py envs/marinenav/test_env.py \
    $(addprefix torchrl_gpu/,environments/test_adapter_state.py execution/test_compile.py \
    execution/test_graphs.py replay/test_parts.py test_distributed.py) \
    $(addprefix trainers/,exporting/test_every_export.py exporting/test_page.py \
    runs/test_damaged_files.py test_automatic_resume.py test_disasters.py test_launching.py \
    test_tune.py))

coverage:  ## line coverage of the library without lift_cube, by fast tests; fails below 90 %
	pytest -m "not slow" $(addprefix --ignore=,$(UNSEEN) $(LONG)) --cov-report=term --cov=agents \
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
