"""Views whose operand was put into other memory: they go there, too."""

from __future__ import annotations

from torch import fx

from remat_cli.pytorch.capture.ops import is_item, is_view, tensors_of, update_value
from remat_cli.pytorch.unstable.tensors import storage_key


def views_and_items(graph: fx.Graph) -> dict[fx.Node, None]:
    """Return the views and picked results of a graph, in order."""
    return {node: None for node in graph.nodes if is_view(node) or is_item(node)}


def follow_operands(node: fx.Node) -> None:
    """Move a view's value into its operand's present memory.

    So it is for one of several results.
    """
    results = tensors_of(node.meta.get("val"))
    operands = [value for operand in node.all_input_nodes for value in tensors_of(operand.meta.get("val"))]
    if {storage_key(value) for value in results} <= {storage_key(value) for value in operands}:
        return
    update_value(node)
