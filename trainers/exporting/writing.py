"""Writes a policy as ONNX and torch.export files with their contract, and checks them."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor, nn

from torchrl_gpu.checkpoints.files import atomic_folder
from torchrl_gpu.environments.capabilities import Element
from torchrl_gpu.errors import ConfigurationError, one_line, shortened
from trainers.evaluation.evaluation import Evaluation
from trainers.exporting.agreement import Acts, agreement
from trainers.exporting.contract import (
    CONTRACT,
    ONNX,
    PT2,
    Contract,
    action_of,
    observations_of,
    sha256,
)
from trainers.exporting.leapp import LEAPP, leapp_text
from trainers.exporting.page import PAGE, policy_script
from trainers.exporting.session import Session
from trainers.runs.policy_files import TrainedPolicy
from trainers.runs.versions import versions

logger = logging.getLogger(__name__)


class _InOrder(nn.Module):
    """A policy whose observations are arguments in their order, as exported files take them."""

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self.policy = policy
        spec = policy.interface.observation_spec
        self.keys: list[NestedKey] = list(spec.keys(include_nested=True, leaves_only=True))

    def forward(self, *observations: Tensor) -> Tensor:
        """Return the actions `[B, ...]` for observations `[B, ...]`."""
        return self.policy(dict(zip(self.keys, observations, strict=True)))


def export_policy(
    policy: TrainedPolicy,
    folder: Path,
    observations: Sequence[Tensor],
    *,
    agent: str,
    frames: int,
    evaluation: Evaluation,
    config: Mapping[str, Any],
    elements: Mapping[NestedKey, Sequence[Element]] | None = None,
    page: Callable[[str], str] | None = None,
) -> Contract:
    """Write a policy as a folder of files that agree with it; return their contract.

    The folder must not exist. It appears when all of it has been written, and checked by
    `observations` `[N, ...]` in the order of the contract. `page` returns the page around the
    script of a policy, see `Environment.page`. The policy is on the CPU.
    """
    module = _InOrder(policy).eval().requires_grad_(False)
    names, action = list(policy.interface.leaves), action_of(policy.interface)
    with atomic_folder(folder) as partial:
        _write(module, names, [each[[0, -1]] for each in observations], partial)
        exported = torch.export.load(partial / PT2).module()
        session = Session((partial / ONNX).read_bytes(), names)
        files: dict[str, Acts] = {
            "ONNX Runtime": session,
            "torch.export": lambda given: exported(*given),
        }
        found = agreement(lambda given: module(*given), files, observations, action)
        found.check()
        elements = dict(elements or {})
        contract = Contract(
            agent=agent,
            frames=frames,
            observations=observations_of(policy.interface, elements),
            action=action_of(policy.interface, elements.get("action")),
            step_seconds=policy.interface.step_seconds,
            evaluation=evaluation,
            agreement=found,
            config=dict(config),
            versions={**versions(), "onnxruntime": version("onnxruntime")},
            files={name: sha256(partial / name) for name in (ONNX, PT2)},
        )
        (partial / LEAPP).write_text(leapp_text(contract, partial), encoding="utf-8")
        if page is not None:
            _write_page(page, partial)
        (partial / CONTRACT).write_text(contract.as_json(), encoding="utf-8")
    return contract


def _write_page(page: Callable[[str], str], folder: Path) -> None:
    """Write the page of the policy in a folder, if a browser can run it."""
    try:
        script = policy_script(folder / ONNX)
    except ConfigurationError as error:
        logger.warning("no %s: %s", PAGE, error)
    else:
        (folder / PAGE).write_text(page(script), encoding="utf-8")


@torch.no_grad()
def _write(module: _InOrder, names: Sequence[str], example: Sequence[Tensor], folder: Path) -> None:
    """Write both files of a policy on the CPU, whose batch dimension is free.

    The example has two observations, because torch.export takes batches of one as fixed.
    """
    batch = torch.export.Dim("batch", min=1, max=2**24)
    sizes = {"observations": tuple({0: batch} for _ in example)}
    with _quiet():
        try:
            program = torch.export.export(
                module, tuple(example), dynamic_shapes=sizes, strict=False
            )
        except Exception as error:  # of many classes, each with pages of torch's own reasons
            raise ConfigurationError(
                "mode=export: torch.export cannot trace the networks, whose operations must not "
                f"depend on values of tensors: {shortened(one_line(error), 120)}"
            ) from error
        torch.export.save(program, folder / PT2)
        onnx = torch.onnx.export(
            program, (), dynamo=True, input_names=names, output_names=["action"], verbose=False
        )
        assert onnx is not None
        ports: Any = (*onnx.model.graph.inputs, *onnx.model.graph.outputs)
        for port in ports:
            port.shape[0] = "batch"
        onnx.save(folder / ONNX, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the reports of torch and onnxscript while they export."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
