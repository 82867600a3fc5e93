from tensordict import TensorDict

from tests.helpers.replay import Stream
from tests.torchrl_gpu.replay.test_buffer import assert_same, vector_spec
from torchrl_gpu.replay.episodes import Episode, EpisodeCutter


def test_episodes_have_exactly_the_transitions_that_count() -> None:
    stream = Stream(vector_spec(3), 0.1, interruption_probability=0.2)
    cutter = EpisodeCutter(["observation"])
    episodes: list[Episode] = []
    counted: list[TensorDict] = []
    for _ in range(60):
        step = stream.step()
        active, counts = stream.draw(0.9), stream.draw(0.9).squeeze(1)
        episodes += cutter.add(step.copy().set("active", active), counts)
        counted.append(step[active.squeeze(1) & counts])
    episodes += cutter.rest()
    found = TensorDict.cat([episode.transitions() for episode in episodes])
    order = found["next", "reward"].flatten().argsort()
    assert_same(found[order], TensorDict.cat(counted))
    for episode in episodes:
        assert not (episode.terminated | episode.truncated)[:-1].any()
