"""Views whose operand was put into other memory: they go there, too."""

from __future__ import annotations

from torch import fx
from torch.fx.node import map_arg

from remat_cli.pytorch.capture.ops import is_item, is_view, storage_key, tensors_of


def views_and_items(graph: fx.Graph) -> dict[fx.Node, None]:
    """Return the views of a graph, and what picks one of several results, in order."""
    return {node: None for node in graph.nodes if is_view(node) or is_item(node)}


def follow_operands(node: fx.Node) -> None:
    """Put the value of a view, or of one of several results, into the memory of its operand, if that is another now."""
    made = tensors_of(node.meta.get("val"))
    operands = [value for operand in node.all_input_nodes for value in tensors_of(operand.meta.get("val"))]
    if {storage_key(value) for value in made} <= {storage_key(value) for value in operands}:
        return
    args, kwargs = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    assert callable(node.target)
    with made[0].fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = node.target(*args, **kwargs)
