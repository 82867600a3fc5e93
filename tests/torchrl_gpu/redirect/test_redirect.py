import copy
import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from torchrl_gpu import ConfigurationError, redirect_cuda
from torchrl_gpu.redirect.mode import CudaRedirection
from torchrl_gpu.redirect.patches import patches

if torch.cuda.is_available():
    pytest.skip("cuda is here: nothing is redirected", allow_module_level=True)

# Made before any block, as constants of an imported module are.
CUDA = torch.device("cuda", 1)


def with_device_context() -> Tensor:
    with torch.device("cuda"):
        return torch.zeros(2)


def with_default_device() -> Tensor:
    torch.set_default_device("cuda")
    try:
        return torch.zeros(2, device=torch.get_default_device()) + torch.zeros(2)
    finally:
        torch.set_default_device(None)


TENSORS: dict[str, Callable[[], Tensor]] = {
    "factory": lambda: torch.zeros(2, device="cuda"),
    "factory with an index": lambda: torch.zeros(2, device=1),
    "factory with a device": lambda: torch.randn(2, device=CUDA),
    "tensor": lambda: torch.tensor([1.0], device=torch.device("cuda:0")),
    "as_tensor": lambda: torch.as_tensor(np.ones(2), device="cuda"),
    "as_tensor by keyword": lambda: torch.as_tensor(data=np.ones(2), device="cuda"),
    "asarray by keyword": lambda: torch.asarray(obj=np.ones(2), device="cuda"),
    "asarray": lambda: torch.asarray(np.ones(2), device="cuda"),
    "like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "new": lambda: torch.ones(2).new_full((2,), 1.0, device="cuda"),
    "to": lambda: torch.zeros(2).to("cuda:0", torch.float16, non_blocking=True),
    "to by keyword": lambda: torch.zeros(2).to(device=CUDA, dtype=torch.int32),
    "to an index": lambda: torch.zeros(2).to(0),
    "cuda": lambda: torch.zeros(2).cuda(),
    "cuda with an index": lambda: torch.zeros(2).cuda(0, non_blocking=True),
    "pinned": lambda: torch.zeros(2).pin_memory().cuda(non_blocking=True),
    "pinned factory": lambda: torch.zeros(2, pin_memory=True).cuda(),
    "module": lambda: nn.Linear(2, 2, device="cuda").weight.detach(),
    "module.to": lambda: nn.Linear(2, 2).to("cuda").weight.detach(),
    "module.cuda": lambda: nn.Linear(2, 2).cuda()(torch.zeros(1, 2, device="cuda")).detach(),
    "device of another build": lambda: torch.zeros(2, device=torch.device(type="cuda", index=0)),
    "device context": with_device_context,
    "default device": with_default_device,
    "TensorDict": lambda: TensorDict({"a": torch.zeros(2)}, device="cuda")["a"],
    "TensorDict.cuda": lambda: TensorDict({"a": torch.zeros(2)}).cuda()["a"],
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_a_tensor_for_cuda_lies_on_the_target(
    make: Callable[[], Tensor], target: torch.device
) -> None:
    with redirect_cuda(target):
        tensor = make()
        assert tensor.is_cuda
    assert tensor.device == target


def test_functions_of_cuda_answer_for_the_target(target: torch.device) -> None:
    with redirect_cuda(target) as device:
        assert device == target
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_name(0) == torch.cuda.get_device_properties("cuda").name
        assert torch.cuda.memory_allocated() >= 0
        free, total = torch.cuda.mem_get_info()
        assert 0 <= free <= total
        with torch.cuda.device(device=0) as nothing:
            assert nothing is None
            torch.cuda.set_device("cuda:0")
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        assert torch.cuda.device(0).idx == 0
        with torch.cuda.device_of(obj=torch.zeros(1)):
            assert {torch.cuda.get_device_properties(0): "a key"}
        torch.cuda.get_arch_list().append("sm_90")
        assert torch.cuda.get_arch_list() == []
        assert torch.cuda.get_device_capability() == (0, 0)
        assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved(device) >= 0
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())


@pytest.mark.parametrize(
    ("function", "result", "peak"),
    [
        ("memory_stats", {"allocated_bytes.all.current": 5, "allocated_bytes.all.peak": 7}, 7),
        ("current_allocated_memory", 5, 0),  # the only one of mps
    ],
)
def test_memory_is_that_of_the_target(
    function: str, result: Any, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, function, lambda: result, raising=False)
    with redirect_cuda("cpu"):
        assert torch.cuda.memory_allocated() == 5
        assert torch.cuda.max_memory_allocated() == peak


def test_a_seed_of_cuda_repeats_its_random_numbers(target: torch.device) -> None:
    with redirect_cuda(target):
        torch.manual_seed(3)
        torch.cuda.manual_seed_all(3)
        state = torch.cuda.get_rng_state()
        first = torch.rand(3, device="cuda")
        torch.cuda.set_rng_state(state)
        again = torch.rand(3, device="cuda")
    assert torch.equal(first.cpu(), again.cpu())


@pytest.mark.parametrize("chosen", [{}, {"devices": [0]}, {"device_type": "cuda"}])
def test_forked_random_numbers_of_cuda_are_repeated(
    chosen: dict[str, Any], target: torch.device
) -> None:
    with redirect_cuda(target):
        with torch.random.fork_rng(**chosen):
            first = torch.rand(3, device="cuda")
        again = torch.rand(3, device="cuda")
        others: list[Any] = [([],), (None, False), ([0], False, "caller")]
        for arguments in others:
            with torch.random.fork_rng(*arguments):
                torch.rand(3, device="cuda")
        with torch.random.fork_rng([], device_type="cpu"):
            torch.rand(3, device="cuda")
    assert torch.equal(first.cpu(), again.cpu())


def test_streams_and_events_keep_the_order_of_the_calls(target: torch.device) -> None:
    with redirect_cuda(target):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.Stream()
        start.record()
        with torch.cuda.stream(stream):
            x = torch.ones(2).cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.current_stream().wait_event(event=start)
        x.record_stream(torch.cuda.current_stream())
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 0.0
        assert x.sum().item() == 2.0


def test_a_generator_of_cuda_draws_on_the_target() -> None:
    with redirect_cuda("cpu"):
        generator = torch.Generator("cuda").manual_seed(1)
        assert isinstance(generator, torch.Generator)
        torch.rand(2, device="cuda", generator=generator)
    assert isinstance(generator, torch.Generator)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:In npu autocast")
@pytest.mark.parametrize("old", [False, True])
def test_mixed_precision_trains(old: bool, target: torch.device) -> None:
    with redirect_cuda(target):
        net = nn.Linear(2, 1).cuda()
        before = net.weight.detach().clone()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.cuda.amp.GradScaler(16.0) if old else torch.amp.GradScaler("cuda", 16.0)
        with torch.cuda.amp.autocast() if old else torch.autocast("cuda"):
            loss = net(torch.ones(4, 2, device="cuda")).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.allclose(net.weight.detach(), before - 0.4)


def test_autocast_computes_in_low_precision() -> None:
    with redirect_cuda("cpu"), torch.autocast("cuda", torch.bfloat16):
        assert nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).dtype == torch.bfloat16


@pytest.mark.parametrize("map_location", ["cuda", CUDA, {"cpu": "cuda:1"}])
def test_a_file_loads_onto_the_target(map_location: Any, target: torch.device) -> None:
    file = io.BytesIO()
    with redirect_cuda(target):
        net = nn.Linear(2, 2).cuda()
        torch.save(net.state_dict(), file)
        file.seek(0)
        state = torch.load(file, map_location=map_location, weights_only=True)
        assert torch.equal(state["bias"].cuda(), net.bias)
        net.load_state_dict(state)
    if not isinstance(map_location, dict):
        assert state["bias"].device == target


def test_files_are_saved_and_loaded_by_keywords(target: torch.device) -> None:
    file = io.BytesIO()
    with redirect_cuda(target):
        torch.save(obj={"x": torch.ones(2).cuda()}, f=file)
        file.seek(0)
        loaded = torch.load(f=file, map_location="cuda")
    assert loaded["x"].device == target


def test_copies_and_pickles_stay_on_the_target(target: torch.device) -> None:
    with redirect_cuda(target):
        x = torch.ones(2, device="cuda")
        for copied in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            assert copied.device == target


def test_code_that_runs_in_the_backward_pass_is_redirected(target: torch.device) -> None:
    def forward(x: Tensor) -> Tensor:
        return x * torch.full((2,), 3.0, device="cuda")

    with redirect_cuda(target):
        x = torch.ones(2, device="cuda", requires_grad=True)
        checkpoint(forward, x, use_reentrant=False).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3.0, 3.0]


def test_threads_are_redirected(target: torch.device) -> None:
    release = threading.Event()
    errors: list[str] = []

    def outlive() -> None:
        release.wait(10)
        try:
            torch.zeros(1).cuda()
        except (AssertionError, RuntimeError) as error:
            errors.append(str(error))

    with redirect_cuda(target):
        with ThreadPoolExecutor(2) as pool:
            devices = list(pool.map(lambda _: torch.zeros(1).cuda().device, range(4)))
        late = threading.Thread(target=outlive)
        late.start()
    release.set()
    late.join()
    assert devices == [target] * 4
    assert len(errors) == 1  # the thread asks for cuda after the end of the block


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_runs(workers: int) -> None:
    def collate(rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).to("cuda")  # in the worker

    # Importing torchrl makes `spawn` the default, whose workers begin anew.
    context = "fork" if workers else None
    with redirect_cuda("cpu"):
        loader: DataLoader[Tensor] = DataLoader(
            list(torch.arange(6.0)),  # type: ignore[arg-type]
            batch_size=2,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=True,
            multiprocessing_context=context,
        )
        sums = [batch.cuda(non_blocking=True).sum().item() for batch in loader]
    assert sums == [1.0, 5.0, 9.0]


def test_a_copy_from_numpy_is_a_copy_on_the_cpu_too() -> None:
    buffer = np.zeros(2)
    with redirect_cuda("cpu"):
        copies = [
            torch.from_numpy(buffer).to("cuda"),
            torch.from_numpy(buffer).cuda(),
            torch.as_tensor(buffer, device="cuda"),
            torch.asarray(buffer, device="cuda"),
        ]
        shared = torch.from_numpy(buffer)
        buffer += 1.0
        assert all(copy.sum() == 0.0 for copy in copies)
        assert shared.sum() == 2.0


def test_a_copy_to_the_host_is_a_copy_on_the_cpu_too() -> None:
    with redirect_cuda("cpu"):
        net = nn.Linear(1, 1).cuda()
        snapshots = [net.weight.detach().cpu(), net.weight.detach().to("cpu")]
        with torch.no_grad():
            net.weight.add_(1.0)
        assert all((net.weight - snapshot).item() == pytest.approx(1.0) for snapshot in snapshots)
        assert net.to("cuda").weight is net.weight


def test_nothing_remains_changed(target: torch.device) -> None:
    table = patches(target, CudaRedirection(target))
    owners = {id(owner): owner for owner, _, _ in table}.values()
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(ZeroDivisionError), redirect_cuda(target):
        torch.zeros(2, device=torch.device("cuda", 1 // 0))
    assert [dict(vars(owner)) for owner in owners] == before
    assert not torch.cuda.is_available()
    assert torch._C._len_torch_function_stack() == 0
    assert torch.device("cuda").type == "cuda"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2).cuda()


def test_blocks_cannot_be_nested() -> None:
    with (
        redirect_cuda("cpu"),
        pytest.raises(RuntimeError, match="blocks cannot be nested"),
        redirect_cuda("cpu"),
    ):
        pass
    assert not torch.cuda.is_available()


def test_cuda_itself_is_left_alone() -> None:
    before = dict(vars(torch.cuda))
    with redirect_cuda(CUDA) as device:
        assert device == CUDA
        assert dict(vars(torch.cuda)) == before


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="device=abacus is not one of"):
        redirect_cuda("abacus").__enter__()


def test_compiled_code_runs_after_a_block() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    compiled: Any = torch.compile(double, backend="eager")
    with redirect_cuda("cpu"):
        assert compiled(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
