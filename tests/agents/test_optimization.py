from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agents.optimization import adam
from tests.stand_in import count_host_reads
from torchrl_gpu.accelerator import accelerator_of

CPU = torch.device("cpu")


def learn(device: torch.device) -> list[Tensor]:
    """Take three steps, the second at twice the learning rate, and return the parameters."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    batch = torch.ones(4, 3, device=device)
    learning_rate = torch.tensor(1e-2, device=device)
    optimizer = adam(network.parameters(), learning_rate, device, epsilon=1e-7)
    factors = [torch.tensor(factor, device=device) for factor in (1.0, 2.0, 0.5)]
    with count_host_reads() as counter:
        for factor in factors:
            learning_rate.mul_(factor)
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    assert counter.host_reads == counter.copies == 0, counter.report()
    return [parameter.detach().cpu() for parameter in network.parameters()]


def test_step_sees_a_changed_learning_rate_and_reads_nothing_back(
    accelerator: torch.device,
) -> None:
    for on_device, on_host in zip(learn(accelerator), learn(CPU), strict=True):
        torch.testing.assert_close(on_device, on_host)


def test_step_is_one_over_lists_of_tensors_where_there_is_no_fused_one(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the operation that the lists of all parameters go through."""
    lengths: list[int] = []
    addcdiv = torch._foreach_addcdiv_

    def record(tensors: list[Tensor], *others: object) -> None:
        lengths.append(len(tensors))
        addcdiv(tensors, *others)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "_foreach_addcdiv_", record)
    learn(accelerator)
    assert lengths == [4, 4, 4]


@pytest.mark.parametrize("name", ["cpu", "cuda:1", "xpu", "mps"])
def test_flags_are_those_of_the_record(name: str) -> None:
    device = torch.device(name)
    parameters = [nn.Parameter(torch.zeros(2))]
    learning_rate = torch.tensor(1e-3)
    (group,) = adam(parameters, learning_rate, device, epsilon=1e-5).param_groups
    assert group["eps"] == 1e-5
    assert group["lr"] is learning_rate
    options = accelerator_of(device).adam_options
    assert {flag: group[flag] for flag in options} == options
