"""Evaluation by the paper's protocol: six levels at once, episodes end at the first collision."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import step_mdp

from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.env import MarineNavEnv
from envs.marinenav.physics import STEP_SECONDS, THRUST
from envs.marinenav.scenario import Scenario, draw_scenarios
from envs.marinenav.sea_env import GROUP, SeaEnv
from torchrl_gpu.arguments import checked
from torchrl_gpu.intervals import Z, wilson_interval

GAMMA: Final = 0.99
_STEPS_BETWEEN_LOOKS: Final = 10

Policy = Callable[[TensorDictBase], TensorDictBase]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval; NaN where nothing was measured."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return `mean [low, high]`."""
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Scores:
    """Figures of the episodes of one level, or of all levels."""

    level: int | None  # of the scenarios; None for all levels
    episodes: int  # number of episodes
    success: Estimate  # fraction of episodes in which all robots reached their goals
    collision: Estimate  # fraction of episodes that ended with a collision
    time: Estimate  # mean time per robot over successful episodes, s
    # Mean of the sum of (|T_l| + |T_r|) * 0.5 s per robot over successful episodes, N s.
    energy: Estimate
    discounted_return: Estimate  # mean return per robot over all episodes, gamma 0.99


@dataclass(frozen=True)
class Results:
    """Results of an evaluation, by level and over all levels."""

    levels: tuple[Scores, ...]
    overall: Scores

    def __str__(self) -> str:
        """Return one line per level, and one for all levels."""
        rows = [(f"level {row.level}", row) for row in self.levels]
        return "\n".join(
            f"{name}: success {row.success}, collision {row.collision}, "
            f"return {row.discounted_return}, time {row.time} s, energy {row.energy} N s"
            for name, row in [*rows, ("all", self.overall)]
        )


@checked
@torch.no_grad()
def evaluate(
    policy: Policy,
    *,
    scenarios: Sequence[Any] | None = None,
    episodes: Annotated[int, Field(ge=1)] = 100,
    noise: bool = True,
    normalize: bool = True,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Results:
    """Evaluate a policy that steers all robots, over many episodes in parallel.

    An episode ends with the first collision, when all robots are at their goals, or at the time
    limit.

    Args:
        policy: reads the robots' observations, a TensorDict `[N, R]`, and writes `action`: two
            thrust rates or the index of a discrete action. A module acts in eval mode.
        scenarios: initial states of the episodes; None to draw them at the paper's six levels.
        episodes: number of episodes drawn per level, at least 1.
        noise: add the paper's sensor noise to observed objects.
        normalize: scale observations to order 1; False for SI units.
        device: device of all tensors.
        seed: random seed of the drawn episodes and of the sensor noise.

    Returns:
        Results by level of the scenarios.

    Raises:
        ConfigurationError: an argument is out of range, or a scenario is invalid.
    """
    if scenarios is None:
        scenarios = draw_scenarios(PAPER_STAGES, episodes, seed)
    env = MarineNavEnv.from_scenarios(
        scenarios, "float32", noise, normalize=normalize, device=device, seed=seed
    )
    module = policy if isinstance(policy, nn.Module) and policy.training else None
    try:
        if module is not None:
            module.eval()
        rows = _play(env, policy).cpu().double()
    finally:
        if module is not None:
            module.train()
    levels = torch.tensor([Scenario.model_validate(episode).level for episode in scenarios])
    return Results(
        tuple(_summarise(rows[:, levels == level], level) for level in levels.unique().tolist()),
        _summarise(rows, None),
    )


def _play(env: SeaEnv, policy: Policy) -> Tensor:
    """Return success, collision, time, energy and return of each episode, `[5, N]`."""
    table = env.discrete_actions
    state = env.reset()
    count = env.sea.exists.sum(0)
    seas = env.num_envs
    is_running = torch.ones(seas, dtype=torch.bool, device=env.device)
    success, collision = torch.zeros(2, seas, dtype=torch.bool, device=env.device)
    time, energy, returns = torch.zeros(3, seas, dtype=env.dtype, device=env.device)
    discount, step = 1.0, 0
    while step % _STEPS_BETWEEN_LOOKS or bool(is_running.any()):
        moves = env.sea.active & is_running
        robots = state.get(GROUP)
        action = policy(robots).get("action")
        if not action.is_floating_point():
            robots.set("action", table[action])
        state = env.step(state)
        group, sea = state["next", GROUP], env.sea
        thrust = sea.motion[THRUST].abs().sum(0)
        time += STEP_SECONDS * moves.sum(0)
        energy += STEP_SECONDS * (thrust * moves).sum(0)
        returns += discount * (group["reward"][..., 0] * moves.T).sum(1)
        discount *= GAMMA
        failed = (moves & ~sea.active & ~sea.reached).any(0)
        collision |= failed
        success |= is_running & ~failed & state["next", "success"][:, 0]
        is_running &= ~failed & ~state["next", "done"][:, 0]
        state = step_mdp(state)
        step += 1
    return torch.stack(
        (success.to(time), collision.to(time), time / count, energy / count, returns / count)
    )


def _summarise(rows: Tensor, level: int | None) -> Scores:
    success, collision, time, energy, returns = rows
    succeeded = success > 0
    return Scores(
        level,
        rows.shape[1],
        _share(success),
        _share(collision),
        _mean(time[succeeded]),
        _mean(energy[succeeded]),
        _mean(returns),
    )


def _share(outcomes: Tensor) -> Estimate:
    """Return a fraction with its Wilson score interval."""
    successes = int(outcomes.sum())
    return Estimate(successes / len(outcomes), *wilson_interval(successes, len(outcomes)))


def _mean(values: Tensor) -> Estimate:
    """Return a mean with its confidence interval by the normal distribution."""
    if len(values) == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    spread = float(values.std()) if len(values) > 1 else math.nan
    margin = Z * spread / math.sqrt(len(values))
    return Estimate(mean, mean - margin, mean + margin)
