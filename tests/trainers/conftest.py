from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.programs import Start, programs


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program, or another function, in a process and session of its own."""
    with programs(tmp_path) as begin:
        yield begin
