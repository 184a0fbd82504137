"""The first op at which measured memory departs from the prediction.

A part of a model has the peak of its ops in the whole model, if values for later ops stay: nodes at the end of the part
read them. So the peak of the first n ops is measured, and the range of n in which it departs is halved until one op is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.structure import captured_names
from remat_cli.runtime.onnx.rewrite import Rewritten

if TYPE_CHECKING:
    import onnx

_MARK = "remat.part"


def first_parting(
    rewritten: Rewritten, predicted: Sequence[int], departs: Callable[[onnx.ModelProto, int], bool]
) -> int | None:
    """Return the first compute at which memory departs, by bisection.

    Args:
        rewritten: the model, whose memory departs as a whole.
        predicted: predicted memory during each compute.
        departs: returns whether the measured peak of a model departs from a predicted one.

    Returns:
        Its index; None if the memory of the parts does not depart.
    """
    agreeing, departing = 0, len(predicted)
    if not departs(part(rewritten, departing), max(predicted)):
        return None
    while departing - agreeing > 1:
        middle = (agreeing + departing) // 2
        if departs(part(rewritten, middle), max(predicted[:middle])):
            departing = middle
        else:
            agreeing = middle
    return departing - 1


def part(rewritten: Rewritten, computes: int) -> onnx.ModelProto:
    """Return a model of the first `computes` computes.

    Values for later nodes stay in memory.
    """
    import onnx
    from onnx import helper

    whole = rewritten.proto.graph
    cut = rewritten.positions.index(computes) if computes in rewritten.positions else len(whole.node)
    produced = {name for node in whole.node[:cut] for name in node.output if name}
    later = {name for node in whole.node[cut:] for name in (*node.input, *captured_names(node))}
    results = [value for value in whole.output if value.name in produced]
    kept = sorted((later & produced) - {value.name for value in results})
    readers = [helper.make_node("Identity", [name], [f"{_MARK}.{name}"], f"{_MARK}.{name}") for name in kept]
    # A model needs an output.
    mark = helper.make_node("Constant", [], [_MARK], _MARK, value_int=0)
    model = onnx.ModelProto(ir_version=rewritten.proto.ir_version)
    model.opset_import.extend(rewritten.proto.opset_import)
    model.functions.extend(rewritten.proto.functions)
    model.graph.name = whole.name
    model.graph.node.extend([*whole.node[:cut], *readers, mark])
    model.graph.initializer.extend(whole.initializer)
    model.graph.sparse_initializer.extend(whole.sparse_initializer)
    model.graph.input.extend(whole.input)
    model.graph.value_info.extend(value for value in whole.value_info if value.name in produced)
    model.graph.output.extend([*results, helper.make_tensor_value_info(_MARK, onnx.TensorProto.INT64, [])])
    return model
