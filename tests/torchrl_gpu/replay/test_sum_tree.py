from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.stand_in import count_host_reads
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.sum_tree import SumTree

CPU = torch.device("cpu")
SIZES = [1, 5, 32, 33, 1000, 40_000]


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


@pytest.mark.parametrize("size", SIZES)
def test_find_equals_a_search_in_the_cumulative_sum(size: int) -> None:
    priorities = some_priorities(size)
    tree = filled(priorities)
    ends = np.cumsum(priorities.numpy(), dtype=np.float64)
    assert tree.total.item() == ends[-1]
    # The boundaries between leaves are among the masses.
    masses = np.concatenate([np.linspace(0, ends[-1] - 1, 777), ends[:-1], [0.0]]).astype(int)
    found = tree.find(torch.as_tensor(masses, dtype=torch.float32))
    assert np.array_equal(found.numpy(), np.searchsorted(ends, masses, side="right"))


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
    assert torch.equal(tree.priorities(torch.arange(size)), tree.leaves)

    rebuilt = SumTree(size, CPU)
    rebuilt.leaves.copy_(tree.leaves)
    rebuilt.rebuild()
    masses = torch.rand(1000) * tree.total
    assert torch.equal(rebuilt.total, tree.total)
    assert torch.equal(rebuilt.find(masses), tree.find(masses))


def test_a_repeated_leaf_gets_the_largest_of_its_priorities() -> None:
    tree = filled(torch.tensor([1.0, 9.0, 1.0]))
    tree.update(torch.tensor([1, 2, 1, 1]), torch.tensor([0.5, 4.0, 3.0, 2.0]))
    assert tree.leaves.tolist() == [1.0, 3.0, 4.0]
    assert tree.total.item() == 8.0


def test_leaves_are_found_in_proportion_to_their_priorities() -> None:
    torch.manual_seed(0)
    priorities = some_priorities(200)
    tree = filled(priorities)
    draws = 200_000
    found = tree.find(torch.rand(draws) * tree.total)
    expected = draws * priorities / priorities.sum()
    deviation = (torch.bincount(found, minlength=200) - expected).abs()
    assert (deviation <= 5 * expected.sqrt()).all()


@pytest.mark.parametrize("size", [3, 100, 5000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_an_empty_leaf_is_never_found_even_beyond_the_total(size: int, scale: float) -> None:
    torch.manual_seed(0)
    for _ in range(20):
        priorities = scale * torch.rand(size) * (torch.rand(size) < 0.3)
        priorities[size // 2] = scale
        tree = filled(priorities)
        masses = torch.cat([torch.rand(500), torch.tensor([0.0, 1.0, 1.001])]) * tree.total
        assert (tree.priorities(tree.find(masses)) > 0.0).all()


def test_the_only_nonempty_leaf_is_always_found() -> None:
    tree = SumTree(5000, CPU)
    tree.update(torch.tensor([4321]), torch.tensor([0.1]))
    assert tree.find(torch.linspace(0.0, 1.0, 100)).eq(4321).all()


def test_tiny_priorities_beside_large_ones_in_a_million_leaves() -> None:
    torch.manual_seed(0)
    priorities = torch.full((1_000_000,), 1e-8)
    large = torch.tensor([0, 500_000, 999_999])
    priorities[large] = torch.tensor([1e-2, 2e-2, 1e-2])
    tree = filled(priorities)
    torch.testing.assert_close(tree.total.item(), 0.05, rtol=1e-5, atol=0.0)
    draws = 20_000
    found = tree.find(torch.rand(draws) * tree.total)
    for leaf, share in zip(large.tolist(), [0.2, 0.4, 0.2], strict=True):
        assert abs(found.eq(leaf).float().mean().item() - share) < 0.02
    tiny = found[~torch.isin(found, large)]
    assert abs(tiny.float().mean().item() / 500_000 - 1.0) < 0.05


def test_update_and_find_need_no_host_reads(accelerator: torch.device) -> None:
    tree = SumTree(40_000, accelerator)
    index = torch.randint(40_000, (64,), device=accelerator)
    priority = torch.rand(64, device=accelerator)
    with count_host_reads() as counter:
        tree.update(index, priority)
        tree.priorities(tree.find(torch.rand(64, device=accelerator) * tree.total))
        tree.rebuild()
    assert counter.host_reads == counter.copies == 0, counter.report()


def test_a_tree_without_leaves_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        SumTree(0, CPU)
