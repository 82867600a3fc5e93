"""Turn a model of Stable-Baselines3 into a policy file: `torchrl-gpu import-sb3`. See `--help`."""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.files import new_file
from torchrl_gpu.checkpoints.state_file import save_state
from torchrl_gpu.commands import asks_for_help, check_once, command_line, show
from torchrl_gpu.environments.specs import action_kind, action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.checking import check
from trainers.command_line.composition import compose, read_settings
from trainers.command_line.settings import Settings
from trainers.components.pairing import pair
from trainers.runs.stable_baselines import Model, read_model

USAGE = """\
Turn a model of Stable-Baselines3 (SAC, DDPG, DQN or PPO) into a policy file of this library.

  torchrl-gpu import-sb3 model.zip
  torchrl-gpu import-sb3 model.zip env=gym env.name=Pendulum-v1     the file knows its environment

Nothing in the model is unpickled, so that a model of a stranger runs no code. The policy plays the
same actions as `model.predict(observation, deterministic=True)`.

  output    path of the policy file, *.safetensors, which must not exist (default: a new file named
            after the model, in the working directory)
  env...    environment of the policy and its settings, which the file keeps for mode=eval and
            mode=demo\
"""

# Environment in the command of the report, by kind of action; a model does not record its own.
_EXAMPLES = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}


def main(arguments: Sequence[str]) -> int:
    """Print the report of `import_model`, or the help; return the exit code."""
    show(USAGE if asks_for_help(arguments) else import_model(arguments))
    return 0


def import_model(arguments: Sequence[str]) -> str:
    """Write the policy file, and return a report."""
    files = [each for each in arguments if "=" not in each or Path(each).is_file()]
    check_once(argument for argument in arguments if argument not in files)
    outputs = [a.removeprefix("output=") for a in arguments if a.startswith("output=")]
    typed = [a for a in arguments if a not in files and not a.startswith("output=")]
    if len(files) != 1:
        raise ConfigurationError("name one model: torchrl-gpu import-sb3 model.zip")
    if outputs and not outputs[-1].endswith(".safetensors"):
        raise ConfigurationError(f"output={outputs[-1]}: name a .safetensors file")
    if outputs and Path(outputs[-1]).exists():
        raise ConfigurationError(f"output={outputs[-1]}: it exists; choose another file")
    foreign = [a for a in typed if not a.startswith(("env=", "env."))]
    if foreign:
        raise ConfigurationError(f"{foreign[0]}: choose output=FILE or settings of env")
    given = read_settings(typed)
    model = read_model(Path(files[0]))
    config = {"choices": {"agent": model.agent_name}}
    if given:
        given = {"agent": model.agent_name, **given}
        settings = check(given, compose(given))
        _check_fits(files[0], model, settings)
        config = settings.config
    state = {**model.state, "config": {**config, "agent": model.component.config({})}}
    new = new_file(Path(Path(files[0]).stem + ".safetensors"))
    with nullcontext(Path(outputs[-1])) if outputs else new as output:
        save_state(output, state)
    return _report(files[0], model, output, needs_env=not typed)


def _check_fits(file: str, model: Model, settings: Settings) -> None:
    """Refuse an environment of other observations or actions."""
    component = settings.env.replaced(num_envs=1)
    with closing(component.build(mode="eval", device=settings.device)) as env:
        paired = pair(env, settings.agent.target)
        own = PolicyInterface(observation_spec(paired), action_spec(paired))
    if (found := _described(model.interface)) != (expected := _described(own)):
        raise ConfigurationError(
            f"{file}: it does not fit {settings.env_name}: it reads and returns {found}, the "
            f"environment has {expected}"
        )


def _described(interface: PolicyInterface) -> str:
    """Return the observations and the action of a policy in words."""
    shapes = [f"{name} {shape}" for name, shape in interface.shapes().items()]
    choices = getattr(interface.action_spec, "n", None)
    return ", ".join(shapes) + (f" of {choices} choices" if choices else "")


def _report(file: str, model: Model, output: Path, *, needs_env: bool) -> str:
    shapes = [f"{name} {shape}" for name, shape in model.interface.shapes().items()]
    evaluate = ["python", "-m", "trainers.run", "mode=eval", f"checkpoint={output}"]
    example = ["env=gym", f"env.name={_EXAMPLES[action_kind(model.interface.action_spec)]}"]
    evaluate += example if needs_env else []
    line = f"  environment  not in the model; put it in place of {' '.join(example)}\n"
    layers = model.component.settings
    return (
        f"{file}: {model.algorithm} of Stable-Baselines3 {model.version}, "
        f"{model.state['frames']:,} frames\n"
        f"  reads        {', '.join(shapes[:-1])}\n"
        f"  returns      {shapes[-1]}\n"
        f"  network      hidden layers {list(layers['hidden_sizes'])}, {layers['activation']}\n"
        f"  policy       {output}\n"
        f"{line if needs_env else ''}"
        f"  evaluate it  {command_line(evaluate)}"
    )
