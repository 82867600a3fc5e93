import torch

from agents.modules import categorical


def test_draws_follow_the_probabilities() -> None:
    torch.manual_seed(0)
    probabilities = torch.tensor([0.1, 0.6, 0.3])
    actions = categorical.draw(probabilities.log().expand(20_000, 3))
    assert actions.dtype == torch.int64
    shares = torch.bincount(actions, minlength=3) / actions.numel()
    torch.testing.assert_close(shares, probabilities, atol=0.02, rtol=0.0)


def test_draws_from_half_precision_logits_follow_the_probabilities() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 8.0]).to(torch.bfloat16)
    actions = categorical.draw(logits.expand(200_000, 2))
    share = (actions == 0).float().mean()
    torch.testing.assert_close(share, torch.tensor(3.4e-4), atol=1e-4, rtol=0.0)


def test_log_probability_and_entropy_keep_single_precision() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 5).to(torch.bfloat16)
    action = logits.argmax(dim=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = categorical.evaluate(action, logits)
    torch.testing.assert_close(found, categorical.evaluate(action, logits.float()))


def test_log_probability_and_entropy_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 4, 3)
    action = torch.randint(3, (5, 4))
    exact = torch.distributions.Categorical(logits=logits)
    log_prob, entropy = categorical.evaluate(action, logits)
    assert log_prob.shape == (5, 4, 1)
    torch.testing.assert_close(log_prob[..., 0], exact.log_prob(action))
    torch.testing.assert_close(entropy[..., 0], exact.entropy())


def test_impossible_actions_are_never_drawn_and_keep_gradients_finite() -> None:
    logits = torch.tensor([[0.0, -1e30]]).expand(1000, 2).clone().requires_grad_()
    action = categorical.draw(logits)
    assert action.eq(0).all()
    log_prob, entropy = categorical.evaluate(action, logits)
    (log_prob + entropy).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
