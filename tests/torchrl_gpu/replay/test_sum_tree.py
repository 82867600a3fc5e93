import numpy as np
import pytest
import torch

from benchmarks.directml.steps import capabilities_of_directml
from tests.stand_in import count_host_reads
from torchrl_gpu.replay.sum_tree import SumTree

CPU = torch.device("cpu")
SIZES = [1, 5, 33, 2049, 100_000]


def filled(priorities: torch.Tensor) -> SumTree:
    tree = SumTree(len(priorities), CPU)
    tree.update(torch.arange(len(priorities)), priorities)
    return tree


def some_priorities(size: int, seed: int = 0) -> torch.Tensor:
    """Return small integers, so that sums are exact; a third of them 0, but not the first."""
    generator = torch.Generator().manual_seed(seed)
    priorities = torch.randint(1, 100, (size,), generator=generator).to(torch.float32)
    priorities[torch.rand(size, generator=generator) < 1 / 3] = 0.0
    priorities[0] = 7.0
    return priorities


def seeded_draw(tree: SumTree, count: int) -> torch.Tensor:
    torch.manual_seed(1)
    return tree.draw(count)


@pytest.mark.parametrize("size", SIZES)
def test_an_updated_tree_equals_a_rebuilt_one(size: int) -> None:
    torch.manual_seed(0)
    tree = SumTree(size, CPU)
    expected = np.zeros(size, dtype=np.float32)
    for _ in range(50):
        index, priority = torch.randint(size, (64,)), torch.rand(64) * 10 ** (8 * torch.rand(64))
        tree.update(index, priority)
        expected[index.numpy()] = 0.0
        np.maximum.at(expected, index.numpy(), priority.numpy())
    assert np.array_equal(tree.leaves.numpy(), expected)

    rebuilt = SumTree(size, CPU)
    rebuilt.leaves.copy_(tree.leaves)
    rebuilt.rebuild()
    assert torch.equal(seeded_draw(rebuilt, 1000), seeded_draw(tree, 1000))


@pytest.mark.parametrize("size", SIZES)
def test_leaves_are_drawn_in_proportion_to_their_priorities(size: int) -> None:
    torch.manual_seed(0)
    # Few leaves, anywhere in the tree, so that each is drawn often.
    priorities = some_priorities(size) * (torch.rand(size) < 200 / size)
    priorities[-1] = 7.0
    draws = 200_000
    drawn = filled(priorities).draw(draws)
    expected = draws * priorities / priorities.sum()
    deviation = (torch.bincount(drawn, minlength=size) - expected).abs()
    assert (deviation <= 5 * expected.sqrt()).all()


def test_every_draw_is_from_a_stratum_of_its_own() -> None:
    torch.manual_seed(0)
    tree = filled(torch.ones(1000))
    for _ in range(3):
        assert torch.equal(tree.draw(500) // 2, torch.arange(500))
        assert torch.equal(tree.draw(100) // 10, torch.arange(100))


@pytest.mark.parametrize("size", [3, 100, 5000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_an_empty_leaf_is_never_drawn(size: int, scale: float) -> None:
    torch.manual_seed(0)
    for _ in range(20):
        priorities = scale * torch.rand(size) * (torch.rand(size) < 0.3)
        priorities[size // 2] = scale
        tree = filled(priorities)
        assert (tree.leaves[tree.draw(500)] > 0.0).all()


@pytest.mark.parametrize("extreme", [0.0, 1.0 - 2.0**-24])
@pytest.mark.parametrize("size", [1000, 100_000])
def test_extreme_random_numbers_draw_nonempty_leaves(
    extreme: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = some_priorities(size) * 0.1
    priorities[:40], priorities[-40:] = 0.0, 0.0
    tree = filled(priorities)
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda drawn: drawn.fill_(extreme))
    for count in (1, 256, 777):
        assert (tree.leaves[tree.draw(count)] > 0.0).all()


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_without_priorities_draws_one_of_its_leaves(size: int) -> None:
    assert 0 <= SumTree(size, CPU).draw(100).max() < size


def test_tiny_priorities_beside_large_ones_in_a_million_leaves() -> None:
    torch.manual_seed(0)
    priorities = torch.full((1_000_000,), 1e-8)
    large = torch.tensor([0, 500_000, 999_999])
    priorities[large] = torch.tensor([1e-2, 2e-2, 1e-2])
    drawn = filled(priorities).draw(20_000)
    for leaf, share in zip(large.tolist(), [0.2, 0.4, 0.2], strict=True):
        assert abs(drawn.eq(leaf).float().mean().item() - share) < 0.02
    tiny = drawn[~torch.isin(drawn, large)]
    assert abs(tiny.float().mean().item() / 500_000 - 1.0) < 0.05


@pytest.mark.parametrize("size", SIZES)
def test_a_device_without_searchsorted_draws_the_same(size: int) -> None:
    usual = filled(some_priorities(size))
    with capabilities_of_directml():
        plain = filled(some_priorities(size))
    assert torch.equal(seeded_draw(plain, 1000), seeded_draw(usual, 1000))


def test_update_and_draw_need_no_host_reads(accelerator: torch.device) -> None:
    tree = SumTree(40_000, accelerator)
    index = torch.randint(40_000, (64,), device=accelerator)
    priority = torch.rand(64, device=accelerator)
    with count_host_reads() as counter:
        tree.update(index, priority)
        tree.leaves.index_select(0, tree.draw(64))
        tree.rebuild()
    assert counter.host_reads == counter.copies == 0, counter.report()
