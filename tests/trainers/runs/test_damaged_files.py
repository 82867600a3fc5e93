"""Whatever the files of a run hold, they are loaded or refused in one short line."""

from pathlib import Path

import pytest

from tests.helpers.damaged_runs import AGENTS, DamagedRuns, refusal
from tests.helpers.mutations import StateFile
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError
from trainers import load_policy

# The program itself, which takes longer than the library, reads one file of each block.
WAYS = ("load", "load", "load", "load_policy", "load_policy") * 10
BLOCKS, PROGRAM = 6, ("resume", "mode=eval", "mode=demo")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> DamagedRuns:
    return DamagedRuns(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("agent", AGENTS)
def test_whole_files_are_loaded_in_every_way(agent: str, runs: DamagedRuns) -> None:
    for way in runs.ways.values():
        assert refusal(way, runs.whole(agent)) is None


def test_the_damage_is_valid_again(runs: DamagedRuns) -> None:
    file = runs.whole().file
    state = load_state(file)
    parsed = StateFile.read(file.read_bytes())
    file.write_bytes(parsed.written())
    assert str(load_state(file)) == str(state)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_damaged_files_are_loaded_or_refused_in_one_line(block: int, runs: DamagedRuns) -> None:
    ways = [*WAYS[:-1], PROGRAM[block % len(PROGRAM)]]
    ends = set()
    for seed, way in enumerate(ways, start=block * len(WAYS)):
        damaged = runs.damaged(seed, way)
        try:
            ends.add(refusal(runs.ways[way], damaged) is None)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {way}, {damaged}") from error
    assert ends == {True, False}


def test_an_agent_that_is_far_larger_than_its_file_is_not_built(runs: DamagedRuns) -> None:
    whole = runs.whole()
    state = load_state(whole.file)
    state["config"]["agent"]["hidden_sizes"] = [20_000, 20_000]
    save_state(whole.file, state)
    for way in ("load_policy", "resume", "mode=eval", "mode=demo"):
        line = refusal(runs.ways[way], whole)
        assert line is not None
        assert "far larger than the file" in line


def test_names_of_any_length_take_no_memory(runs: DamagedRuns, tmp_path: Path) -> None:
    state = load_state(runs.whole().file)
    state["config"]["n" * 10**6] = {str(index): index for index in range(10_000)}
    save_state(tmp_path / "long.safetensors", state)
    with pytest.raises(ConfigurationError, match=r"its configuration is damaged or too large$"):
        load_policy(tmp_path / "long.safetensors")
