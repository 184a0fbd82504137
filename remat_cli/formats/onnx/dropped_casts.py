"""Casts that onnxruntime drops at every level of optimisation.

Their readers read the cast's input instead. The rules follow its `RemoveDuplicateCastTransformer`
(core/optimizer/insert_cast_transformer.cc), version 1.31, and a test compares them for all pairs of types. A cast is
dropped if only casts read it and no precision is lost without it; a cast back to the first type is dropped, too. Nodes
are visited in the order of the file, after the changes of earlier visits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from remat_cli.formats.onnx.dtypes import BOOL, ElementType
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Values

_KINDS: Mapping[str, str] = {
    "bool": "bool",
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "signed"),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), "unsigned"),
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), "float"),
}


def dropped_casts(nodes: Iterable[Node], values: Values, results: Collection[str]) -> dict[str, str]:
    """Map each output of a dropped cast to the value read instead.

    Args:
        nodes: the nodes of a graph, in the order of their runs.
        values: their inputs and outputs.
        results: the outputs of the graph.
    """
    readers: dict[str, list[Node]] = defaultdict(list)
    casts = []
    for node in nodes:
        for name in (*node.proto.input, *node.captured):
            readers[name].append(node)
        if _is_cast(node):
            casts.append(node)
    read_instead: dict[str, str] = {}
    for cast in casts:
        output = cast.proto.output[0]
        source = _end(read_instead, cast.proto.input[0])
        after = [node.proto.output[0] for node in readers[output] if _is_cast(node)]
        if output in read_instead or not _may_go(values, source, output, after):
            continue
        back = {name for name in after if name not in results and _element(values, name) == _element(values, source)}
        read_instead |= dict.fromkeys(back, source)
        if after and len(after) == len(readers[output]) and output not in results:
            read_instead[output] = source
        for name in back:
            readers[source].extend(readers[name])
    return read_instead


def _is_cast(node: Node) -> bool:
    return (node.proto.domain, node.proto.op_type) == ("", "Cast")


def _end(read_instead: Mapping[str, str], name: str) -> str:
    """Return the value read in place of `name`."""
    while name in read_instead:
        name = read_instead[name]
    return name


def _may_go(values: Values, source: str, output: str, after: Iterable[str]) -> bool:
    """Whether a cast loses no precision that later casts would keep.

    A cast to bool could distinguish numbers that the first cast turns to 0.
    """
    first, second = _element(values, source), _element(values, output)
    last = [_element(values, name) for name in after]
    return _keeps(first, second) or all(one != BOOL and _keeps(one, second) for one in last)


def _element(values: Values, name: str) -> ElementType:
    return values[name].type.element


def _keeps(source: ElementType, target: ElementType) -> bool:
    """Whether onnxruntime treats `source` as a subset of `target`."""
    kind, other = _KINDS.get(source.name), _KINDS.get(target.name)
    if kind is None or other is None or {source.name, target.name} == {"float16", "bfloat16"}:
        return False
    if kind == "bool":
        return True
    if kind == other:
        return source.bits <= target.bits
    return kind != "float" and other in ("signed", "float") and source.bits < target.bits
