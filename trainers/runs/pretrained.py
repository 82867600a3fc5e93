"""Policies that ship with the library, by name: `checkpoint=pretrained:fanuc/sac`."""

from pathlib import Path

from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.errors import ConfigurationError

# Beside the packages of the library, in the checkout and in the wheel.
_FOLDER = Path(__file__).parents[2] / "pretrained"
_PREFIX = "pretrained:"


def find_policy(path: Path | str, best: bool) -> Path:
    """Return the file of a policy: `pretrained:NAME`, or a path as `find_checkpoint` takes it."""
    text = Path(path).as_posix()
    if not text.startswith(_PREFIX):
        return find_checkpoint(path, best)
    files = _files()
    name = text.removeprefix(_PREFIX)
    if name not in files:
        raise ConfigurationError(f"checkpoint={text}: choose one of: {', '.join(files)}")
    return files[name]


def policy_names() -> list[str]:
    """Return the names of all policies, as in `fanuc/sac`."""
    return list(_files())


def _files() -> dict[str, Path]:
    files = sorted(_FOLDER.glob("*/*.safetensors"))
    return {file.relative_to(_FOLDER).with_suffix("").as_posix(): file for file in files}
