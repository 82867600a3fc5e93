"""The state of training: networks and optimizers of an agent, saved, loaded and moved together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import starting_rate

POLICY = "policy."
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # of Adam


class Resumable(nn.Module):
    """A module with optimizers, whose training can be saved, resumed and moved to a device.

    Attributes:
        optimizer: optimizer of all trainable parameters.
        device: device of the parameters.
    """

    optimizer: Optimizer
    device: torch.device

    def optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers by name: each of them steps at every update and is saved.

        Override this method in an agent that has more optimizers than `optimizer`.
        """
        return {"adam": self.optimizer}

    def training_state(self) -> dict[str, Any]:
        """Return the state of training: networks, target networks, schedules and optimizers.

        An override adds entries whose names, types and shapes stay the same during training.
        """
        return {
            "networks": networks_state(self),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers().items()},
        }

    def check_training_state(self, state: Any) -> None:
        """Compare a state with that of this agent, by names, shapes and dtypes; load nothing.

        Raises:
            ConfigurationError: the state belongs to different networks, optimizers or settings, or
                holds NaN or infinity.
        """
        own = self.training_state()
        apart = {"networks": None, "optimizers": None}  # they may lack names, or moments
        check_like(state, {**own, **apart}, "the saved agent")
        _check_networks(self, state["networks"])
        optimizers = self.optimizers()
        check_like(state["optimizers"], dict.fromkeys(optimizers), "the saved optimizers")
        for name, optimizer in optimizers.items():
            _check_optimizer(optimizer, state["optimizers"][name])

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Resume from a state that `training_state` returned on any device.

        The optimizers keep the hyperparameters of this agent. The saved learning rate, which may
        have changed during training, is restored unless this agent was built with another initial
        rate.

        Raises:
            ConfigurationError: as for `check_training_state`.
        """
        self.check_training_state(state)
        load_networks(self, state["networks"])
        for name, optimizer in self.optimizers().items():
            _load_optimizer(optimizer, state["optimizers"][name])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Resumable:
        """Move parameters and optimizers together: `to`, `cuda` and `cpu` all call this method."""
        before = dict(self.named_parameters())
        super()._apply(fn, recurse)
        after = dict(self.named_parameters())
        moved = {parameter: after[name] for name, parameter in before.items()}
        try:
            optimizers = self.optimizers()
        except AttributeError:  # A constructor moves the agent before it builds an optimizer.
            optimizers = {}
        for optimizer in optimizers.values():
            _place_optimizer(optimizer, moved)
        self.device = next((p.device for p in after.values()), self.device)
        return self


def networks_state(networks: nn.Module) -> dict[str, Tensor]:
    """Return `state_dict()` with each tensor once.

    A network that several modules share has a name in each of them. The state keeps the name within
    the policy if there is one, and otherwise the first.
    """
    state = networks.state_dict(keep_vars=True)
    kept = _kept_names(state)
    return {name: tensor.detach() for name, tensor in state.items() if name == kept[name]}


def nonfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors, all on one device, that hold NaN or infinity."""
    are_finite = {
        name: torch.stack(tensor.aminmax()).isfinite().all()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.numel()
    }
    if not are_finite:
        return []
    flags = torch.stack([*are_finite.values()]).tolist()  # one read
    return [name for name, is_finite in zip(are_finite, flags, strict=True) if not is_finite]


def load_networks(networks: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state that `networks_state` or `state_dict()` returned.

    Raises:
        ConfigurationError: a name, shape or dtype differs, or a number is NaN or infinite.
    """
    networks.load_state_dict(_check_networks(networks, state))


def _check_networks(networks: nn.Module, state: Any) -> dict[str, Tensor]:
    """Refuse a state that `load_networks` cannot load; return it under all names of each tensor."""
    own = networks.state_dict(keep_vars=True)
    kept = _kept_names(own)
    if not isinstance(state, Mapping):
        raise ConfigurationError("the saved networks are not a mapping")
    whole = {**state, **{name: state[first] for name, first in kept.items() if first in state}}
    advice = "keep the settings of networks, such as agent.hidden_sizes, as they were"
    check_like(whole, own, f"the saved networks do not fit these settings; {advice}: the state")
    if names := nonfinite(state):
        raise ConfigurationError(
            f"the saved networks hold NaN or infinity, in {len(names)} of {len(state)} tensors: "
            f"{names[0]} is the first"
        )
    return whole


def _load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load moments, and the learning rates if both optimizers began with the same rate."""
    _load_moments(optimizer, saved["state"])
    for group, before in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        if math.isclose(starting_rate(group), starting_rate(before), rel_tol=1e-6):
            rate, saved_rate = group["lr"], float(before["lr"])
            group["lr"] = rate.fill_(saved_rate) if isinstance(rate, Tensor) else saved_rate


def _check_optimizer(optimizer: Optimizer, saved: Any) -> None:
    """Refuse the state of an optimizer of other parameters, or with NaN or infinity.

    A fused step with moments of another shape or dtype would corrupt the memory.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    check_like(saved, {"state": None, "param_groups": None}, "the saved optimizer")
    state, groups = saved["state"], saved["param_groups"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if [len(group["params"]) for group in groups] != sizes:
        raise ConfigurationError("the saved optimizer has other groups of parameters")
    for group in groups:
        rates = float(group["lr"]), starting_rate(group)
        if not all(0.0 <= rate < math.inf for rate in rates):
            raise ConfigurationError("the saved optimizer has a learning rate that is not a number")
    for index, moments in state.items():
        if type(index) is not int or not 0 <= index < len(parameters):
            raise ConfigurationError("the saved optimizer has another number of parameters")
        where, parameter = "the saved optimizer does not fit the networks:", parameters[index]
        names = moments.keys()
        if isinstance(optimizer, torch.optim.Adam):
            names = {"step", *(_MOMENTS if optimizer.defaults["amsgrad"] else _MOMENTS[:2])}
        check_like(moments, dict.fromkeys(names), f"{where} parameter {index}")
        # Other optimizers of a user may have moments of other shapes under other names.
        likes = {"step": torch.zeros(()), **dict.fromkeys(_MOMENTS, parameter)}
        for name in names & likes.keys():
            check_like(moments[name], likes[name], f"{where} {name} of parameter {index}")
            is_signed = name != "exp_avg" and bool((moments[name] < 0).any())
            if is_signed or nonfinite({name: moments[name]}):
                raise ConfigurationError(
                    f"{where} {name} of parameter {index} holds NaN, infinity or a negative number"
                )


def _place_optimizer(optimizer: Optimizer, moved: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Let an optimizer follow its parameters, which `moved` maps to those on another device."""
    state = optimizer.state_dict()["state"]
    for group in optimizer.param_groups:
        group["params"] = [moved.get(parameter, parameter) for parameter in group["params"]]
        device = group["params"][0].device
        options = accelerator_of(device).adam_options
        group.update({name: value for name, value in options.items() if name in group})
        if "fused" in group:
            # A scaler of fp16 leaves it to a fused step to skip gradients that have overflowed.
            optimizer._step_supports_amp_scaling = bool(group["fused"])  # type: ignore[attr-defined]
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].to(device)
    _load_moments(optimizer, state)


def _load_moments(optimizer: Optimizer, state: Mapping[int, Any]) -> None:
    """Load the state of each parameter; the groups stay unchanged."""
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
    # Loading replaces the rate tensors by copies, but other code may hold and change the originals.
    for group, own in zip(optimizer.param_groups, groups, strict=True):
        group["lr"] = own["lr"]


def _kept_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return for each name in a state the name under which its tensor is saved."""
    first: dict[int, str] = {}
    for name in sorted(state, key=lambda name: not name.startswith(POLICY)):
        first.setdefault(id(state[name]), name)
    return {name: first[id(tensor)] for name, tensor in state.items()}
