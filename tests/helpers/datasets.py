"""Episodes of random numbers, and comparisons of episodes."""

from collections.abc import Iterable, Sequence

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.replay.episodes import Episode

FRAMES, CHOICES = 3, 5
LENGTHS = (5, 1, 9)
TABLE = torch.linspace(-1.0, 1.0, 2 * CHOICES).reshape(CHOICES, 2)

# One spec of each kind of observation, batch size [1], by the names of an interface.
KINDS: dict[str, Composite] = {
    "vector": Composite(observation=Unbounded((1, 4)), shape=(1,)),
    "named": Composite(state=Unbounded((1, 4)), observation=Unbounded((1, 1)), shape=(1,)),
    "nested": Composite(arm=Composite(joints=Unbounded((1, 2)), shape=(1,)), shape=(1,)),
    "set": Composite(
        objects=Bounded(-1.0, 1.0, (1, 3, 2)),
        objects_mask=Binary(3, (1, 3), dtype=torch.bool),
        shape=(1,),
    ),
    "colour": Composite(pixels=Bounded(0, 255, (1, 3, 6, 5), dtype=torch.uint8), shape=(1,)),
    "grey": Composite(pixels=Bounded(0, 255, (1, 1, 6, 5), dtype=torch.uint8), shape=(1,)),
    "two channels": Composite(pixels=Bounded(0, 255, (1, 2, 6, 5), dtype=torch.uint8), shape=(1,)),
    "stack": Composite(
        pixels=Bounded(0, 255, (1, 3 * FRAMES, 6, 5), dtype=torch.uint8),
        proprioception=Unbounded((1, 4)),
        shape=(1,),
    ),
    "grey stack": Composite(
        pixels=Bounded(0, 255, (1, FRAMES, 6, 5), dtype=torch.uint8), shape=(1,)
    ),
}


def interface_of(kind: str = "vector", actions: str = "continuous") -> PolicyInterface:
    """Return the interface of a policy with a kind of observation and of action."""
    is_discrete = actions == "discrete"
    action: TensorSpec = (
        Categorical(CHOICES, shape=(1,)) if is_discrete else Bounded(-1.0, 1.0, (1, 2))
    )
    stacks = {"pixels": FRAMES} if kind.endswith("stack") else {}
    table = TABLE if is_discrete else None
    return PolicyInterface(KINDS[kind], action, table, stacks, step_seconds=0.05)


def random_episodes(
    interface: PolicyInterface, lengths: Iterable[int] = LENGTHS, *, success: bool = True
) -> list[Episode]:
    """Return episodes of random numbers that end in turn by termination and by the time limit."""
    episodes = []
    for number, steps in enumerate(lengths):
        observations = {}
        for name, leaf in interface.leaves.items():
            frames = interface.frame_stacks.get(name, 1)
            shape = (leaf.shape[1] // frames, *leaf.shape[2:])
            drawn = leaf.expand(steps + frames, *leaf.shape[1:]).rand()[:, : shape[0]]
            windows = [drawn[i : i + steps + 1] for i in range(frames)]
            observations[name] = torch.stack(windows, 1).flatten(1, 2) if frames > 1 else windows[0]
        action = interface.action_spec.expand(steps, *interface.action_spec.shape[1:]).rand()
        last, nothing = torch.arange(steps) == steps - 1, torch.zeros(steps, dtype=torch.bool)
        flags = (last, nothing) if number % 2 == 0 else (nothing, last)
        solved = last.clone() if success else None
        episodes.append(Episode(observations, action, torch.randn(steps), *flags, solved))
    return episodes


def assert_same_episodes(found: Iterable[Episode], expected: Sequence[Episode]) -> None:
    """Assert that episodes are the same bit for bit, dtypes included."""
    found = list(found)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.observations.keys() == other.observations.keys()
        pairs = [(one.observations[name], other.observations[name]) for name in one.observations]
        names = ("action", "reward", "terminated", "truncated")
        pairs += [(getattr(one, name), getattr(other, name)) for name in names]
        assert (one.success is None) == (other.success is None)
        if one.success is not None and other.success is not None:
            pairs.append((one.success, other.success))
        for mine, yours in pairs:
            assert mine.dtype == yours.dtype
            assert torch.equal(mine, yours)
