"""Hyperparameters that several agents have: type, range and meaning, each said once.

Agents annotate their settings with these types. Checks of arguments and `--help` read range and
description from them, and `mode=tune` the values to try (`Search`). An agent inherits the defaults
of its base classes, or states its own.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from agents.modules import networks
from agents.modules.encoders import EncoderFactory
from torchrl_gpu.arguments import Search

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]
Switch = Annotated[bool, Search(choices=(False, True))]  # that a search tries both ways

# Widths of hidden layers; `OptionalLayers` may be empty.
OptionalLayers = Sequence[Count]
LAYER_SEARCH = Search(choices=((64, 64), (128, 128), (256, 256), (400, 300), (128, 128, 128)))
LayerSizes = Annotated[OptionalLayers, LAYER_SEARCH, Field(min_length=1)]

ActorCriticSizes = Annotated[
    OptionalLayers,
    LAYER_SEARCH,
    Field(description="widths of the hidden layers of actor and critic, at least 1; may be empty"),
]
Activation = Annotated[
    networks.Activation,
    Field(description="activation function of the hidden layers behind the encoder"),
]
EncoderSetting = Annotated[
    EncoderFactory,
    Field(description="factory of the encoders of observations, see `agents.modules.encoders`"),
]
NormalizeObservations = Annotated[
    bool,
    Field(
        description="normalize vector observations to mean 0 and variance 1, by running statistics "
        "of the observations learned from, and clip them to [-10, 10]"
    ),
]

# The gradient step

LearningRate = Annotated[
    Positive,
    Search(2e-4, 1e-2, log=True),
    Field(description="learning rate of Adam; the initial rate if it changes"),
]
LearningRateEnd = Annotated[
    NonNegative | None,
    Field(description="final learning rate of a linear schedule; None for no schedule"),
]
LearningRateFrames = Annotated[
    Count | None,
    Field(description="number of environment steps to `learning_rate_end`; None for no schedule"),
]
AdamEpsilon = Annotated[Positive, Field(description="term added to the denominator of Adam")]
GradientNorm = Annotated[
    Positive | None,
    Field(
        description="maximum norm of the gradient of each parameter group; a larger gradient is "
        "scaled down to it; None for no limit"
    ),
]
BatchSize = Annotated[
    Count,
    Search(64, 512, log=True),
    Field(description="number of transitions per gradient step"),
]
UTDRatio = Annotated[
    Positive,
    Search(1 / 64, 1.0, log=True),
    Field(description="number of gradient steps per environment step (update-to-data ratio)"),
]

Demonstrations = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    Field(
        description="folder of a dataset of Minari or LeRobot whose transitions are a share of "
        "every batch; None for none"
    ),
]
DemonstrationShare = Annotated[
    float,
    Field(gt=0.0, lt=1.0, description="share of every batch that is drawn from `demonstrations`"),
]

# Returns and target networks

Gamma = Annotated[
    Share,
    Search(choices=(0.95, 0.97, 0.98, 0.99, 0.995, 0.999)),
    Field(description="discount factor per environment step"),
]
NStep = Annotated[
    Count,
    Search(1, 5),
    Field(description="number of environment steps whose rewards a target sums (n-step return)"),
]
TargetRate = Annotated[
    PositiveShare,
    Search(0.003, 0.05, log=True),
    Field(description="Polyak averaging rate of each target network; 1 copies the online network"),
]
TargetPeriod = Annotated[
    Count,
    Field(description="number of gradient steps per update of the target networks"),
]
DoubleQ = Annotated[
    bool,
    Field(
        description="use double Q-learning: the online network chooses the next action and the "
        "target network evaluates it"
    ),
]

# Distributions of the return

ValueMin = Annotated[
    float, Field(description="lowest atom of a return distribution, in units of reward")
]
ValueMax = Annotated[
    float,
    Field(
        description="highest atom of a return distribution, in units of reward, above `value_min`"
    ),
]
Atoms = Annotated[int, Field(ge=2, description="number of atoms of a return distribution")]
Cosines = Annotated[
    Count, Field(description="number of cosines that embed a quantile fraction (tau)")
]
Fractions = Annotated[
    Count,
    Search(4, 32, log=True),
    Field(description="number of quantile fractions (N) per transition for the predicted returns"),
]
TargetFractions = Annotated[
    Count,
    Search(4, 32, log=True),
    Field(description="number of quantile fractions (N') per transition for the target returns"),
]
RiskLevel = Annotated[
    PositiveShare,
    Field(
        description="fraction of returns, from the worst up, whose mean the policy maximizes "
        "(conditional value at risk); 0.25 for the worst quarter, 1 for risk-neutral"
    ),
]
QuantileKappa = Annotated[
    Positive,
    Field(
        description="error at which the quantile Huber loss turns from quadratic to linear, in "
        "units of reward"
    ),
]

# Exploration

EpsilonStart = Annotated[Share, Field(description="initial probability of a random action")]
EpsilonEnd = Annotated[
    Share,
    Search(0.01, 0.2, log=True),
    Field(description="final probability of a random action"),
]
EpsilonFrames = Annotated[
    Count,
    Search(1_000, 200_000, log=True),
    Field(
        description="number of environment steps over which the probability of a random action "
        "changes linearly from `epsilon_start` to `epsilon_end`"
    ),
]
NoiseStart = Annotated[
    NonNegative,
    Search(0.1, 0.8),
    Field(description="initial standard deviation of exploration noise, for actions in [-1, 1]"),
]
NoiseEnd = Annotated[
    NonNegative,
    Search(0.02, 0.3, log=True),
    Field(description="final standard deviation of exploration noise, for actions in [-1, 1]"),
]
NoiseFrames = Annotated[
    Count,
    Search(1_000, 200_000, log=True),
    Field(
        description="number of environment steps over which the exploration noise changes linearly "
        "from `noise_start` to `noise_end`"
    ),
]
SaturationPenalty = Annotated[
    NonNegative,
    Field(
        description="weight of the mean squared action before tanh in the actor's loss; keeps the "
        "actor away from the bounds of its actions, where the gradient of tanh vanishes"
    ),
]
