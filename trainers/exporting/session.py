"""Exported policies that ONNX Runtime runs: nothing of a folder but ONNX and JSON is read."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.acting.interface import PolicyInterface, SimulatorAction
from torchrl_gpu.errors import ConfigurationError, one_line, shortened
from trainers.exporting.contract import ONNX, Contract


class Session:
    """An ONNX policy in ONNX Runtime on the CPU, with as many threads as torch has.

    Args:
        content: bytes of the file. Weights in other files are refused, and so are operators of
            other libraries: none is loaded.
        names: names of the observations in their order.
    """

    def __init__(self, content: bytes, names: Sequence[str]) -> None:
        # An optional package, imported where it is needed.
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised
        self.runs = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.names = list(names)

    def __call__(self, observations: Sequence[Tensor]) -> NDArray[Any]:
        """Return the actions `[B, ...]` for observations `[B, ...]` in their order."""
        given = {n: each.numpy() for n, each in zip(self.names, observations, strict=True)}
        (action,) = self.runs.run(["action"], given)
        return action


def open_session(folder: Path, contract: Contract) -> Session:
    """Open the policy of an exported folder."""
    names = [each["name"] for each in contract.observations]
    try:
        return Session((folder / ONNX).read_bytes(), names)
    except Exception as error:  # ONNX Runtime raises a separate class for each kind of failure
        cause = shortened(one_line(error), 200)
        raise ConfigurationError(f"policy={folder}: {ONNX} cannot be run: {cause}") from error


class ExportedPolicy(TensorDictModuleBase):
    """An exported policy as a TensorDict module, for `evaluate`, `film` or a collector.

    The interface is that of a policy in the environment.
    """

    def __init__(self, session: Session, interface: PolicyInterface) -> None:
        super().__init__()
        self.session = session
        spec = interface.observation_spec
        self.in_keys = list(spec.keys(include_nested=True, leaves_only=True))
        self.out_keys = ["action"]
        self.shapes = [leaf.shape[1:] for leaf in interface.leaves.values()]
        self.to_simulator = SimulatorAction(interface)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` as the environment takes it, on the device of the TensorDict."""
        observations = [tensordict.get(key) for key in self.in_keys]
        rows = [
            each.reshape(-1, *shape).cpu()
            for each, shape in zip(observations, self.shapes, strict=True)
        ]
        values = torch.from_numpy(self.session(rows)).to(observations[0].device)
        action = self.to_simulator.inverse(values)
        return tensordict.set("action", action.reshape(*tensordict.batch_size, *action.shape[1:]))
