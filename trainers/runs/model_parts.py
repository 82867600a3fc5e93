"""The parts of a model of Stable-Baselines3, read without unpickling anything."""

import io
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from lzma import LZMAError
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from torchrl_gpu.checkpoints.contents import UNEXPECTED
from torchrl_gpu.errors import ConfigurationError, one_line

# Bytes of a part: of `data`, which holds no replay buffer, and of parameters, which hardly shrink
# where they are compressed, for each byte of the file beyond those.
_MAX_DATA: Final = 64 * 2**20
_MAX_UNPACKED: Final = 8

_VERSION: Final = "_stable_baselines3_version"


def read_parts(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Return the readable data of a model, its parameters, and the version that wrote it."""
    if not path.is_file():
        raise ConfigurationError(f"{path}: this file does not exist")
    if not zipfile.is_zipfile(path):
        raise ConfigurationError(f"{path}: not a zip file, as `model.save` writes")
    try:
        with zipfile.ZipFile(path) as file:
            limit = _MAX_DATA + _MAX_UNPACKED * path.stat().st_size
            for name, most in ("data", _MAX_DATA), ("policy.pth", limit):
                if file.getinfo(name).file_size > most:
                    raise ConfigurationError(f"{path}: its {name} is larger than {most:,} bytes")
            data = json.loads(file.read("data"))
            parameters = file.read("policy.pth")
            known = _VERSION in file.namelist()
            version = file.open(_VERSION).read(100).decode().strip() if known else ""
    except ConfigurationError:
        raise
    except KeyError as error:
        raise ConfigurationError(
            f"{path}: not a model of Stable-Baselines3: {error.args[0]}"
        ) from None
    except (*UNEXPECTED, OSError, EOFError, zipfile.BadZipFile, zlib.error, LZMAError) as error:
        raise ConfigurationError(f"{path}: damaged: {one_line(error)}") from None
    try:
        tensors = torch.load(io.BytesIO(parameters), map_location="cpu", weights_only=True)
    except (*UNEXPECTED, OSError, EOFError, AssertionError, struct.error, pickle.UnpicklingError):
        tensors = None
    if not (isinstance(tensors, Mapping) and all(isinstance(t, Tensor) for t in tensors.values())):
        raise ConfigurationError(
            f"{path}: its policy.pth is not a file of tensors alone; nothing in it is unpickled"
        )
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: damaged: its data is not a mapping")
    is_version = re.fullmatch(r"[\w.+-]+", version) is not None
    named = {str(name): tensor for name, tensor in tensors.items()}
    return data, named, version if is_version else "unknown"
