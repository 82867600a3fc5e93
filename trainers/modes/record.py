"""Mode record: record the episodes of a policy as a dataset."""

from contextlib import closing

from torchrl_gpu.datasets.dataset import check_new
from torchrl_gpu.devices.seeding import stream_seed
from trainers.command_line.settings import Settings
from trainers.evaluation.record import record
from trainers.modes.building import evaluator_of, policy_of, prepared_folder, title_of
from trainers.modes.outcome import RunOutcome
from trainers.runs.folders import check_writable
from trainers.training.progress import ProgressDisplay


def record_policy(settings: Settings) -> RunOutcome:
    """Record episodes that neither training nor evaluation begins with."""
    folder = prepared_folder(settings, "datasets")
    episodes = settings.record["episodes"]
    path = settings.record["path"] or folder / "new"
    check_writable(path, "record.path")
    check_new(path, settings.record["format"])
    with closing(evaluator_of(settings, episodes=episodes)) as evaluator:
        env = evaluator.env
        policy = policy_of(settings, env)
        seed = stream_seed(settings.general.seed, "demo")
        with ProgressDisplay(episodes, unit="episodes") as display:
            made = record(
                env,
                policy,
                settings.device,
                folder,
                **settings.record,
                seed=seed,
                progress=display.update,
            )
    report = f"Recorded {title_of(settings)}\n  {made}\n  {made.path}"
    return RunOutcome(folder, made.evaluation, report, dataset=made.path)
