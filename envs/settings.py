"""Settings that several environments have, each with its range and description.

Descriptions in the docstring of an environment are only those of its other settings.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field

from torchrl_gpu.arguments import Search, as_device, parameters_of
from torchrl_gpu.environments import environment


def with_defaults(
    env: type[environment.Environment], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings, completed by the defaults of the constructor of an environment.

    Settings of a subclass can lack arguments of its base class.
    """
    defaults = {name: parameter.default for name, parameter in parameters_of(env).items()}
    return {**defaults, **settings}


NumEnvs = Annotated[
    int,
    Search(high=4, log=True),
    Field(ge=1, le=2**20, description="number of environments simulated in parallel"),
]
MaxEpisodeSteps = Annotated[
    int,
    Field(ge=1, description="maximum number of steps per episode; longer episodes are truncated"),
]
Device = Annotated[
    torch.device | str,
    AfterValidator(partial(as_device, torch.device)),
    Field(description="device of the policy"),
]
Mode = Annotated[
    environment.Mode, Field(description="purpose of the environment: `train`, `eval` or `demo`")
]
StepTimeout = Annotated[
    Annotated[float, Field(gt=0)] | None,
    Field(
        description="seconds without an answer after which a worker process counts as hanging and "
        "is replaced, or a simulator without worker processes is reported; null for no limit"
    ),
]
Seed = Annotated[int, Field(description="random seed of the episodes")]
