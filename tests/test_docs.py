"""Links and commands of README, CONTRIBUTING and docs."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from envs.lift_cube.arm import PANDA
from envs.lift_cube.observation import observation_elements
from envs.lift_cube.task import TERMS
from tests.helpers.agents import Case, every_agent, make_batch
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line import checking
from trainers.command_line.composition import runs_of
from trainers.command_line.help import help_text
from trainers.command_line.launching import is_of_launcher
from trainers.run import settings_of

REPOSITORY = Path(__file__).parent.parent
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]

PROGRAM = ["python", "-m", "trainers.run"]
ENDS = {"&&", "||", "|", ";", "&", "done"}
# Names that stand for the reader's own: AGENT, ENV, NAME, a package, a file.
PLACEHOLDER = re.compile(r"=[A-Z]+$|my_\w+[.:]|=/path/|\.\.\.")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of the program in bash blocks and inline code of a page."""
    inline = re.findall(r"`(python -m trainers\.run [^`\n]+)`", without_code(text))
    for block in (*re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE), *inline):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
            lexer.whitespace_split = True
            words = list(lexer)
            for start in range(len(words)):
                if words[start : start + len(PROGRAM)] == PROGRAM:
                    rest = words[start + len(PROGRAM) :]
                    yield list(takewhile(lambda word: word not in ENDS, rest))


def checkable(arguments: list[str]) -> bool:
    """Whether a command has no placeholders and no checkpoint or export of the reader's own."""
    own = ("checkpoint=", "policy=")
    checkpoints = [a.partition("=")[2] for a in arguments if a.startswith(own)]
    return not any(PLACEHOLDER.search(argument) for argument in arguments) and all(
        path.startswith("pretrained:") or (REPOSITORY / path).exists() for path in checkpoints
    )


# Each command once, with the first page that has it.
FOUND = {
    " ".join(arguments): (name, arguments)
    for page, name in reversed(list(zip(PAGES, NAMES, strict=True)))
    for arguments in commands(page.read_text())
    if checkable(arguments)
}
COMMANDS = [
    pytest.param(arguments, id=f"{name}: {line}")
    for line, (name, arguments) in sorted(FOUND.items(), key=lambda item: item[1])
]


def first_run(arguments: list[str]) -> list[str]:
    """Return the arguments of the first run of a command that starts several."""
    if "-m" not in arguments:
        return arguments
    of_runs = [each for each in arguments if each != "-m" and not is_of_launcher(each)]
    return runs_of(of_runs)[0].settings


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    for link in links:
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("arguments", COMMANDS)
def test_every_command_passes_the_checks_of_the_program(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(checking, "free_port", lambda host, port: port)  # whatever listens here
    if any("ALE/" in argument or "pong" in argument for argument in arguments):
        pytest.importorskip("ale_py", reason="the extra `atari` is not installed")
    for package in re.findall(r"env\.name=(\w+):", " ".join(arguments)):
        pytest.importorskip(package, reason="not a dependency")
    # A shell variable is a number here; the device of the command may not exist on this machine.
    arguments = [re.sub(r"\$\w+", "1", argument) for argument in arguments]
    arguments = [re.sub(r"^device=.*", "device=cpu", argument) for argument in arguments]
    if "--help" in arguments:
        others = [argument for argument in arguments if argument != "--help"]
        assert "Settings of agent (" in help_text(others)
        return
    experiments = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
    for experiment in set(experiments) - {"null"}:
        assert (REPOSITORY / "configs" / "experiment" / f"{experiment}.yaml").exists()
    settings = settings_of(*first_run(arguments))
    typed = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    assert settings.general.mode == typed.get("mode", "train")


# Commands that the settings beside those of another library may belong to.
BASES = [
    ["agent=sac", "env=gym", "env.name=Pendulum-v1"],
    ["agent=ppo", "env=gym", "env.name=CartPole-v1"],
    ["agent=sac", "env=fanuc"],
]


def beside_others() -> list[str]:
    """Return the settings in the last column of the tables that compare libraries."""
    page = (REPOSITORY / "docs" / "coming_from.md").read_text()
    cells = [row.rstrip(" |").rpartition(" | ")[2] for row in page.splitlines() if row[:2] == "| "]
    codes = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return [code for code in codes if re.match(r"(-m )?[a-z_.]+=[^.]", code)]


@pytest.mark.parametrize("typed", beside_others())
def test_every_setting_beside_those_of_another_library_is_one(typed: str) -> None:
    reasons = []
    for base in BASES:
        arguments = first_run([*base, *typed.split()])
        try:
            settings_of(*arguments)
        except ConfigurationError as error:
            reasons.append(str(error))
        else:
            return
    raise AssertionError(reasons)


def scripts() -> Iterator[Any]:
    """Yield each Python block of the pages with scripts, named after its heading."""
    for name in ("scripts.md", "interoperability.md", "coming_from.md", "gym.md"):
        page = (REPOSITORY / "docs" / name).read_text()
        for section in re.split(r"^##+ ", page, flags=re.MULTILINE):
            for code in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
                yield pytest.param(code, id=section.partition("\n")[0])


# Sizes of the scripts, and those with which they take a second.
SHORTER = {
    '"trainer.total_frames=20000"': '"experiment=null", "trainer.total_frames=40", '
    '"trainer.random_frames=20", "trainer.evaluation_episodes=2", "evaluation.episodes=2", '
    '"env.num_envs=2", "env.max_episode_steps=5", "device=cpu"',
    '"trainer.total_frames=10000"': '"experiment=null", "trainer.total_frames=40", '
    '"trainer.random_frames=20", "evaluation.episodes=2", "device=cpu"',
    "total_frames=200_000": "total_frames=40, random_frames=20, evaluation_episodes=2",
    "total_frames=100_000": "total_frames=40, random_frames=20",
    "total_frames=50_000": "total_frames=40, random_frames=20, evaluation_episodes=2",
    "FanucEnv(": "FanucEnv(max_episode_steps=5, ",
    'mode="eval")': 'mode="eval", num_envs=2)',
    "range(10_000)": "range(5)",
    "learn(100_000)": "learn(40)",
    "learn(10_000)": "learn(40)",
    "total_frames=2_048": "total_frames=128",
    "num_envs=64": "num_envs=4",
    "num_envs=32": "num_envs=2",
}


@pytest.mark.parametrize("code", scripts())
def test_every_script_runs_as_it_stands(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modules = re.findall(r"^from ((?:agents|envs|trainers|torchrl_gpu)\S*)", code, re.MULTILINE)
    bridges = {"torchrl_gpu.stable_baselines", "torchrl_gpu.rsl_rl"}
    assert {*modules} <= {"agents", "envs", "trainers", "trainers.run", "torchrl_gpu"} | bridges
    for package in ("stable_baselines3", "rsl_rl"):
        if f"from {package}" in code:
            pytest.importorskip(package)
    for long, short in SHORTER.items():
        code = code.replace(long, short)
    exec(compile(code, "script", "exec", dont_inherit=True), {"__name__": "__main__"})


def test_the_commands_of_the_docs_are_found() -> None:
    assert "agent=sac env=fanuc" in FOUND
    assert len(FOUND) > 20


@every_agent
def test_every_metric_of_an_agent_is_explained(case: Case) -> None:
    agent = case.make()
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    for name in agent.update(make_batch(agent)).metrics:
        assert f"`{name}`" in page, name


def test_the_observation_of_lift_cube_is_explained_by_index() -> None:
    elements = observation_elements(PANDA, with_cube=True)
    text = (REPOSITORY / "docs/lift_cube.md").read_text()
    rows = re.findall(r"\| (\d+) to (\d+) \| .* \| (\S*) ?\| (.*) \| ([\d.]+).* \|\n", text)
    assert [int(row[0]) for row in rows[1:]] == [int(row[1]) + 1 for row in rows[:-1]]
    assert int(rows[-1][1]) + 1 == len(elements)
    for first, last, unit, zero, scale in rows:
        described = elements[int(first) : int(last) + 1]
        assert {each.scale for each in described} == {float(scale)}
        assert all(each.unit.split(" or ")[0] == unit for each in described)
        if zero not in ("home posture", "closed"):
            zeros = [float(number) for number in zero.split(", ")]
            assert [each.offset for each in described] == zeros * (len(described) // len(zeros))


def test_every_term_of_the_reward_of_lift_cube_is_explained() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    assert all(f"`reward/{term}`" in page for term in TERMS["lift"])
