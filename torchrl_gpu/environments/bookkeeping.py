"""Transforms around an environment, and the observation keys that only do bookkeeping."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tensordict import NestedKey
from torchrl.data import Composite
from torchrl.envs import (
    CatFrames,
    CenterCrop,
    Compose,
    Crop,
    EnvBase,
    GrayScale,
    InitTracker,
    ParallelEnv,
    PermuteTransform,
    Resize,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TimeMaxPool,
    Timer,
    ToTensorImage,
    TrajCounter,
    Transform,
    TransformedEnv,
)

from torchrl_gpu.environments.environment import base_of
from torchrl_gpu.environments.view import EnvironmentView
from torchrl_gpu.errors import ConfigurationError

Path = tuple[str, ...]

# Transforms that add keys without reading any.
_COUNTERS = (StepCounter, InitTracker, TrajCounter, Timer, TensorDictPrimer)

# Transforms that leave the numbers of a picture within their range.
_KEEP_RANGE = (CatFrames, CenterCrop, Crop, GrayScale, PermuteTransform, Resize, TimeMaxPool)

# The transforms inside a SerialEnv or ParallelEnv are not accessible; their keys are recognised by
# the default names of TorchRL's transforms.
_DEFAULT_NAMES = frozenset(
    ("episode_reward", "step_count", "is_init", "traj_count", "time_step", "time_policy")
)


def bookkeeping_keys(env: EnvBase) -> set[Path]:
    """Return the observation keys that transforms compute by counting, or from reward or done."""
    base = base_of(env)
    observed = _paths(base.observation_spec.keys(True, True))
    hidden: set[Path] = set()
    if isinstance(base, (SerialEnv, ParallelEnv)):
        hidden = {path for path in observed if path[-1] in _DEFAULT_NAMES}
        observed -= hidden
    spec: Composite = base.output_spec.clone()
    for transform in transforms_of(env):
        before = observed | hidden
        spec = transform.transform_output_spec(spec)
        after = _paths(spec["full_observation_spec"].keys(True, True))
        sources = _paths(transform.in_keys or ())
        is_counted = isinstance(transform, _COUNTERS)
        if is_counted or (sources and sources.isdisjoint(observed)):
            hidden |= after - before
        else:
            observed |= after - before
        observed, hidden = observed & after, hidden & after
    return hidden


def unit_pictures(env: EnvBase) -> set[Path]:
    """Return the keys of pictures that `ToTensorImage` scales to 0 to 1, the stacked ones included.

    The specs of the transforms after it, such as `GrayScale` and `CatFrames`, lose these bounds.
    """
    found: set[Path] = set()
    for transform in transforms_of(env):
        scales = isinstance(transform, ToTensorImage) and transform.from_int is not False
        for source, target in zip(transform.in_keys or (), transform.out_keys or (), strict=False):
            keeps = isinstance(transform, _KEEP_RANGE) and path_of(source) in found
            found = found - {path_of(target)} | ({path_of(target)} if scales or keeps else set())
    return found


def transforms_of(env: EnvBase) -> Iterator[Transform]:
    """Yield all transforms of an environment, innermost first."""
    pending: list[Transform] = []
    while isinstance(env, TransformedEnv):
        pending.append(env.transform)
        env = env.base_env
    while pending:
        transform = pending.pop()
        if isinstance(transform, Compose):
            pending += reversed(list(transform))
        else:
            yield transform


@contextmanager
def frozen_statistics(env: EnvBase) -> Iterator[None]:
    """Keep the running statistics of all transforms (`VecNormV2`) as they are within the block."""
    moving = [each for each in _with_statistics(env) if not each.frozen]
    for transform in moving:
        transform.freeze()
    try:
        yield
    finally:
        for transform in moving:
            transform.unfreeze()


def copy_statistics(env: EnvBase, other: EnvBase) -> None:
    """Give the running statistics of an environment to the same transforms of another one.

    Raises:
        ConfigurationError: the environments have different numbers of rows.
    """
    targets = {(type(each), str(each.in_keys)): each for each in _with_statistics(other)}
    for source in _with_statistics(env):
        target = targets.get((type(source), str(source.in_keys)))
        if target is None or target is source:
            continue
        rows, found = env.batch_size.numel(), other.batch_size.numel()
        if rows != found:
            raise ConfigurationError(
                f"evaluation_env: {type(target).__name__} takes the statistics of training, which "
                f"has {rows} environments, not {found}"
            )
        target.load_state_dict(source.state_dict())


def _with_statistics(env: EnvBase) -> list[Transform]:
    """Return the transforms with running statistics, which can be frozen."""
    found: list[Transform] = []
    while isinstance(env, TransformedEnv | EnvironmentView):
        found += [each for each in transforms_of(env) if hasattr(each, "frozen")]
        env = env.env if isinstance(env, EnvironmentView) else base_of(env)
    return found


def path_of(key: NestedKey) -> Path:
    """Return a key as a path: a name becomes a path of one name."""
    return (key,) if isinstance(key, str) else tuple(key)


def _paths(keys: Iterable[NestedKey]) -> set[Path]:
    return {path_of(key) for key in keys}
