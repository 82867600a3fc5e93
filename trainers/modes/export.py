"""Mode export: write a policy as ONNX and torch.export files, with its measured result."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.files import numbered
from torchrl_gpu.devices.seeding import stream_seed
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from trainers.command_line.settings import Settings
from trainers.exporting.page import PAGE
from trainers.exporting.writing import export_policy
from trainers.modes.building import evaluator_of, policy_of, prepared_folder
from trainers.modes.outcome import RunOutcome, command_of
from trainers.runs.policy_files import TrainedPolicy, build_agent, load_checkpoint, restore_policy
from trainers.training.progress import ProgressDisplay

_CPU: Final = torch.device("cpu")

# Observations by which the exported files are checked, and how many of one step.
_OBSERVATIONS: Final = 1_000
_OF_A_STEP: Final = 20


def export(settings: Settings) -> RunOutcome:
    """Evaluate a checkpoint, and write its policy as files that do not need this library."""
    path = settings.checkpoint
    assert path is not None
    exports = prepared_folder(settings, "exports")
    state = settings.state or load_checkpoint(path)
    seed = stream_seed(settings.general.seed, "evaluation")
    with closing(evaluator_of(settings)) as evaluator:
        env = as_environment(evaluator.env)
        acting = policy_of(settings, env)
        with (
            ProgressDisplay(evaluator.episodes, unit="episodes") as display,
            _recorded(acting) as seen,
        ):
            result = evaluator.evaluate(acting, settings.device, seed=seed, progress=display.update)
        agent, frames = state["agent_name"], state.get("frames", 0)
        about = f"{agent}, trained for {frames:,} frames: {result}"
        # Another policy file may have the same name.
        folder = next(each for each in numbered(exports / path.stem) if not each.exists())
        contract = export_policy(
            _on_cpu(settings, env),
            folder,
            [torch.cat(rows)[:_OBSERVATIONS] for rows in seen.values()],
            agent=agent,
            frames=frames,
            evaluation=result,
            config=settings.config,
            elements=env.capabilities.elements,
            page=partial(env.page, about=about) if env.capabilities.has_page else None,
        )
    lines = [f"Exported {path}", f"  result       {result}"]
    lines.append(f"  differences  {contract.agreement}")
    lines += [f"  folder       {folder}"]
    lines.append(f"  run it       {command_of(settings, 'mode=eval', f'policy={folder}')}")
    if (folder / PAGE).exists():
        lines.append(f"  browser      {(folder / PAGE).resolve().as_uri()}")
    return RunOutcome(folder, result, "\n".join(lines))


def _on_cpu(settings: Settings, env: Environment) -> TrainedPolicy:
    """Return the policy of the checkpoint on the CPU, in float32."""
    specs = (
        observation_spec(env, settings.general.observation_keys).to(_CPU),
        action_spec(env).to(_CPU),
    )
    assert settings.checkpoint is not None
    agent = build_agent(settings.agent, *specs, _CPU, settings.checkpoint)
    restore_policy(settings.checkpoint, agent, settings.state)
    return TrainedPolicy(agent, PolicyInterface.of(*specs, env.capabilities))


@contextmanager
def _recorded(policy: TensorDictModuleBase) -> Iterator[dict[Any, list[Tensor]]]:
    """Keep a few observations `[N, ...]` on the host of each step that a policy acts in, by key."""
    seen: dict[Any, list[Tensor]] = {key: [] for key in policy.in_keys}

    def record(_: object, given: tuple[TensorDictBase, ...]) -> None:
        if sum(map(len, next(iter(seen.values())))) < _OBSERVATIONS:
            rows = given[0].reshape(-1)[:_OF_A_STEP]
            for key, kept in seen.items():
                kept.append(rows.get(key).cpu().clone())

    hook = policy.register_forward_pre_hook(record)
    try:
        yield seen
    finally:
        hook.remove()
