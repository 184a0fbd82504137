"""Model-local functions, inlined within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from remat_cli.core.graph import describe_cycle
from remat_cli.errors import GraphError
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.walk import all_nodes

if TYPE_CHECKING:
    import onnx

# Functions that call each other twice double the model at every level.
MOST_NODES = 1_000_000
# onnx's inliner descends by recursion.
MOST_LEVELS = 100

# A function's domain, name and overload.
_Key = tuple[str, str, str]


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without calls of its local functions.

    A function for another operator set version than the model's stays a call, and so an unknown op.

    Raises:
        GraphError: functions call each other in a circle, deeper than `MOST_LEVELS`, or give more than `MOST_NODES`
            nodes.
    """
    if not model.functions:
        return model
    import onnx.inliner

    _check_inlining_ends(model)
    with onnx_faults("the model's local functions cannot be inlined", "check the file with onnx.checker.check_model"):
        return onnx.inliner.inline_local_functions(model)


def _check_inlining_ends(model: onnx.ModelProto) -> None:
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    calls = {key: [_callee(node) for node in all_nodes(one.node)] for key, one in functions.items()}
    nodes: dict[_Key, int] = {}
    levels: dict[_Key, int] = {}
    for key in _callees_first(calls):
        called = calls.get(key, ())
        nodes[key] = sum(nodes[call] for call in called) if key in calls else 1
        levels[key] = max((levels[call] for call in called), default=0) + (key in calls)
    deepest = max(levels.values(), default=0)
    if deepest > MOST_LEVELS:
        raise GraphError(
            f"the model's local functions call each other {deepest} levels deep, more than {MOST_LEVELS}",
            hint="inline them before (onnx.inliner), or export the model without functions",
        )
    total = sum(nodes.get(_callee(node), 1) for node in all_nodes(model.graph.node))
    if total > MOST_NODES:
        raise GraphError(
            f"inlining the model's local functions makes {total} nodes, more than {MOST_NODES}",
            hint="functions that call each other many times multiply; is the file meant to be like this?",
        )


def _callees_first(calls: Mapping[_Key, Sequence[_Key]]) -> tuple[_Key, ...]:
    try:
        return tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        circle = [".".join(filter(None, key)) for key in reversed(error.args[1][1:])]
        raise GraphError(
            f"the model's local functions call each other in a circle: {describe_cycle(circle)}",
            hint="a function of ONNX cannot be recursive; use Loop",
        ) from None


def _callee(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload
