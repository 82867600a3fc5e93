"""Script of an exported policy, for a page that runs it in a browser without a library."""

import base64
import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchrl_gpu.errors import ConfigurationError

PAGE: Final = "page.html"
INTERPRETER: Final = Path(__file__).with_name("network.js")


def policy_script(path: Path) -> str:
    """Return an ONNX file as JavaScript that defines `act(observations, rows)`.

    See `Environment.page`.
    """
    interpreter = INTERPRETER.read_text(encoding="utf-8")
    graph = _graph_of(path)
    known = re.findall(r"^    ([A-Z]\w+):", interpreter, re.MULTILINE)
    missing = {node["operator"] for node in graph["nodes"]}.difference(known)
    if missing:
        names = ", ".join(sorted(missing))
        raise ConfigurationError(f"a browser cannot run the operators {names} of this policy")
    text = json.dumps(graph, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"{interpreter}\nconst NETWORK = new Network({text});\n"
        "const act = (observations, rows) => NETWORK.act(observations, rows);"
    )


def _graph_of(path: Path) -> dict[str, Any]:
    """Return the graph of an ONNX file as plain values; tensors are base64 of float32."""
    # An optional package, imported where it is needed.
    onnx: Any = importlib.import_module("onnx")
    graph = onnx.load(path).graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    return {
        "inputs": [
            {"name": port.name, "shape": [d.dim_value for d in port.type.tensor_type.shape.dim[1:]]}
            for port in graph.input
        ],
        "output": graph.output[0].name,
        "constants": {name: _encoded(values) for name, values in constants.items()},
        "nodes": [
            {
                "operator": node.op_type,
                "inputs": list(node.input),
                "outputs": list(node.output),
                "attributes": {
                    each.name: onnx.helper.get_attribute_value(each) for each in node.attribute
                },
            }
            for node in graph.node
        ],
    }


def _encoded(values: NDArray[Any]) -> Mapping[str, Any]:
    data = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return {"shape": list(values.shape), "data": base64.b64encode(data).decode("ascii")}
