"""The names that scripts import, and the cost of importing them."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["torchrl_gpu", "agents", "envs", "trainers"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_imports(name: str) -> None:
    package = importlib.import_module(name)
    imported: dict[str, Any] = {}
    exec(f"from {name} import *", imported)
    assert set(package.__all__) == imported.keys() - {"__builtins__"}
    assert set(package.__all__) <= set(dir(package))


def test_importing_the_packages_does_not_import_torch() -> None:
    code = f"import sys, {', '.join(PACKAGES)}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", PACKAGES)
def test_an_unknown_name_raises_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'missing'"):
        _ = importlib.import_module(name).missing
