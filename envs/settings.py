"""Settings that several environments have, each with its range and description.

Descriptions in the docstring of an environment are only those of its other settings.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from torchrl_gpu.environments import environment

NumEnvs = Annotated[int, Field(ge=1, description="number of environments simulated in parallel")]
MaxEpisodeSteps = Annotated[
    int,
    Field(ge=1, description="maximum number of steps per episode; longer episodes are truncated"),
]
FrameStack = Annotated[
    int,
    Field(
        ge=1,
        description="number of last images that the agent observes together; the first image of "
        "an episode fills the stack",
    ),
]
Device = Annotated[torch.device | str, Field(description="device of the policy")]
Mode = Annotated[
    environment.Mode, Field(description="purpose of the environment: `train`, `eval` or `demo`")
]
Seed = Annotated[int, Field(description="random seed of the episodes")]
