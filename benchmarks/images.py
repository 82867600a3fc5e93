"""Agents that see images, and their gradient steps on the request of another program.

`benchmarks.versions` starts this file once for each version of the repository, whose modules it
then imports: it uses only names that all of them have. It reads numbers of gradient steps from its
standard input, and answers each with the processor time that they took, in seconds.
"""

import sys
import time

import torch
from torchrl.data import Bounded, Composite

from agents.base import Agent
from agents.modules.encoders import ObservationEncoderFactory
from benchmarks.fixture import build_agent, gradient_step, kind_of, random_batch, specs
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from trainers.components.choices import learning_agents

# The sizes of `experiment=reach_pixels`.
IMAGE_SIZE = 48
IMAGE_BATCH = 128
IMAGE_HIDDEN = (128, 128)
IMAGE_ENCODER = ObservationEncoderFactory(
    convolutions="nature", channels=[16, 32, 32], pixel_features=64, shared=True, random_shift=2
)

LONG = 10**9  # transitions in all batches of a run


def build_image_agent(agent_class: type[Agent], device: torch.device) -> Agent:
    """Return an agent that sees one image, and shares its encoder."""
    _, act = specs(1, kind=kind_of(agent_class), device=device)
    shape = (1, 3, IMAGE_SIZE, IMAGE_SIZE)
    pixels = Bounded(0, 255, shape, dtype=torch.uint8, device=device)
    see = Composite(pixels=pixels, shape=(1,), device=device)
    settings = {"hidden_sizes": IMAGE_HIDDEN, "batch_size": IMAGE_BATCH, "encoder": IMAGE_ENCODER}
    return build_agent(agent_class, see, act, **settings)


def serve(*, agent: str, long: bool = False) -> int:
    """Take as many gradient steps as each line of the standard input says, and print their seconds.

    Args:
        agent: name of the agent.
        long: take them as a long run chooses to, which may compile them (false).
    """
    if agent not in (agents := learning_agents()):
        raise ConfigurationError(f"agent={agent}: one of {', '.join(agents)}")
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    learner = build_image_agent(agents[agent], torch.device("cpu"))
    execution = Execution()
    if long and hasattr(execution, "plan"):  # earlier versions have one way
        execution.plan(LONG)
    step = gradient_step(learner, random_batch(learner, IMAGE_BATCH), execution)
    for line in sys.stdin:
        begin = time.process_time()
        for _ in range(int(line)):
            step()
        print(time.process_time() - begin, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(call_with_arguments(serve))
