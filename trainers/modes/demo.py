"""Mode demo: film a policy, or show it live in the browser."""

import time
from contextlib import closing

from torchrl_gpu.devices.seeding import stream_seed
from trainers.command_line.settings import Settings
from trainers.evaluation.film import film
from trainers.modes.building import build_env, policy_of, prepared_folder, title_of
from trainers.modes.outcome import RunOutcome
from trainers.modes.view import view
from trainers.runs.loggers import log_film
from trainers.runs.policy_files import load_checkpoint


def show_policy(settings: Settings) -> RunOutcome:
    """Film a policy, which an environment may also show live if there is a display.

    With `viewer=web` show it in the browser until a signal ends the program.
    """
    if settings.general.viewer == "web":
        view(settings)
    started = time.perf_counter()
    folder = prepared_folder(settings, "videos")
    with closing(build_env(settings, "demo", settings.demo["num_envs"])) as env:
        policy = policy_of(settings, env)
        seed = stream_seed(settings.general.seed, "demo")
        made = film(env, policy, settings.device, folder, **settings.demo, seed=seed)
    is_gif, loggers = made.path.suffix == ".gif", settings.trainer.settings["loggers"]
    if settings.checkpoint is not None and is_gif and "tensorboard" in loggers:
        state = settings.state or load_checkpoint(settings.checkpoint)
        log_film(made.path, state.get("frames", 0))
    report = f"Filmed {title_of(settings)}\n  {made}\n  {made.path}"
    seconds = time.perf_counter() - started
    return RunOutcome(folder, seconds, made.evaluation, report, film=made.path)
