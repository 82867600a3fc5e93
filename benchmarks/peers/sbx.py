"""Jobs of SBX: the algorithms of Stable-Baselines3 in JAX."""

from functools import partial

from benchmarks.peers.jobs import Build, Builders
from benchmarks.peers.sb3 import build_off_policy, build_ppo, trainings

_AT_ONCE = 10


def _variants(name: str, is_discrete: bool = False) -> dict[str, Build]:
    """Return updates one by one, as at one update per frame, and 10 in a call compiled whole."""
    build = partial(build_off_policy, f"sbx:{name}", is_discrete)
    return {"": build, f"{_AT_ONCE} a call": partial(build, at_once=_AT_ONCE)}


BUILDERS: Builders = {
    "updates_sac": _variants("SAC"),
    "updates_ddpg": _variants("DDPG"),
    "updates_dqn": _variants("DQN", is_discrete=True),
    "updates_ppo": {"": partial(build_ppo, "sbx:PPO")},
    **trainings("sbx"),
}
