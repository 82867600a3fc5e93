"""Mode demo: film a policy, or show it live in the browser, also beside a training."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from tensordict.nn import TensorDictModuleBase

from agents.base import Agent
from torchrl_gpu.devices.seeding import seed_everything, stream_seed
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.settings import Settings
from trainers.evaluation.film import film
from trainers.modes.building import agent_of, build_env, policy_of, prepared_folder, title_of
from trainers.modes.outcome import RunOutcome
from trainers.runs.folders import run_of
from trainers.runs.loggers import log_film
from trainers.runs.policy_files import load_checkpoint, restore_policy
from trainers.viewing.followed_run import (
    BEST,
    LearningCurves,
    WatchedCheckpoints,
    name_of_checkpoint,
)
from trainers.viewing.page import Page
from trainers.viewing.player import Player
from trainers.viewing.scene import DrawnScene
from trainers.viewing.viewer import Viewer

_FRAME_SECONDS: Final = 1 / 30


def show_policy(settings: Settings) -> RunOutcome:
    """Film a policy, which an environment may also show live if there is a display.

    With `viewer=web` show it in the browser until a signal ends the program.
    """
    if settings.general.viewer == "web":
        view(settings)
    folder = prepared_folder(settings, "videos")
    with closing(build_env(settings, "demo", settings.demo["num_envs"])) as env:
        policy = policy_of(settings, env)
        seed = stream_seed(settings.general.seed, "demo")
        made = film(env, policy, settings.device, folder, **settings.demo, seed=seed)
    is_gif, loggers = made.path.suffix == ".gif", settings.trainer.settings["loggers"]
    checkpoint = settings.checkpoint if settings.contract is None else None  # no exported folder
    if checkpoint is not None and is_gif and "tensorboard" in loggers:
        state = settings.state or load_checkpoint(checkpoint)
        log_film(made.path, state.get("frames", 0))
    report = f"Filmed {title_of(settings)}\n  {made}\n  {made.path}"
    return RunOutcome(folder, made.evaluation, report, film=made.path)


def view(settings: Settings) -> NoReturn:
    """Show a policy in the browser until a signal ends the program, and follow its run."""
    checkpoint, given = settings.checkpoint, settings.general.checkpoint
    run = None if checkpoint is None or settings.contract is not None else run_of(checkpoint)
    chosen = str(given or settings.general.policy or title_of(settings))
    if run is not None and checkpoint is not None and given is not None:
        chosen = BEST if given.is_dir() else name_of_checkpoint(checkpoint)
    show(settings, run, chosen, partial(print, flush=True), lambda: None, _FRAME_SECONDS)


def show(
    settings: Settings,
    run: Path | None,
    chosen: str,
    tell: Callable[[str], object],
    begin: Callable[[], object],
    frame_seconds: float,
) -> NoReturn:
    """Serve the page, and play in it.

    Args:
        settings: settings of the call.
        run: folder of the run to follow; None for a policy that belongs to none.
        chosen: name of the policy to play first.
        tell: function that is called with a line of text, once there is a page.
        begin: function that is called before the first episode, once everything is built.
        frame_seconds: shortest time between two pictures.
    """
    general, demo = settings.general, settings.demo
    num_envs: int = demo["num_envs"]
    title = f"{settings.config['choices']['agent']}, {settings.env_name}"
    with closing(Page(general.viewer_host, general.viewer_port, title)) as page:
        tell(f"watch it at {page.address}")
        page.say(f"Preparing {settings.env_name}; a simulator that compiles takes up to a minute.")
        seed_everything(general.seed)
        # Without a window of the simulator, if it has one: the page is the window.
        with closing(build_env(settings, "demo", num_envs, window=False)) as env:
            check_renders(env)
            policy, load = _policy_of(settings, env)
            player = Player(env, policy, settings.device)
            checkpoints = WatchedCheckpoints(run, chosen)
            names = checkpoints.names()
            first = chosen if chosen in names else names[0]
            page.add_controls(names, first, num_envs, demo["speed"])
            learning = None if run is None else LearningCurves(run)
            drawn = _drawn(page, env, tell)
            pause = demo["seconds_between"]
            viewer = Viewer(page, player, checkpoints, load, drawn, learning, pause, frame_seconds)
            begin()
            viewer.run()


def check_renders(env: Environment) -> None:
    """Refuse an environment without pictures, where only the built one knows."""
    if not env.capabilities.can_render:
        raise ConfigurationError(f"viewer=web: {name_of(env)} cannot render")


def _drawn(page: Page, env: Environment, tell: Callable[[str], object]) -> DrawnScene | None:
    """Return the scene of an environment in the page; None where pictures replace it."""
    scene = env.scene()
    try:
        return None if scene is None else page.draw(scene)
    except ConfigurationError as error:
        tell(f"the page shows pictures, not a scene: {error}")
        return None


def _policy_of(
    settings: Settings, env: Environment
) -> tuple[TensorDictModuleBase, Callable[[Path], None]]:
    """Return the policy, and the function that loads another checkpoint into it."""
    agent = None if settings.contract is not None else agent_of(settings, env)
    if not isinstance(agent, Agent):
        return policy_of(settings, env), lambda _: None
    if settings.checkpoint is not None:
        restore_policy(settings.checkpoint, agent, settings.state, env)
    return agent.policy, lambda checkpoint: restore_policy(checkpoint, agent)
