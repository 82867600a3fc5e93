"""Where the settings of the viewer are kept."""

import yaml

from trainers.modes.outcome import command_of
from trainers.run import settings_of

DQN = ("agent=dqn", "env=gym", "env.name=CartPole-v1", "device=cpu")


def test_a_viewer_is_not_part_of_its_run_but_of_the_command_that_resumes_it() -> None:
    settings = settings_of(*DQN, "viewer=web", "viewer_port=0")
    assert not [name for name in yaml.safe_load(settings.of_run()) if name.startswith("viewer")]
    resume = command_of(settings, "checkpoint=RUN")
    assert resume.endswith(" checkpoint=RUN device=cpu viewer=web viewer_port=0")
    assert "viewer" not in command_of(settings, "mode=demo", "checkpoint=RUN")
