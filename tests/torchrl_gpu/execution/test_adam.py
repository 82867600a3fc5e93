import pytest
import torch
from torch import Tensor, nn

from tests.stand_in import count_host_reads
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.execution.adam import adam

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")


def learn(device: torch.device) -> list[Tensor]:
    """Take three steps, the second at twice the learning rate, and return the parameters."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    batch = torch.ones(4, 3, device=device)
    optimizer = adam(network.parameters(), 1e-2, device, epsilon=1e-7)
    (group,) = optimizer.param_groups
    factors = [torch.tensor(factor, device=device) for factor in (1.0, 2.0, 0.5)]
    with count_host_reads() as counter:
        for factor in factors:
            group["lr"].mul_(factor)
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    assert counter.host_reads == counter.copies == 0, counter.report()
    return [parameter.detach().cpu() for parameter in network.parameters()]


def test_step_reads_a_changed_learning_rate_and_nothing_back_to_the_host(
    accelerator: torch.device,
) -> None:
    for on_device, on_host in zip(learn(accelerator), learn(CPU), strict=True):
        torch.testing.assert_close(on_device, on_host)


def test_step_uses_lists_of_tensors_on_devices_without_a_fused_step(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records the operation that receives the list of all parameters."""
    lengths: list[int] = []
    addcdiv = torch._foreach_addcdiv_

    def record(tensors: list[Tensor], *others: object) -> None:
        lengths.append(len(tensors))
        addcdiv(tensors, *others)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "_foreach_addcdiv_", record)
    learn(accelerator)
    assert lengths == [4, 4, 4]


def test_adam_has_the_options_of_its_device(accelerator: torch.device) -> None:
    for device in (CPU, accelerator):
        parameters = [nn.Parameter(torch.zeros(2, device=device))]
        (group,) = adam(parameters, 1e-3, device, epsilon=1e-5).param_groups
        assert group["eps"] == 1e-5
        options = accelerator_of(device).adam_options
        assert {flag: group[flag] for flag in options} == options


def test_a_loaded_rate_is_a_tensor_and_the_step_stays_that_of_the_device() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = adam([parameter], 1e-3, CPU)
    before = optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["capturable"]
    optimizer.load_state_dict(torch.optim.Adam([parameter], lr=0.5).state_dict())
    (group,) = optimizer.param_groups
    assert isinstance(group["lr"], Tensor)
    assert group["lr"].item() == 0.5
    assert (group["fused"], group["capturable"]) == before


def test_later_groups_and_schedulers_have_separate_rates() -> None:
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    optimizer = adam(parameters[:1], 1e-2, CPU)
    optimizer.param_groups[0]["lr"].fill_(1.0)  # where a scheduler begins
    for parameter in parameters[1:]:
        optimizer.add_param_group({"params": [parameter]})
    factors = [lambda step: 1.0, lambda step: 0.5, lambda step: 0.1]
    torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    rates = [group["lr"].item() for group in optimizer.param_groups]
    assert rates == pytest.approx([1.0, 5e-3, 1e-3])
