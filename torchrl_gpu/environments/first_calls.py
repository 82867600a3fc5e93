"""Comparison of the first reset and step of an environment with its specs."""

from functools import partial
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torchrl.data import Composite
from torchrl.envs import EnvBase

from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.errors import ConfigurationError


def check_first_calls(env: EnvBase) -> None:
    """Let an environment compare the results of its next reset and step with its specs.

    The checks stand in place of the methods `_reset` and `_step` of the instance, and give way to
    them when they are called, so that all other steps are as fast as without them. The step has to
    leave the observations before it as they were.

    An `Environment` has to return all leaves exactly. TorchRL and the adapter convert the floats of
    any other one, reshape its rewards and complete its done flags.
    """
    for method in ("_reset", "_step"):
        vars(env).setdefault(method, partial(_checked, env, method))


def _checked(env: EnvBase, method: str, *arguments: Any, **named: Any) -> TensorDictBase:
    """Call a method in place of which this function stands, and give way to it.

    A function that a user has put in this place since then, which calls this one, stays there.
    """
    placed = vars(env).pop(method, None)
    call = getattr(env, method)
    if placed is not None and getattr(placed, "func", None) is not _checked:
        vars(env)[method] = placed
    name = f"{name_of(env)}.{method}"
    observed = list(env.observation_spec.keys(include_nested=True, leaves_only=True))
    before = arguments[0].select(*observed, strict=False) if method == "_step" else TensorDict()
    copies = before.clone()
    result: TensorDictBase = call(*arguments, **named)
    for key, value in before.items(include_nested=True, leaves_only=True):
        if ((value != copies[key]) & (value == value)).any():  # unless it is NaN
            raise ConfigurationError(
                f"env: {name} overwrites {key!r} of the state before; return a new tensor in every "
                "step, for instance a clone"
            )
    if not isinstance(result, TensorDictBase):
        kind = type(result).__name__
        raise ConfigurationError(f"env: {name} has to return a TensorDict, not {kind}")
    where = f"env: unlike its specs, the result of {name}"
    is_exact = isinstance(env, Environment)
    expected = [_like(env.observation_spec)]
    if method == "_step":
        expected += [_like(env.full_reward_spec, has_shapes=is_exact)]
        expected += [_like(env.full_done_spec)] if is_exact else []
    for keys, like in expected:
        found = result.select(*keys, strict=False).to_dict()
        check_like(found, like, where, is_exact=is_exact)
    return result


def _like(spec: Composite, has_shapes: bool = True) -> tuple[list[NestedKey], dict[str, Any]]:
    """Return the keys of a spec, and tensors without memory in place of its leaves.

    For leaves of any shape it is None in place of each tensor.
    """

    def like(spec: Any) -> Any:
        if isinstance(spec, Composite):
            return {name: like(each) for name, each in spec.items()}
        return torch.empty(spec.shape, dtype=spec.dtype, device="meta") if has_shapes else None

    return list(spec.keys(include_nested=True, leaves_only=True)), like(spec)
