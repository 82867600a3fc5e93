from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_registry() -> Iterator[None]:
    """Each export would read the bodies of hundreds of functions of onnxscript again."""
    if find_spec("onnxscript") is None:
        yield
        return
    registry = import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(registry, "from_torchlib", staticmethod(cache(registry.from_torchlib)))
        yield
