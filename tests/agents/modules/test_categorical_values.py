import pytest
import torch
import torch.nn.functional as F

from agents.modules.categorical_values import CategoricalValues, divergence
from torchrl_gpu.errors import ConfigurationError


def five() -> CategoricalValues:
    """Atoms -2, -1, 0, 1, 2."""
    return CategoricalValues(-2.0, 2.0, 5)


def test_projection_under_autocast_keeps_single_precision() -> None:
    torch.manual_seed(0)
    logits, reward = torch.randn(8, 5), torch.randn(8, 1)
    values, discount = five(), torch.full((8, 1), 0.9)
    expected = values.project(logits.softmax(-1), reward, discount)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        halves = logits.softmax(-1).to(torch.bfloat16)
        projected = values.project(halves, reward, discount)
        mean = values.mean(logits)
        distance = divergence(expected, logits.to(torch.bfloat16))
    assert projected.dtype == torch.float32
    torch.testing.assert_close(projected, expected, atol=4e-3, rtol=0.0)
    torch.testing.assert_close(mean, values.mean(logits))
    torch.testing.assert_close(distance, divergence(expected, logits.to(torch.bfloat16).float()))


def test_projection_of_a_batch_equals_the_loop_of_the_paper() -> None:
    torch.manual_seed(0)
    values = CategoricalValues(-7.0, 13.0, 51)
    probabilities = torch.randn(64, 51).softmax(-1)
    reward, discount = 5 * torch.randn(64, 1), torch.rand(64, 1).round(decimals=1)
    reward[:8], discount[:8] = 0.0, 1.0  # the atoms move onto themselves
    expected = torch.zeros(64, 51)
    for sample in range(64):
        for atom in range(51):
            moved = reward[sample, 0] + discount[sample, 0] * values.atoms[atom]
            place = ((moved.clamp(-7.0, 13.0) + 7.0) / values.spacing).item()
            lower = min(int(place), 49)
            expected[sample, lower] += probabilities[sample, atom] * (lower + 1 - place)
            expected[sample, lower + 1] += probabilities[sample, atom] * (place - lower)
    projected = values.project(probabilities, reward, discount)
    torch.testing.assert_close(projected, expected, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(projected.sum(-1), torch.ones(64))
    assert (projected >= 0.0).all()


def test_mean_by_hand() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.3, 0.1], [1.0, 1e-9, 1e-9, 1e-9, 1.0]]).log()
    torch.testing.assert_close(five().mean(logits), torch.tensor([0.1, 0.0]))
    assert five().mean(torch.zeros(3, 4, 5)).shape == (3, 4)


def test_divergence_by_hand() -> None:
    target = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    logits = torch.tensor([[0.25, 0.25, 0.5], [0.2, 0.3, 0.5]]).log()
    expected = torch.tensor([torch.tensor(2.0).log().item(), 0.0])
    torch.testing.assert_close(divergence(target, logits), expected, atol=1e-6, rtol=0.0)


def test_divergence_has_the_gradient_of_the_cross_entropy() -> None:
    torch.manual_seed(0)
    target = torch.randn(8, 5).softmax(-1)
    target[:, 2] = 0.0
    logits = torch.randn(8, 5, requires_grad=True)
    (ours,) = torch.autograd.grad(divergence(target, logits).mean(), logits)
    (theirs,) = torch.autograd.grad(F.cross_entropy(logits, target), logits)
    torch.testing.assert_close(ours, theirs)


def test_an_empty_range_of_atoms_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="value_max"):
        CategoricalValues(1.0, 1.0, 5)
