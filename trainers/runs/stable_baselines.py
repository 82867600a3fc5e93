"""Models of Stable-Baselines3 as policies of our agents, read without unpickling anything.

A model is a zip file. Its `data` is JSON, in which objects are pickled but their plain attributes
are readable too; `policy.pth` has the parameters. Everything that acting needs is readable.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from agents.base import Agent
from agents.modules.training_state import load_networks, networks_state
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.contents import check_count, reading
from torchrl_gpu.errors import ConfigurationError, shortened
from trainers.components.component import Component, read_component
from trainers.runs.model_parts import read_parts
from trainers.runs.policy_files import LAYOUT, build_agent

_SUPPORTED: Final = "SAC, DDPG, DQN or PPO"
_MAX_OBSERVATION = 2**24  # numbers of an observation
_ACTIVATIONS: Final = {
    "ReLU": "relu",
    "Tanh": "tanh",
    "ELU": "elu",
    "LeakyReLU": "leaky_relu",
    "SiLU": "silu",
    "GELU": "gelu",
}
# Settings of a policy that change its actions, and the values that our networks can have.
_ONLY: Final = {
    "use_sde": (False,),
    "squash_output": (False,),
    "normalize_images": (True,),
    "features_extractor_class": ("FlattenExtractor", "NatureCNN"),
}
# Those that the parameters show, or that training alone needs.
_OTHERS: Final = {
    *("net_arch", "activation_fn", "n_critics", "share_features_extractor"),
    *("features_extractor_kwargs", "ortho_init", "log_std_init", "optimizer_class"),
    *("optimizer_kwargs", "full_std", "use_expln", "clip_mean"),
}


class _Algorithm(NamedTuple):
    """Where an algorithm keeps its policy.

    Attributes:
        agent: name of our agent.
        hidden: prefix of the parameters of the hidden layers.
        outputs: names of the last layers, whose outputs ours concatenates; empty if they are the
            last one behind `hidden`.
        extractor: prefix of the convolutions.
        acting: prefixes of all parameters that act.
        actor: prefix of our network within the policy.
        activation: default activation.
    """

    agent: str
    hidden: str
    outputs: tuple[str, ...] = ()
    extractor: str = "actor.features_extractor."
    acting: tuple[str, ...] = ("actor.",)
    actor: str = "actor."
    activation: str = "relu"


_ALGORITHMS: Final = {
    "SAC": _Algorithm("sac", "actor.latent_pi.", ("actor.mu.", "actor.log_std.")),
    "DDPG": _Algorithm("ddpg", "actor.mu."),
    "DQN": _Algorithm("dqn", "q_net.q_net.", (), "q_net.features_extractor.", ("q_net.",)),
    "PPO": _Algorithm(
        "ppo",
        "mlp_extractor.policy_net.",
        ("action_net.",),
        "pi_features_extractor.",
        ("mlp_extractor.policy_net.", "action_net.", "pi_features_extractor.", "log_std"),
        actor="actor.network.",
        activation="tanh",
    ),
}


@dataclass(frozen=True)
class Model:
    """A model of Stable-Baselines3 as an agent of ours."""

    algorithm: str
    version: str
    agent_name: str
    interface: PolicyInterface
    state: dict[str, Any]
    component: Component


def read_model(path: Path) -> Model:
    """Read a model of SAC, DDPG, DQN or PPO."""
    data, parameters, version = read_parts(path)
    with reading(path):
        name = _algorithm_of(path, data, parameters)
        algorithm = _ALGORITHMS[name]
        # PPO keeps `use_sde` beside the settings of its policy.
        policy = {"use_sde": data.get("use_sde", False), **(data.get("policy_kwargs") or {})}
        _check_policy(path, policy)
        acting = {k: v for k, v in parameters.items() if k.startswith(algorithm.acting)}
        observation = _observation_spec(path, data["observation_space"], acting)
        action, action_range = _action_spec(path, data["action_space"])
        log_std = acting.pop("log_std", None)
        tensors = _Tensors(path, acting)
        networks, hidden_sizes = _layers(tensors, algorithm)
        if log_std is not None:
            networks |= _in_units(networks, log_std, action_range)
        settings: dict[str, Any] = {
            "_target_": f"agents.{name}",
            "hidden_sizes": hidden_sizes,
            "activation": _activation(path, policy, algorithm),
        }
        if "pixels" in observation.keys():  # noqa: SIM118
            encoder, features = _convolutions(tensors, algorithm)
            networks |= encoder
            settings["encoder"] = {"convolutions": "nature", "pixel_features": features}
        tensors.check_used()
        component = read_component("agent", settings)
        agent: Agent = build_agent(component, observation, action, torch.device("cpu"), path)
        frames = data.get("num_timesteps", 0)
        check_count(frames, "num_timesteps")
        own = {n: t for n, t in agent.policy.state_dict().items() if n not in networks}
        load_networks(agent.policy, {**own, **networks, "frames": torch.tensor(frames)})
    interface = PolicyInterface(observation, action, action_range=action_range)
    state = {
        "layout": LAYOUT,
        "agent_name": type(agent).__name__,
        "interface": interface.state_dict(),
        "frames": frames,
        "seconds": 0.0,
        "policy": networks_state(agent.policy),
    }
    return Model(name, version, algorithm.agent, interface, state, component)


def _algorithm_of(path: Path, data: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> str:
    """Return the name of the algorithm; the file does not say it outright."""
    policy_class = data.get("policy_class")
    module = policy_class.get("__module__") if isinstance(policy_class, dict) else policy_class
    found = {
        "stable_baselines3.sac.policies": "SAC",
        "stable_baselines3.td3.policies": (
            "TD3" if any(name.startswith("critic.qf1.") for name in parameters) else "DDPG"
        ),
        "stable_baselines3.dqn.policies": "DQN",
        "stable_baselines3.common.policies": "PPO" if "clip_range" in data else "A2C",
    }.get(str(module))
    if found is None:
        raise ConfigurationError(
            f"{path}: its policy is a class of {shortened(str(module))}, which would have to be "
            f"unpickled; use a model of {_SUPPORTED} with a policy of Stable-Baselines3"
        )
    if found not in _ALGORITHMS:
        raise ConfigurationError(f"{path}: a model of {found}; use one of {_SUPPORTED}")
    return found


def _check_policy(path: Path, policy: Mapping[str, Any]) -> None:
    """Refuse settings of a policy that our networks do not have."""
    for name, value in policy.items():
        if name.startswith(":"):  # the pickled settings, whose values are readable beside them
            continue
        shown = _class_name(value) if isinstance(value, str) else value
        if name not in _OTHERS and shown not in _ONLY.get(name, ()):
            raise ConfigurationError(
                f"{path}: its policy has {name}={shortened(str(shown))}, which is not supported"
            )


def _class_name(text: str) -> str:
    """Return the name of a class from its text, as in `<class 'torch.nn.ReLU'>`."""
    named = re.fullmatch(r"<class '[\w.]*?(\w+)'>", text)
    return text if named is None else named[1]


def _activation(path: Path, policy: Mapping[str, Any], algorithm: _Algorithm) -> str:
    if "activation_fn" not in policy:
        return algorithm.activation
    name = _class_name(str(policy["activation_fn"]))
    if name not in _ACTIVATIONS:
        raise ConfigurationError(
            f"{path}: its activation is {shortened(name)}; supported: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _kind_of(space: Mapping[str, Any]) -> str:
    return _class_name(str(space.get(":type:")))


def _observation_spec(
    path: Path, space: Mapping[str, Any], acting: Mapping[str, Tensor]
) -> Composite:
    """Return the spec of the observations under the names that `env=gym` gives them."""
    if _kind_of(space) != "Box":
        raise ConfigurationError(
            f"{path}: its observations are a {_kind_of(space)} space; only a Box is supported"
        )
    shape = [int(size) for size in space["_shape"]]
    if not 0 < math.prod(shape) <= _MAX_OBSERVATION:
        raise ConfigurationError(
            f"{path}: its observations are {shortened(str(shape))}; supported: up to "
            f"{_MAX_OBSERVATION:,} numbers"
        )
    has_convolutions = any(".cnn." in name for name in acting)
    is_image = str(space["dtype"]) == "uint8" and len(shape) == 3
    if has_convolutions != is_image:
        raise ConfigurationError(
            f"{path}: its observations are {shape} of {space['dtype']}; CnnPolicy needs images "
            "[C, H, W] of uint8, and MlpPolicy anything else"
        )
    if is_image:
        return Composite(pixels=Bounded(0, 255, (1, *shape), dtype=torch.uint8), shape=(1,))
    return Composite(observation=Unbounded((1, math.prod(shape))), shape=(1,))


def _action_spec(path: Path, space: Mapping[str, Any]) -> tuple[TensorSpec, Tensor | None]:
    """Return the spec of the actions, and the range `[2, action_dim]` that -1 and 1 stand for."""
    kind = _kind_of(space)
    if kind == "Discrete":
        return Categorical(int(space["n"]), (1,)), None
    if kind != "Box":
        raise ConfigurationError(
            f"{path}: its actions are a {kind} space; only Box and Discrete are supported"
        )
    size = math.prod(int(each) for each in space["_shape"])
    bounds = torch.tensor([_numbers(path, space[side], size) for side in ("low", "high")])
    low, high = bounds
    if not (bounds.isfinite().all() and (low < high).all()):
        raise ConfigurationError(f"{path}: its actions have no finite bounds, which agents need")
    has_unit_bounds = bool((low == -1).all() and (high == 1).all())
    return Bounded(-1.0, 1.0, (1, size)), None if has_unit_bounds else bounds


def _numbers(path: Path, text: Any, size: int) -> list[float]:
    """Return the numbers of an array from its text, as in `[-1. -2.5]`."""
    try:
        numbers = [float(word) for word in re.sub(r"[\[\]]", " ", str(text)).split()]
    except ValueError:
        numbers = []
    if len(numbers) != size:
        raise ConfigurationError(f"{path}: the bounds of its actions cannot be read")
    return numbers


class _Tensors:
    """Parameters by name, each of which has to be taken once."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._path = path
        self._left = dict(tensors)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the layers behind a prefix, in their order."""
        found = {n.removeprefix(prefix).split(".")[0] for n in self._left if n.startswith(prefix)}
        return sorted(found, key=lambda name: int(name) if name.isdecimal() else -1)

    def take(self, layer: str) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a layer."""
        try:
            weight, bias = (self._left.pop(f"{layer}{part}") for part in ("weight", "bias"))
        except KeyError as error:
            raise ConfigurationError(
                f"{self._path}: its policy lacks {error.args[0]}; not a network of MlpPolicy or "
                "CnnPolicy"
            ) from None
        return weight, bias

    def check_used(self) -> None:
        """Refuse a policy with parameters that our networks do not have."""
        if self._left:
            raise ConfigurationError(
                f"{self._path}: its policy has {shortened(next(iter(self._left)))}, which the "
                "networks of MlpPolicy and CnnPolicy lack"
            )


def _layers(tensors: _Tensors, algorithm: _Algorithm) -> tuple[dict[str, Tensor], list[int]]:
    """Return the linear layers under our names, and the widths of the hidden ones."""
    prefixes = [f"{algorithm.hidden}{name}." for name in tensors.names(algorithm.hidden)]
    layers = [tensors.take(prefix) for prefix in prefixes]
    if algorithm.outputs:
        heads = [tensors.take(prefix) for prefix in algorithm.outputs]
        layers.append((torch.cat([w for w, _ in heads]), torch.cat([b for _, b in heads])))
    named = {
        f"{algorithm.actor}network.{2 * number}.{part}": tensor
        for number, layer in enumerate(layers)
        for part, tensor in zip(("weight", "bias"), layer, strict=True)
    }
    return named, [len(bias) for _, bias in layers[:-1]]


def _convolutions(tensors: _Tensors, algorithm: _Algorithm) -> tuple[dict[str, Tensor], int]:
    """Return the convolutions of NatureCNN and the layer behind them, and its width.

    There, images are scaled to [0, 1], here to [-0.5, 0.5]; the first bias has the difference.
    """
    extractor = algorithm.extractor
    layers = [tensors.take(f"{extractor}cnn.{number}.") for number in (0, 2, 4)]
    weight, bias = layers[0]
    layers[0] = weight, (bias + 0.5 * weight.double().sum((1, 2, 3))).to(bias.dtype)
    layers.append(tensors.take(f"{extractor}linear.0."))
    named = {
        f"{algorithm.actor}encoder.parts.0.network.{place}.{part}": tensor
        for place, layer in zip((0, 2, 4, 7), layers, strict=True)
        for part, tensor in zip(("weight", "bias"), layer, strict=True)
    }
    return named, len(layers[-1][1])


def _in_units(
    networks: Mapping[str, Tensor], log_std: Tensor, action_range: Tensor | None
) -> dict[str, Tensor]:
    """Return the last layer and the deviation of PPO, whose mean is an action within its range.

    Our mean is in [-1, 1] where the action is within its range.
    """
    *_, weight, bias = networks
    if action_range is None:
        return {"actor.log_std": log_std}
    low, high = action_range.double()
    half = (high - low) / 2
    return {
        weight: (networks[weight] / half[:, None]).float(),
        bias: ((networks[bias] - (high + low) / 2) / half).float(),
        "actor.log_std": (log_std - half.log()).float(),
    }
