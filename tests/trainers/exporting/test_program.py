"""mode=export, and mode=eval of exported policies, on the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.program import Call
from trainers.exporting.contract import CONTRACT, ONNX, PT2, sha256
from trainers.exporting.leapp import LEAPP
from trainers.exporting.page import PAGE
from trainers.run import run

pytest.importorskip("onnxscript")

SHORT = [
    *("device=cpu", "agent.hidden_sizes=[16,16]", "trainer.total_frames=80"),
    *("trainer.replay_capacity=1000", "trainer.random_frames=40", "trainer.evaluation_episodes=4"),
    *("evaluation.episodes=4", "trainer.loggers=[csv]"),
]
# A group of vessels with sets; a table of actions in the range of the simulator.
RUNS = {
    "sac": [
        *("env=marinenav", "env.num_envs=4", "env.num_robots=2", "env.num_obstacles=1"),
        "env.max_episode_steps=20",
    ],
    "dqn": [
        *("env=gym", "env.name=Pendulum-v1", "env.num_envs=4"),
        "env.options={max_episode_steps:20}",
    ],
}


@pytest.fixture(scope="module", params=RUNS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose policy has been exported."""
    agent, runs = request.param, f"runs={tmp_path_factory.mktemp('runs')}"
    folder = run(f"agent={agent}", *RUNS[agent], *SHORT, runs).folder
    run("mode=export", f"checkpoint={folder}")
    return folder


# The behaviour does not depend on the agent and the environment.
of_one_run = pytest.mark.parametrize("trained", ["dqn"], indirect=True)


@of_one_run
def test_an_export_keeps_another_one_of_the_same_name(trained: Path) -> None:
    (older,) = (trained / "exports").iterdir()
    before = {path: path.read_bytes() for path in older.iterdir()}
    run("mode=export", f"checkpoint={trained}")
    new = older.with_name(f"{older.name}_2")
    assert {path.name for path in new.iterdir()} == {path.name for path in before}
    assert {path: path.read_bytes() for path in older.iterdir()} == before
    shutil.rmtree(new)


@pytest.fixture
def export(trained: Path, tmp_path: Path) -> Path:
    """A copy of the exported folder, outside of its run."""
    (exported,) = (trained / "exports").iterdir()
    return Path(shutil.copytree(exported, tmp_path / "export"))


def test_an_exported_policy_plays_the_episodes_of_its_checkpoint(
    trained: Path, program: Call
) -> None:
    (folder,) = (trained / "exports").iterdir()
    page = [PAGE] if "marinenav" in folder.parts else []
    names = sorted(path.name for path in folder.iterdir())
    assert names == [CONTRACT, LEAPP, *page, ONNX, PT2]
    title, *lines = program("mode=eval", f"policy={folder}").report().splitlines()
    assert title == str(folder)
    (written,) = (trained / "evaluations").glob("*.json")
    result = json.loads(written.read_text())
    assert result.pop("policy") == str(folder)
    expected = json.loads((folder / CONTRACT).read_text())["evaluation"]
    assert result == pytest.approx(expected, abs=1e-2)
    shown = [line.split(" return ")[-1] for line in lines]
    assert lines[1].startswith("  checkpoint: ")
    assert shown[0] == shown[1]
    written.unlink()


@of_one_run
@pytest.mark.parametrize("video", ["mp4", "gif"])
def test_an_exported_policy_is_filmed(
    video: str, export: Path, tmp_path: Path, program: Call
) -> None:
    edited("config.trainer.loggers", lambda _: ["tensorboard"])(export)
    film = ["demo.episodes=1", "demo.num_envs=1", "demo.speed=10", f"demo.video={video}"]
    assert program("mode=demo", f"policy={export}", *film).code == 0
    assert list(tmp_path.glob(f"runs/**/export/videos/*.{video}"))


def edited(part: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a function that changes a part of the contract of a folder."""

    def edit(folder: Path) -> None:
        path = folder / CONTRACT
        contract = json.loads(path.read_text())
        *names, last = part.split(".")
        inner = contract
        for name in names:
            inner = inner[int(name) if name.isdigit() else name]
        inner[last] = change(inner[last])
        path.write_text(json.dumps(contract))

    return edit


def replaced_by_noise(folder: Path) -> None:
    """Replace the policy, and its hash in the contract."""
    (folder / ONNX).write_bytes(bytes(range(256)))
    rehash(folder)


def rehash(folder: Path) -> None:
    """Write the hash of the policy into the contract."""
    edited("files", lambda files: {**files, ONNX: sha256(folder / ONNX)})(folder)


FOREIGN = {"_target_": "shutil.rmtree", "path": "."}
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no contract": (
        lambda folder: (folder / CONTRACT).unlink(),
        "an exported policy: contract",
    ),
    "no policy": (lambda folder: (folder / ONNX).unlink(), "not an exported policy: policy.onnx: "),
    "half a contract": (
        lambda folder: (folder / CONTRACT).write_text((folder / CONTRACT).read_text()[:500]),
        "contract.json: damaged or edited: JSONDecodeError: ",
    ),
    "too large": (
        lambda folder: (folder / CONTRACT).write_bytes(bytes(2**24 + 1)),
        ": contract.json is too large",
    ),
    "a list": (lambda folder: (folder / CONTRACT).write_text("[]"), "damaged or edited: "),
    "another format": (edited("format", lambda _: 99), "another version of this library wrote it"),
    "damaged policy": (
        lambda folder: (folder / ONNX).write_bytes((folder / ONNX).read_bytes()[:-50]),
        "policy.onnx is damaged, or not that of contract.json",
    ),
    "noise": (replaced_by_noise, "policy.onnx cannot be run: "),
    "foreign code": (
        edited("config.env", lambda _: FOREIGN),
        "it names env._target_=shutil.rmtree, which is not part of this library; if you trust ",
    ),
    "resolver": (
        edited("config.env.num_envs", lambda _: "${oc.env:HOME}"),
        "its setting env.num_envs=${oc.env:HOME} is not a plain value",
    ),
    "shape": (
        edited("observations.0.shape", lambda _: [99]),
        "does not fit the environment: observation has the shape [99], not [",
    ),
    "unit": (edited("action.unit", lambda _: "furlongs"), "action has the unit furlongs, not "),
    "key": (
        edited("observations.0.name", lambda _: "vision"),
        "does not fit the environment: reads and returns vision, ",
    ),
    "seconds": (
        edited("step_seconds", lambda _: 9.0),
        " acts every 9.0 s, a step of ",
    ),
    "evaluation": (
        edited("evaluation.episodes", lambda _: "many"),
        "episodes=str: not a whole number",
    ),
    "half an evaluation": (
        edited("evaluation", lambda found: {**found, "success": 0.5, "success_low": None}),
        "evaluation lacks success_",
    ),
}


@of_one_run
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_in_one_line(
    case: str, export: Path, tmp_path: Path, program: Call
) -> None:
    damage, said = BROKEN[case]
    damage(export)
    refusal = program("mode=eval", f"policy={export}").refusal()
    assert said in refusal
    assert refusal.count("policy=") == 1
    assert not list(tmp_path.glob("runs/**/*.json"))


@of_one_run
def test_only_json_and_onnx_are_read(export: Path, program: Call) -> None:
    (export / PT2).write_bytes(b"not a program")
    (export / LEAPP).unlink()
    assert program("mode=eval", f"policy={export}").code == 0


@of_one_run
def test_weights_in_other_files_are_refused(export: Path, tmp_path: Path, program: Call) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(export / ONNX)
    onnx.save(model, export / ONNX, save_as_external_data=True, location="w", size_threshold=0)
    rehash(export)
    (tmp_path / "w").write_bytes((export / "w").read_bytes())
    said = program("mode=eval", f"policy={export}").refusal()
    assert f"policy={export}: policy.onnx cannot be run: " in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mode=export", "agent=sac", "env=fanuc"], "mode=export needs a trained policy: "),
        (["mode=export", "agent=random", "env=fanuc"], "agent=random does not learn"),
        (["mode=export", "policy=export"], "policy=export: only mode=eval and mode=demo run an "),
        (["policy=export"], "policy=export: only mode=eval and mode=demo run an exported policy; "),
        (["mode=eval", "policy=a", "checkpoint=b"], "policy=a: leave out checkpoint=b, or the "),
        (
            ["mode=eval", "policy=a", "agent.gamma=0.9"],
            "agent.gamma: the files of policy=a are fixed; leave it out",
        ),
        (["mode=eval", f"policy={'x' * 300}"], f"policy={'x' * 300}: not an exported policy: "),
        (["mode=eval", "policy=nowhere"], "policy=nowhere: not an exported policy: "),
        (
            ["mode=eval", f"policy={__file__}"],
            f"policy={__file__} is a file; name its folder: policy={Path(__file__).parent}",
        ),
    ],
)
def test_bad_settings_are_refused_in_one_line(
    arguments: list[str], said: str, program: Call
) -> None:
    assert program(*arguments).refusal().startswith(said)
