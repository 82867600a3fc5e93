"""Compare the speed of the FANUC arms in Genesis and in PyBullet, for several numbers of arms.

Both sides step the environment `fanuc` with the same random actions, in turns, in one process.
PyBullet simulates on the CPU with one worker process per core; Genesis simulates on the device. A
client of PyBullet has eight arms and takes 35 MB, so that PyBullet gets at most 512; its arm-steps
per second hardly depend on the number of arms.

    python -m benchmarks.fanuc_simulators
"""

import psutil
from pydantic import Json

from benchmarks.fixture import Count, Sizes, random_steps
from benchmarks.measuring import take_turns, timed
from benchmarks.report import Figures, main, print_machine, print_table
from envs.fanuc import FanucEnv
from envs.genesis import start_genesis
from torchrl_gpu.devices.device import describe_device, resolve_device

MAX_BULLET_ARMS = 512


def compare(
    *,
    sizes: Json[Sizes] = (1, 64, 1024, 4096),
    device: str = "auto",
    steps: Count = 20,
    rounds: Count = 3,
) -> Figures:
    """Measure both simulators in turns and print the medians.

    Args:
        sizes: numbers of arms, each at least 1 ([1,64,1024,4096]).
        device: compute device of Genesis: auto, cpu, cuda, ... (auto).
        steps: number of environment steps of one measurement, at least 1 (20).
        rounds: number of measurements of each side after a first one that warms up, at least 1 (3).

    Raises:
        ConfigurationError: Genesis is not installed.
    """
    resolved = resolve_device(device)
    backend = start_genesis(resolved).backend.name
    print_machine()
    print(f"Genesis on its backend {backend} of {describe_device(resolved)}, PyBullet on the CPU\n")
    rows: list[list[str]] = []
    figures: dict[str, dict[str, float]] = {"pybullet": {}, "genesis": {}}
    for size in sizes:
        envs = {
            "pybullet": FanucEnv(num_envs=min(size, MAX_BULLET_ARMS)),
            "genesis": FanucEnv(num_envs=size, simulator="genesis", device=resolved),
        }
        samples = take_turns(
            {
                name: timed(random_steps(env), steps, per_unit=env.num_envs, device=env.device)
                for name, env in envs.items()
            },
            rounds,
        )
        memory = psutil.Process().memory_info().rss / 2**30
        for env in envs.values():
            env.close()
        rates = {name: samples.rate(name) for name in envs}
        for simulator, rate in rates.items():
            figures[simulator][str(size)] = round(rate, 1)
        ratio = rates["genesis"] / rates["pybullet"]
        speeds = [f"{rate:,.0f}" for rate in rates.values()]
        arms = [f"{size:,}", f"{min(size, MAX_BULLET_ARMS):,}"]
        rows.append([*arms, *speeds, f"{ratio:.2f}", f"{memory:.1f}"])
    header = ["arms in Genesis", "in PyBullet", "PyBullet, arm-steps/s", "Genesis, arm-steps/s"]
    print_table([*header, "ratio", "memory, GiB"], rows)
    return {"arm_steps_per_second": figures, "backend": backend}


if __name__ == "__main__":
    main(compare)
