"""Demonstrations: the episodes of a dataset, checked for the agent that learns from them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.datasets.dataset import Dataset, open_dataset, reading_dataset
from torchrl_gpu.environments.specs import action_bounds, action_kind, name_of_key
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.episodes import Episode

SETTING = "agent.demonstrations"


def check_demonstrations(path: str) -> Dataset:
    """Open demonstrations, or refuse them; no environment is needed."""
    try:
        dataset = open_dataset(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{SETTING}={error}") from error
    if not dataset.num_episodes:
        raise ConfigurationError(f"{SETTING}={path}: it has no episodes")
    return dataset


def load_demonstrations(
    path: str,
    observation_spec: Composite,
    action_spec: TensorSpec,
    action_table: Sequence[Sequence[float]] | None = None,
) -> list[Episode]:
    """Read the episodes of a dataset, with the observations of an agent alone.

    Args:
        path: folder of the dataset.
        observation_spec: spec of the observations of the agent, batch size `[num_envs]`.
        action_spec: spec of its actions.
        action_table: table whose row numbers are its actions; None for an agent without one.

    Raises:
        ConfigurationError: the dataset cannot be read, an observation is missing, observations or
            actions have another shape, dtype or range, or a number is NaN or infinite.
    """
    dataset = check_demonstrations(path)
    where = f"{SETTING}={path}"
    _check_table(dataset, action_table, where)
    _check_range(dataset.action_range, action_spec, where)
    leaves = observation_spec.items(include_nested=True, leaves_only=True)
    specs = {name_of_key(key): leaf for key, leaf in leaves}
    episodes = []
    for number, episode in enumerate(dataset):
        if missing := specs.keys() - episode.observations.keys():
            known = ", ".join(episode.observations)
            raise ConfigurationError(
                f"{where}: it has no observation {min(missing)}, which the agent reads; "
                f"it has: {known}"
            )
        episodes.append(_checked(episode, specs, action_spec, f"{where}: episode {number}"))
    return episodes


def _check_table(dataset: Dataset, table: Sequence[Sequence[float]] | None, where: str) -> None:
    """Refuse row numbers of another table, and of none."""
    tables = dataset.about.get("action_table", table), table
    with reading_dataset(dataset.path):  # which holds the table in float32
        saved, own = (None if each is None else torch.tensor(each).float() for each in tables)
    is_same = torch.equal(saved, own) if saved is not None and own is not None else saved is own
    if not is_same:
        raise ConfigurationError(
            f"{where}: its actions are not row numbers of the action table of this environment"
            if own is not None
            else f"{where}: its actions are row numbers of a table; this agent's are continuous"
        )


def _check_range(action_range: tuple[Tensor, Tensor] | None, spec: TensorSpec, where: str) -> None:
    """Refuse actions of another range, whose numbers would mean other actions to the agent."""
    if action_range is None or action_kind(spec) == "discrete":
        return
    for saved, own in zip(action_range, action_bounds(spec), strict=True):
        own = own.cpu().expand(spec.shape[1:])
        if saved.shape == own.shape and not torch.allclose(saved.float(), own.float()):
            low, high = action_range
            raise ConfigurationError(
                f"{where}: its actions range from {low.min():g} to {high.max():g}; the agent's "
                f"range from {spec.space.low.min():g} to {spec.space.high.max():g}, scale them"
            )


def _checked(
    episode: Episode, specs: Mapping[str, TensorSpec], action_spec: TensorSpec, at: str
) -> Episode:
    """Return an episode with the observations of an agent alone, in the dtypes of its specs."""
    observations = {
        name: _like(episode.observations[name], leaf, f'{at}: observation "{name}"')
        for name, leaf in specs.items()
    }
    action = _checked_action(episode.action, action_spec, at)
    _check_finite(episode.reward, f"{at}: reward")
    flags = (episode.reward, episode.terminated, episode.truncated)
    lengths = {len(each) for each in (action, *flags)}
    if lengths | {len(x) - 1 for x in observations.values()} != {len(episode)}:
        raise ConfigurationError(f"{at}: its columns have different lengths")
    return Episode(observations, action, *flags)


def _checked_action(action: Tensor, spec: TensorSpec, at: str) -> Tensor:
    if action_kind(spec) == "discrete":
        is_whole = not (action.dtype.is_floating_point or action.dtype == torch.bool)
        if action.dim() != 1 or not is_whole:
            raise ConfigurationError(
                f"{at}: its actions have shape {list(action.shape[1:])} and {action.dtype}; this "
                f"agent's are whole numbers below {spec.space.n}"
            )
        action = action.to(torch.int64)  # torch compares no larger unsigned numbers
        low, high = torch.zeros(1), torch.tensor([spec.space.n - 1])
    else:
        action = _like(action, spec, f"{at}: action")
        low, high = (bound.cpu() for bound in action_bounds(spec))
    if len(action) and not ((action >= low) & (action <= high)).all():
        raise ConfigurationError(
            f"{at}: an action lies outside {low.min():g} to {high.max():g}, the range of the agent"
        )
    return action.to(spec.dtype)


def _like(values: Tensor, spec: TensorSpec, what: str) -> Tensor:
    """Return values as a spec has them; environments of Gymnasium give numbers of other dtypes."""
    if values.dtype.is_floating_point and spec.dtype.is_floating_point:
        values = values.to(spec.dtype)
    for name, found, expected in (
        ("shape", list(values.shape[1:]), list(spec.shape[1:])),
        ("dtype", values.dtype, spec.dtype),
    ):
        if found != expected:
            raise ConfigurationError(f"{what} has {name} {found}; the agent's has {expected}")
    _check_finite(values, what)
    return values


def _check_finite(values: Tensor, what: str) -> None:
    if values.dtype.is_floating_point and not values.isfinite().all():
        raise ConfigurationError(f"{what} holds NaN or infinity")
