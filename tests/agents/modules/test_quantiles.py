import math

import pytest
import torch

from agents.modules.quantiles import CosineEmbedding, draw_fractions, quantile_huber_loss

CPU = torch.device("cpu")


@pytest.mark.parametrize("kappa", [0.5, 1.0, 3.0])
def test_loss_is_the_double_sum_of_the_paper(kappa: float) -> None:
    torch.manual_seed(0)
    values, fractions, targets = torch.randn(6, 4), torch.rand(6, 4), 2 * torch.randn(6, 5)
    expected = torch.zeros(6)
    for sample in range(6):
        for value, fraction in zip(values[sample], fractions[sample], strict=True):
            for target in targets[sample]:
                error = float(target - value)
                huber = (
                    0.5 * error**2 if abs(error) <= kappa else kappa * (abs(error) - 0.5 * kappa)
                )
                expected[sample] += abs(float(fraction) - (error < 0)) * huber / kappa / 5
    torch.testing.assert_close(quantile_huber_loss(values, fractions, targets, kappa), expected)


def test_embedding_equals_the_formula_of_the_paper() -> None:
    torch.manual_seed(0)
    embedding = CosineEmbedding(3, 2)
    fractions = torch.tensor([[0.0, 0.3], [0.5, 1.0]])
    weight, bias = embedding.linear.weight, embedding.linear.bias
    for row in range(2):
        for column in range(2):
            cosines = [math.cos(math.pi * i * fractions[row, column]) for i in range(3)]
            expected = (weight @ torch.tensor(cosines) + bias).clamp(min=0.0)
            torch.testing.assert_close(embedding(fractions)[row, column], expected)


def test_a_risk_level_bounds_the_fractions() -> None:
    torch.manual_seed(0)
    fractions = draw_fractions((10_000,), 0.25, CPU)
    assert fractions.min() >= 0.0
    assert fractions.max() <= 0.25
    assert fractions.mean().item() == pytest.approx(0.125, abs=0.005)
