"""Models of Stable-Baselines3 as policy files: `torchrl-gpu import-sb3`."""

import importlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Env, spaces
from torch import nn

from tests.helpers.program import Call
from trainers import load_policy

sb3 = pytest.importorskip("stable_baselines3", reason="the extra `sb3` is not installed")

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


class Boxes(Env[Any, Any]):
    """Random observations, and actions with bounds that are neither 1 nor those of each other."""

    observation_space: spaces.Space[Any] = spaces.Box(-2.0, 2.0, (2, 3))
    action_space: spaces.Space[Any] = spaces.Box(
        np.array([-0.3, 2.0, -40.0], np.float32), np.array([0.1, 7.25, 60.0], np.float32)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(self.np_random.normal()), False, False, {}


class Images(Boxes):
    observation_space = spaces.Box(0, 255, (45, 40, 3), np.uint8)


class Numbers(Boxes):
    observation_space = spaces.Discrete(5)


class Several(Boxes):
    action_space = spaces.MultiDiscrete([2, 3])


class Choices(Images):
    action_space = spaces.Discrete(6)


NatureCNN: Any = importlib.import_module("stable_baselines3.common.torch_layers").NatureCNN


class OwnExtractor(NatureCNN):
    """An extractor of the user's own."""


def layers(sizes: Any, activation: type[nn.Module], **others: Any) -> dict[str, Any]:
    return {"policy_kwargs": {"net_arch": sizes, "activation_fn": activation, **others}}


def make(algorithm: str, env: Any, policy: str = "MlpPolicy", **settings: Any) -> Any:
    """Return a model with its first parameters, as if it had learned for 64 steps."""
    if algorithm not in ("PPO", "A2C"):
        settings = {"buffer_size": 200, **settings}
    if isinstance(env, type):
        env = env()
    model = getattr(sb3, algorithm)(policy, env, seed=1, device="cpu", **settings)
    model.num_timesteps = 64
    return model


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("SAC", PENDULUM, {}),
        ("SAC", Boxes, layers([24, 16, 8], nn.Tanh)),
        ("SAC", PENDULUM, layers({"pi": [], "qf": [8]}, nn.ReLU)),
        ("DDPG", PENDULUM, {}),
        ("DDPG", Boxes, layers({"pi": [16], "qf": [8, 8]}, nn.SiLU)),
        ("DQN", CARTPOLE, {}),
        ("DQN", CARTPOLE, layers([32], nn.LeakyReLU)),
        ("DQN", Choices, {"policy": "CnnPolicy"}),
        ("PPO", CARTPOLE, {}),
        ("PPO", PENDULUM, {}),
        ("PPO", Boxes, layers({"pi": [32, 16], "vf": [8]}, nn.ELU, ortho_init=False)),
        ("PPO", CARTPOLE, layers([8], nn.GELU)),
        ("PPO", Choices, {"policy": "CnnPolicy"}),
        (
            "PPO",
            Images,
            {"policy": "CnnPolicy"}
            | layers([16], nn.Tanh, features_extractor_kwargs={"features_dim": 24}),
        ),
    ],
)
def test_the_policy_plays_the_actions_of_the_model(
    algorithm: str,
    env: Any,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Call,
) -> None:
    model = make(algorithm, env, **settings)
    for parameter in model.policy.parameters():  # so that the actions differ
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save(tmp_path / "model.zip")
    monkeypatch.setattr(pickle, "loads", None)
    report = program("import-sb3", "model.zip").report()
    is_discrete = hasattr(model.action_space, "n")
    assert report.endswith(f"env=gym env.name={CARTPOLE if is_discrete else PENDULUM}\n")
    policy = load_policy("model.safetensors")
    model.observation_space.seed(0)
    observations = np.stack([model.observation_space.sample() for _ in range(1000)])
    expected, _ = model.predict(observations, deterministic=True)
    shape = next(iter(policy.interface.leaves.values())).shape[1:]
    found = policy.predict(observations.reshape(1000, *shape))
    assert isinstance(found, np.ndarray)
    assert len({row.tobytes() for row in found}) > 1
    if found.dtype == np.int64:
        assert np.array_equal(found, expected)
    else:
        span = model.action_space.high - model.action_space.low
        assert (np.abs(found - expected) <= 1e-6 * np.maximum(1.0, span)).all()
    assert policy.policy.frames == 64


@pytest.mark.parametrize("arguments", [("env=gym", f"env.name={PENDULUM}"), ()])
def test_an_imported_policy_is_evaluated(
    arguments: tuple[str, ...], tmp_path: Path, program: Call
) -> None:
    make("SAC", PENDULUM, learning_starts=16).learn(64).save(tmp_path / "model.zip")
    output = tmp_path / "policies" / "one.safetensors"
    output.parent.mkdir()
    report = program("import-sb3", "model.zip", f"output={output}", *arguments).report()
    assert "model.zip: SAC of Stable-Baselines3" in report
    assert "reads        observation [3] float32" in report
    command = report.splitlines()[-1].split()[5:]
    assert command[:2] == ["mode=eval", f"checkpoint={output}"]
    assert arguments or "put it in place of env=gym env.name=Pendulum-v1\n" in report
    typed = [*command, "evaluation.episodes=2"]
    assert "200.0 steps, 2 episodes" in program(*typed).report()
    assert program(*typed, "mode=train").code == 2


@pytest.mark.parametrize(
    ("algorithm", "env", "name", "reason"),
    [
        (
            "SAC",
            PENDULUM,
            "MountainCarContinuous-v0",
            "observation [3] float32, action [1] float32, ",
        ),
        ("PPO", CARTPOLE, "FrozenLake-v1", "action [] int64 of 2 choices, the environment has "),
        ("SAC", PENDULUM, CARTPOLE, "agent=SAC: it does not produce the discrete actions"),
    ],
)
def test_an_environment_that_the_model_does_not_fit_is_refused(
    algorithm: str, env: str, name: str, reason: str, tmp_path: Path, program: Call
) -> None:
    make(algorithm, env).save(tmp_path / "model.zip")
    assert reason in program("import-sb3", "model.zip", "env=gym", f"env.name={name}").refusal()
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "reason"),
    [
        ("TD3", PENDULUM, {}, "a model of TD3; use one of SAC, DDPG, DQN or PPO"),
        ("A2C", CARTPOLE, {}, "a model of A2C; use one of"),
        ("SAC", PENDULUM, {"use_sde": True}, "its policy has use_sde=True"),
        ("PPO", PENDULUM, {"use_sde": True}, "its policy has use_sde=True"),
        ("SAC", PENDULUM, layers([8], nn.Softsign), "its activation is Softsign; supported: ReLU"),
        ("PPO", Numbers, {}, "its observations are a Discrete space; only a Box"),
        ("PPO", Several, {}, "its actions are a MultiDiscrete space"),
        ("DQN", Choices, {}, "its observations are [3, 45, 40] of uint8; CnnPolicy needs"),
        (
            "DQN",
            Choices,
            {"policy": "CnnPolicy"} | layers([8], nn.ReLU, features_extractor_class=OwnExtractor),
            "its policy has features_extractor_class=OwnExtractor, which is not supported",
        ),
    ],
)
def test_another_model_is_refused_in_one_line(
    algorithm: str, env: Any, settings: dict[str, Any], reason: str, tmp_path: Path, program: Call
) -> None:
    make(algorithm, env, **settings).save(tmp_path / "model.zip")
    assert reason in program("import-sb3", "model.zip").refusal()
    assert [file.name for file in tmp_path.iterdir()] == ["model.zip"]


class _Code:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path("unpickled"),)


def _with_code(files: dict[str, bytes]) -> None:
    buffer = io.BytesIO()
    torch.save({"actor.mu.weight": _Code()}, buffer)
    files["policy.pth"] = buffer.getvalue()


def _of_own_class(files: dict[str, bytes]) -> None:
    data = json.loads(files["data"])
    data["policy_class"]["__module__"] = "my_package.policies"
    files["data"] = json.dumps(data).encode()


def _unbounded(files: dict[str, bytes]) -> None:
    data = json.loads(files["data"])
    data["action_space"]["high"] = "[inf]"
    files["data"] = json.dumps(data).encode()


def _with_another_layer(files: dict[str, bytes]) -> None:
    tensors = torch.load(io.BytesIO(files["policy.pth"]), weights_only=True)
    buffer = io.BytesIO()
    torch.save({**tensors, "actor.extra.weight": torch.zeros(2)}, buffer)
    files["policy.pth"] = buffer.getvalue()


def _with_nan(files: dict[str, bytes]) -> None:
    tensors = torch.load(io.BytesIO(files["policy.pth"]), weights_only=True)
    tensors["actor.mu.bias"].fill_(torch.nan)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    files["policy.pth"] = buffer.getvalue()


def _of_huge_observations(files: dict[str, bytes]) -> None:
    data = json.loads(files["data"])
    data["observation_space"]["_shape"] = [10**9]
    files["data"] = json.dumps(data).encode()


def write_model(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile("model.zip", "w", compression) as model:
        for name, content in files.items():
            model.writestr(name, content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_with_code, "its policy.pth is not a file of tensors alone; nothing in it is unpickled"),
        (_of_own_class, "a class of my_package.policies, which would have to be unpickled"),
        (_unbounded, "its actions have no finite bounds, which agents need"),
        (_with_another_layer, "its policy has actor.extra.weight, which the networks"),
        (_with_nan, "the saved networks hold NaN or infinity"),
        (_of_huge_observations, "its observations are [1000000000]; supported: up to 16,777,216"),
        (lambda files: files.pop("data"), "not a model of Stable-Baselines3"),
        (lambda files: files.update(data=b"[1"), "damaged: "),
        (lambda files: files.update(data=b"[1]"), "damaged: its data is not a mapping"),
        (lambda files: files.update({"policy.pth": b"no"}), "not a file of tensors alone"),
    ],
)
def test_a_damaged_model_is_refused_and_runs_no_code(
    damage: Callable[[dict[str, bytes]], Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Call,
) -> None:
    monkeypatch.chdir(tmp_path)
    sb3.SAC("MlpPolicy", PENDULUM, buffer_size=1).save("model.zip")
    with zipfile.ZipFile("model.zip") as model:
        files = {name: model.read(name) for name in model.namelist()}
    damage(files)
    write_model(files)
    assert reason in program("import-sb3", "model.zip").refusal()
    assert [file.name for file in tmp_path.iterdir()] == ["model.zip"]


def test_parts_that_cannot_be_unpacked_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"data": b"{}", "policy.pth": bytes(65 * 2**20)}
    write_model(files, zipfile.ZIP_DEFLATED)
    assert "its policy.pth is larger than 67," in program("import-sb3", "model.zip").refusal()
    write_model({"data": b"{}", "policy.pth": bytes(1000)}, zipfile.ZIP_DEFLATED)
    whole = Path("model.zip").read_bytes()
    entry = whole.index(b"PK\x01\x02")
    for place, value, reason in (
        (entry + 8, 1, "damaged: File 'data' is encrypted"),
        (entry + 10, 99, "damaged: That compression method is not supported"),
        (34, 255, "damaged: Error -3 while decompressing data"),
    ):
        damaged = bytearray(whole)
        damaged[place] = value
        Path("model.zip").write_bytes(damaged)
        assert reason in program("import-sb3", "model.zip").refusal()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name one model: torchrl-gpu import-sb3 model.zip"),
        (("missing.zip",), "missing.zip: this file does not exist"),
        (("text.zip",), "text.zip: not a zip file, as `model.save` writes"),
        (("text.zip", "output=policy.zip"), "output=policy.zip: name a .safetensors file"),
        (("text.zip", "output=old.safetensors"), "output=old.safetensors: it exists; choose"),
        (("lr=1.zip",), "lr=1.zip: not a zip file, as `model.save` writes"),
        (("text.zip", "output=a.safetensors", "output=b.safetensors"), "output=a.safetensors"),
        (("text.zip", "agent=sac"), "agent=sac: choose output=FILE or settings of env"),
        (("text.zip", "env=moon"), "unknown env moon; choose one of: "),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], reason: str, tmp_path: Path, program: Call
) -> None:
    for name in ("text.zip", "lr=1.zip"):
        (tmp_path / name).write_text("no zip")
    (tmp_path / "old.safetensors").touch()
    assert reason in program("import-sb3", *arguments).refusal()
