"""Policies that ship with the library, by name: `checkpoint=pretrained:fanuc/sac`."""

from pathlib import Path

from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.errors import ConfigurationError

# Beside the packages of the library, in the checkout and in the wheel.
_FOLDER = Path(__file__).parents[2] / "pretrained"
_PREFIX = "pretrained:"


def find_policy(path: Path | str, best: bool = False) -> Path:
    """Return the file of a policy for a user's setting `checkpoint=`.

    Args:
        path: `pretrained:NAME`, or a path that `find_checkpoint` takes.
        best: see `find_checkpoint`.

    Raises:
        ConfigurationError: there is no policy of this name, or no checkpoint at this path.
    """
    text = Path(path).as_posix()
    if not text.startswith(_PREFIX):
        return find_checkpoint(path, best)
    files = {
        file.relative_to(_FOLDER).with_suffix("").as_posix(): file
        for file in sorted(_FOLDER.glob("*/*.safetensors"))
    }
    name = text.removeprefix(_PREFIX)
    if name not in files:
        raise ConfigurationError(f"checkpoint={text}: choose one of: {', '.join(files)}")
    return files[name]
