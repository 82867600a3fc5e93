"""Settings of the search of hyperparameters, `tune.*`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from torchrl_gpu.arguments import CheckedFields

Objective = Literal["seconds", "frames", "score"]


class Tuning(CheckedFields):
    """Search of hyperparameters, `mode=tune`.

    Args:
        objective: goal of the search: the fewest `seconds` of training, without its evaluations, or
            the fewest `frames` to `success`; or the highest `score` within `trial_seconds` and
            `trainer.total_frames`.
        success: success rate to reach, 0 to 1, or mean return where the environment reports no
            success; None for a success rate of 0.95. Without effect on `score`.
        trials: number of trials of the study, of all its processes and calls together.
        seconds: duration after which this call ends its trial and begins no other; None for none.
        trial_seconds: maximum seconds of training of each trial; None for `seconds` / `trials`, or
            those of the study that goes on.
        names: settings to search, as in [agent.learning_rate,env.num_envs]; None for all that
            declare values to try and were not typed.
        space: values to try of further settings, or other values, as in
            {agent.gamma:[0.9,0.99],agent.critic:[mean,categorical]}: two numbers are lowest and
            highest, others are choices, null leaves a setting as it is; None for no others.
        repeats: share of the trials, or of the seconds of this call if those end first, that runs
            the best settings again by other seeds: a single good run may be luck.
        episodes: number of episodes of each evaluation in a trial.
        prune: end a trial that after as many seconds or frames is worse than half of those before,
            or has taken three times as many as the best one.
        fresh_seeds: number of new seeds by which the best settings and the preset of the library,
            or without one the settings of the command, are judged at the end.
        study: name of the study, a folder in `runs/<env>/<agent>/tune/`; the same command goes on
            with it.
    """

    objective: Objective = "seconds"
    success: float | None = None
    trials: Annotated[int, Field(ge=1)] = 40
    seconds: Annotated[float, Field(gt=0.0)] | None = 2400.0
    trial_seconds: Annotated[float, Field(gt=0.0)] | None = None
    names: Sequence[str] | None = None
    space: dict[str, Any] | None = None
    repeats: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.25
    episodes: Annotated[int, Field(ge=1)] = 64
    prune: bool = True
    fresh_seeds: Annotated[int, Field(ge=1)] = 3
    study: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = "study"
