"""Builds skip_chain.json: a forward pass small enough to follow by hand, in the native format.

Eight blocks down, one at the bottom and eight up, as in a U-Net without pooling; block i on the way up reads what block
i made on the way down. Every tensor has 1 MB; a convolution takes 10 units of time and anything else 1.
"""

from __future__ import annotations

import json
from pathlib import Path

BLOCKS = 8
TENSOR_BYTES = 1_000_000
PARAMETER_BYTES = 100_000  # of one convolution; as much again for its gradient
CONV_TIME = 10

JsonOp = dict[str, object]


def build() -> dict[str, object]:
    """Return the graph as the native format has it, `remat.graph/1`."""
    ops: list[JsonOp] = []
    x = "x"
    for block in range(1, BLOCKS + 1):
        x = _conv_relu(ops, f"down{block}", x)
    x = _conv_relu(ops, "bottom", x)
    for block in range(BLOCKS, 0, -1):
        x = _add_op(ops, "Add", f"up{block}.add", [x, f"down{block}.relu"], time=1, saves=[])
        x = _conv_relu(ops, f"up{block}", x)
    x = _add_op(ops, "Sub", "error", [x, "target"], time=1, saves=[])
    _add_op(ops, "ReduceL2", "loss", [x], time=1, saves=["error", "loss"])
    return {
        "format": "remat.graph/1",
        "name": "skip_chain",
        "kind": "forward",
        "time_unit": "unit",
        "resident_bytes": 2 * PARAMETER_BYTES * (2 * BLOCKS + 1),
        "tensors": [
            {"name": name, "bytes": 4 if name == "loss" else TENSOR_BYTES}
            for name in ("x", "target", *(str(op["name"]) for op in ops))
        ],
        "ops": ops,
        "outputs": ["loss"],
    }


def _conv_relu(ops: list[JsonOp], block: str, x: str) -> str:
    conv = _add_op(ops, "Conv", f"{block}.conv", [x], time=CONV_TIME, saves=[x])
    return _add_op(ops, "Relu", f"{block}.relu", [conv], time=1, saves=[f"{block}.relu"])


def _add_op(ops: list[JsonOp], type_: str, name: str, inputs: list[str], *, time: int, saves: list[str]) -> str:
    """Add an op whose one output has its name, and return that."""
    ops.append({"name": name, "type": type_, "inputs": inputs, "outputs": [name], "time": time, "saves": saves})
    return name


def write(path: Path) -> None:
    """Write the graph with sorted keys, one op or tensor a line."""
    path.write_text(_one_line_each(build()), encoding="utf-8")


def _one_line_each(graph: dict[str, object]) -> str:
    fields = []
    for key, value in sorted(graph.items()):
        text = json.dumps(value, sort_keys=True)
        if key in ("ops", "tensors") and isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(item, sort_keys=True)}" for item in value) + "\n ]"
        fields.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def main() -> None:
    """Write the graph next to this script."""
    write(Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    main()
