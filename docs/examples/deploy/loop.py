"""Run an exported policy at its rate, by NumPy and ONNX Runtime alone.

    python docs/examples/deploy/loop.py runs/.../exports/NAME

Replace `read_sensors` and `send` by those of your robot; contract.json says what each number is.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

parser = argparse.ArgumentParser(description="Run an exported policy at its rate.")
parser.add_argument("folder", type=Path, help="folder of the export, with contract.json")
parser.add_argument("steps", type=int, nargs="?", default=200, help="number of steps, 200")
arguments = parser.parse_args()
folder, steps = arguments.folder, arguments.steps
if steps < 1:
    parser.error("steps has to be at least 1")
for name in ("contract.json", "policy.onnx"):
    if not (folder / name).is_file():
        parser.error(f"{folder} has no {name}; `mode=export` writes it")
contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(folder / "policy.onnx", options)
period = contract["step_seconds"] or 0.02  # seconds


def read_sensors() -> dict[str, np.ndarray]:
    """Return the observations by name, each as a batch of one."""
    return {o["name"]: np.zeros((1, *o["shape"]), o["dtype"]) for o in contract["observations"]}


def send(action: np.ndarray) -> None:
    """Pass an action to the robot."""


latencies, due = [], time.perf_counter()
for step in range(steps):
    time.sleep(max(0.0, due - time.perf_counter()))
    late = max(0.0, time.perf_counter() - due)
    due += period * (1 + late // period)  # steps that were missed are left out
    observation = read_sensors()
    for name, value in observation.items():
        if not np.isfinite(value).all():
            sys.exit(f"step {step}: observation {name} holds NaN or infinity")
    start = time.perf_counter()
    (actions,) = session.run(["action"], observation)
    latencies.append(1000 * (time.perf_counter() - start))
    send(actions[0])
p50, p99, most = np.quantile(latencies, (0.5, 0.99, 1))
print(f"latency, ms: p50 {p50:.3f}, p99 {p99:.3f}, most {most:.3f}")
