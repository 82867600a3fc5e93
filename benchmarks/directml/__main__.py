"""Count the operations that a DirectML device would copy to the CPU and back, for every agent.

No DirectML is needed: each agent takes its steps on the CPU, and every operation is looked up in
the list of kernels of torch-directml.

    python -m benchmarks.directml
"""

from typing import Any

import torch

from benchmarks.directml.steps import record_steps
from benchmarks.report import Figures, main, print_machine, print_table
from trainers.components.choices import learning_agents


def count() -> Figures:
    """Record one step of every agent and print its operations and its round trips to the CPU."""
    print_machine()
    print("torch-directml 0.2.5.dev240914 pins torch 2.4.1\n")
    rows: list[list[str]] = []
    named: list[str] = []
    figures: dict[str, Any] = {"torch": torch.__version__}
    for name, agent_class in learning_agents().items():
        for actions in sorted(agent_class.actions):
            row = [name, actions]
            for part, operations in record_steps(agent_class, actions)._asdict().items():
                native, round_trips = operations.native.total(), operations.round_trips.total()
                row += [f"{native}", f"{round_trips}"]
                figures[f"{name}_{actions}_{part}_native"] = native
                figures[f"{name}_{actions}_{part}_round_trips"] = dict(operations.round_trips)
                named += [
                    f"{name}, {actions}, {part}: {times} x {operation}"
                    for operation, times in sorted(operations.round_trips.items())
                ]
            rows.append(row)
    header = ["agent", "actions"]
    for part in ("act", "store", "update"):
        header += [part, "round trips"]
    print_table(header, rows)
    print("\nRound trips:", *(named or ["none"]), "", sep="\n")
    return figures


if __name__ == "__main__":
    main(count)
