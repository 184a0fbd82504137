"""What onnxruntime's CPU provider keeps in memory while it runs the nodes of a file in order, told from the file alone.

Written after its allocation planner, and sharing nothing with remat: an oracle for small models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

import onnx

_ALIASES = ("Identity", "Reshape")
_IN_PLACE = ("Relu", "Sigmoid", "HardSigmoid", "Tanh", "Softplus")
_ITEM = {int(onnx.TensorProto.FLOAT): 4, int(onnx.TensorProto.INT64): 8}


def memory_bytes(model: onnx.ModelProto) -> dict[str, int]:
    """Return what is allocated while each node runs, by its name; what Shape gives counts nothing."""
    graph = model.graph
    nodes = [one for one in graph.node if one.op_type != "Constant"]
    results = {value.name for value in graph.output}
    sizes = {value.name: _bytes(value) for value in (*graph.value_info, *graph.output)}
    buffer = _buffers(graph, nodes, results)
    last_reader = {buffer[name]: number for number, one in enumerate(nodes) for name in one.input}
    live: dict[str, int] = {}
    memory = {}
    for number, one in enumerate(nodes):
        if one.op_type != "Shape":
            live |= {name: sizes.get(name, 0) for name in one.output if buffer[name] == name}
        memory[one.name] = sum(live.values())
        for name in {buffer[read] for read in one.input}:
            # Outputs of the graph stay, and so does what nobody reads.
            if last_reader[name] == number and name not in results:
                live.pop(name, None)
    return memory


def _buffers(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], results: set[str]) -> dict[str, str]:
    """Return for each value the one whose buffer it is in: its own, or that of an input that it takes over."""
    # What the caller or the session owns is never overwritten.
    owned = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    owned |= {name for one in graph.node if one.op_type == "Constant" for name in one.output}
    buffer = {name: name for name in owned}
    uses = Counter(name for one in nodes for name in (*one.input, *one.output))
    uses.update([*results, *owned])
    for one in nodes:
        source = buffer[one.input[0]]
        takes = one.op_type in _ALIASES or (one.op_type in _IN_PLACE and uses[source] == 1)
        for name in one.output:
            buffer[name] = source if takes and name not in results else name
            if buffer[name] != name:
                uses[source] += uses[name]
        for name in (*one.input, *one.output):
            uses[buffer[name]] -= 1
    return buffer


def _bytes(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    return _ITEM[kind.elem_type] * prod(int(dim.dim_value) for dim in kind.shape.dim)
