import pytest

from torchrl_gpu.errors import ConfigurationError


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("agent.gamma=2: at most 1", "agent.gamma=2: at most 1"),
        ("first\nsecond\x00", r"first second\x00"),
        ("a" * 100_000 + "b", "a" * 497 + " ... " + "a" * 496 + "b"),
    ],
)
def test_a_message_is_one_line_of_modest_length(message: str, shown: str) -> None:
    assert str(ConfigurationError(message)) == shown
