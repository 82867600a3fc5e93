"""Compare the shipped policies with their exported files: actions, time of a call, success.

Each policy is exported and run in closed loop in its environment, by ONNX Runtime. Both play the
episodes of one seed. Differences of actions are those of half their range; `rounding` is that of
the checkpoint from itself, in batches of other sizes. The time of a call is that of one
observation, from NumPy to NumPy, on one thread.

    python -m benchmarks.export episodes=500
"""

import fnmatch
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fixture import CPU, Count
from benchmarks.report import Figures, main, print_machine, print_table
from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.evaluation import Evaluation
from trainers.exporting.contract import read_contract
from trainers.exporting.session import open_session
from trainers.run import run
from trainers.runs.policy_files import pretrained_policies

_CALLS = 5_000


def call_times(folder: Path) -> tuple[float, float]:
    """Return median and 99th percentile of the time of a call in milliseconds."""
    contract = read_contract(folder)
    runs = open_session(folder, contract).runs
    generator = np.random.default_rng(0)
    given = {
        entry["name"]: generator.random((1, *entry["shape"])).astype(entry["dtype"])
        for entry in contract.observations
    }
    seconds = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        runs.run(["action"], given)
        seconds.append(time.perf_counter() - start)
    p50, p99 = np.quantile(seconds[_CALLS // 10 :], (0.5, 0.99))
    return 1000 * float(p50), 1000 * float(p99)


def score(result: Evaluation) -> str:
    """Return success with its interval, or the mean return."""
    if result.success is None or result.success_low is None or result.success_high is None:
        return f"return {result.mean_return:.2f}"
    return f"{result.success:.1%} ({result.success_low:.1%} to {result.success_high:.1%})"


def is_inside(result: Evaluation, checkpoint: Evaluation) -> bool | None:
    """Return whether a success rate is in the interval of another; None without success."""
    low, high = checkpoint.success_low, checkpoint.success_high
    if result.success is None or low is None or high is None:
        return None
    return low <= result.success <= high


def compare(
    *,
    policies: str = "*",
    episodes: Count = 500,
    threads: Count = 1,
) -> Figures:
    """Export shipped policies, compare actions and success, and print a table.

    Args:
        policies: names as in fanuc/sac, or a pattern of them as in marinenav/* (*).
        episodes: episodes of each evaluation, at least 1 (500).
        threads: threads of torch and ONNX Runtime, at least 1 (1).

    Raises:
        ConfigurationError: no policy has such a name, or a package is not installed.
    """
    names = fnmatch.filter(pretrained_policies(), policies)
    if not names:
        raise ConfigurationError(
            f"policies={policies}: choose of {', '.join(pretrained_policies())}"
        )
    torch.set_num_threads(threads)
    print_machine()
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            common = (
                *(f"runs={folder}", f"device={CPU}", f"threads={threads}"),
                f"evaluation.episodes={episodes}",
            )
            exported = run("mode=export", f"checkpoint=pretrained:{name}", *common)
            contract = read_contract(exported.folder)
            p50, p99 = call_times(exported.folder)
            found = run("mode=eval", f"policy={exported.folder}", *common).evaluation
        agreement, before = contract.agreement, exported.evaluation
        onnx, pt2 = agreement.differences.values()
        inside = is_inside(found, before)
        rows.append(
            [
                *(name, f"{agreement.observations:,}", f"{onnx:.1e}", f"{pt2:.1e}"),
                f"{agreement.rounding:.1e}",
                *(f"{p50:.3f}", f"{p99:.3f}", score(before), score(found)),
                {True: "yes", False: "no", None: "-"}[inside],
            ]
        )
        figures[name] = {
            "observations": agreement.observations,
            "difference_onnx": onnx,
            "difference_pt2": pt2,
            "rounding": agreement.rounding,
            "p50_ms": round(p50, 4),
            "p99_ms": round(p99, 4),
            "checkpoint": before.score,
            "exported": found.score,
            "inside": inside,
            "episodes": episodes,
        }
    header = ["policy", "observations", "ONNX", "pt2", "rounding", "p50, ms", "p99, ms"]
    print_table([*header, "checkpoint", "exported", "inside"], rows)
    return figures


if __name__ == "__main__":
    main(compare)
