"""Description of an exported policy that LEAPP reads.

LEAPP (https://nvidia-isaac.github.io/leapp) runs pipelines of policies in Isaac Lab, Isaac ROS and
from Python. Source of the fields: its documentation, "Understanding the Generated Configs".
"""

import hashlib
from pathlib import Path
from typing import Any, Final

from omegaconf import OmegaConf

from trainers.exporting.contract import ONNX, Contract

LEAPP: Final = "leapp.yaml"
_NODE: Final = "policy"


def leapp_text(contract: Contract, folder: Path) -> str:
    """Return the text of the YAML file: one node, which is the ONNX file, at a batch of one."""
    configs = {} if contract.step_seconds is None else {"frequency": 1 / contract.step_seconds}
    md5 = hashlib.md5((folder / ONNX).read_bytes(), usedforsecurity=False).hexdigest()
    return OmegaConf.to_yaml(
        {
            "models": {
                _NODE: {
                    "inputs": [_port(each) for each in contract.observations],
                    "outputs": [_port(contract.action)],
                    "parameters": {
                        "backend": "onnx",
                        "model_path": ONNX,
                        "md5sum": md5,
                        "sha256sum": contract.files[ONNX],
                    },
                }
            },
            "pipeline": {
                "data_flow": {},
                "feedback_flow": {},
                "inputs": {_NODE: [each["name"] for each in contract.observations]},
                "outputs": {_NODE: ["action"]},
                "configs": configs,
            },
            "system information": {"leapp config version": "1.3", **contract.versions},
        }
    )


def _port(entry: dict[str, Any]) -> dict[str, Any]:
    shape = [1, *entry["shape"]]
    port = {"name": entry["name"], "dtype": entry["dtype"], "shape": shape, "type": "tensor"}
    if entry["elements"] is not None:
        names = [each["name"] for each in entry["elements"]]
        port["element_names"] = [None] * (len(shape) - 1) + [names]
    return port
