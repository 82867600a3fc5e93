from __future__ import annotations

import pytest
import torch
from torch import nn

from agents.modules.dueling import Dueling


class Constant(nn.Module):
    """Returns the same outputs for all inputs."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, *inputs: object) -> torch.Tensor:
        return self.outputs


def test_values_of_actions_by_hand() -> None:
    head = Dueling(Constant(10.0), Constant(1.0, 2.0, 6.0), num_actions=3)
    assert head(torch.zeros(1)).tolist() == [8.0, 9.0, 13.0]


def test_each_atom_has_its_own_mean_advantage() -> None:
    # Two actions, two atoms: advantages [[1, 2], [3, 8]].
    head = Dueling(Constant(10.0, 20.0), Constant(1.0, 2.0, 3.0, 8.0), num_actions=2)
    assert head(torch.zeros(1)).tolist() == [9.0, 17.0, 11.0, 23.0]


def test_a_constant_added_to_all_advantages_has_no_effect() -> None:
    advantage = Constant(1.0, 2.0)
    head = Dueling(Constant(5.0), advantage, num_actions=2)
    before = head(torch.zeros(1)).detach().clone()
    with torch.no_grad():
        advantage.outputs.add_(100.0)
    torch.testing.assert_close(head(torch.zeros(1)), before)


@pytest.mark.parametrize("batch", [(), (4,), (3, 4)])
def test_head_takes_any_batch_shape(batch: tuple[int, ...]) -> None:
    head = Dueling(nn.Linear(5, 7), nn.Linear(5, 3 * 7), num_actions=3)
    features = torch.randn(*batch, 5)
    values = head(features)
    assert values.shape == (*batch, 21)
    # The mean over the actions is the value of the state.
    torch.testing.assert_close(values.unflatten(-1, (3, 7)).mean(-2), head.value(features))


def test_all_inputs_reach_both_streams() -> None:
    class Scaled(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.linear = nn.Linear(5, outputs)

        def forward(self, inputs: torch.Tensor, scale: float) -> torch.Tensor:
            return scale * self.linear(inputs)

    head, inputs = Dueling(Scaled(1), Scaled(2), num_actions=2), torch.randn(4, 5)
    torch.testing.assert_close(head(inputs, 3.0), 3.0 * head(inputs, 1.0))
