"""Environments that Genesis simulates on the CPU, as though it simulated on a GPU."""

import importlib
from unittest import mock

import pytest
import torch

from envs.genesis import start_genesis
from envs.lift_cube import LiftCubeEnv
from tests.stand_in import HostTraffic, count_reads_of_cpu_tensors
from torchrl_gpu.errors import ConfigurationError

# Reads of Genesis in ten steps, each of four of its substeps: it looks for errors at every tenth.
ERROR_CHECKS = 4


def start_or_skip() -> None:
    """Start Genesis on the CPU; skip the test where it is not installed, or lacks OpenGL."""
    try:
        start_genesis(torch.device("cpu"))
    except ConfigurationError as error:
        pytest.skip(str(error))


def traffic_of_10_steps(env: LiftCubeEnv) -> HostTraffic:
    """Return the host traffic of ten steps, of which two end all episodes.

    Environment and simulator take the paths in Python that they take on a GPU.
    """
    gs = importlib.import_module("genesis")
    root, action = env.reset(), torch.zeros(env.num_envs, 4)
    ends = torch.zeros((), dtype=torch.int64)
    with (
        mock.patch.object(gs, "backend", gs.constants.backend.cuda),
        mock.patch.object(env, "max_episode_steps", 4),
        mock.patch.object(env, "_reads_stall", True),
        mock.patch.object(env.simulation._reader, "_reads_stall", True),
        count_reads_of_cpu_tensors() as traffic,
    ):
        for _ in range(10):
            step, root = env.step_and_maybe_reset(root.set("action", action))
            ends += step["next", "done"].sum()
    assert ends == 2 * env.num_envs
    return traffic
