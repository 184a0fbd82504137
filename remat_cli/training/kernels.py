"""Groups of nodes that training runs as one kernel.

A kernel keeps less for the backward than its nodes would.

Such groups come from two places. An exporter splits an op that its operator set lacks (`silu`, and below operator set
20 `gelu`). A model's code may spell a formula out (GPT-2's GELU, Llama's RMS norm); PyTorch then keeps the inner
values. The order of the products distinguishes the two, for exporters of PyTorch 2.13 and operator sets 16 to 23.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from remat_cli.core.graph import Draft, Op, draft_graph
from remat_cli.core.operators import AttributeValue, Operand, Operator, Role

# The operator set that has all of these ops.
_OPSET = 24
# Nodes that change no value, but perhaps its element type.
_CASTS = ("Cast", "CastLike", "Identity")
_MOST_FACTORS = 8


class Kernels(StrEnum):
    """Groups of nodes that training runs in one kernel."""

    WRITTEN = "written"  # none: the file's nodes
    ORIGINAL = "original"  # ops that an exporter split
    FUSED = "fused"  # formulas that a model spells out, too


@dataclass(frozen=True)
class FusedGraph:
    """A forward graph with one op in place of each group.

    Attributes:
        graph: the graph, without the inner values of groups.
        operators: an operator for each op.
        groups: number of groups by the op's type.
        nodes: number of nodes in all groups.
    """

    graph: Draft
    operators: Mapping[str, Operator]
    groups: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0


def with_kernels(graph: Draft, operators: Mapping[str, Operator], which: Kernels) -> FusedGraph:
    """Replace each group of nodes by one op.

    A group stays if an outside op reads an inner value, or an inner value is an output of the graph.

    Args:
        graph: a forward pass.
        operators: an operator for each op.
        which: the groups to replace.
    """
    nodes = _Nodes(graph, operators)
    groups: dict[str, _Group] = {}  # by the member that the op replaces in the order
    taken: set[str] = set()
    for op in graph.ops if which is not Kernels.WRITTEN else ():
        group = _recognised(nodes, op.name)
        if group is None or (group.spelled_out and which is not Kernels.FUSED):
            continue
        if taken.isdisjoint(group.members) and nodes.are_closed(group):
            taken.update(group.members)
            groups[group.members[group.place]] = group
    if not groups:
        return FusedGraph(graph, operators)
    results = {value.name for group in groups.values() for value in group.results}
    inner = {name for member in taken for name in graph.op[member].outputs} - results
    together = draft_graph(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        tensors=(tensor for tensor in graph.tensors.values() if tensor.name not in inner),
        ops=(
            _op(graph, groups[op.name]) if op.name in groups else op
            for op in graph.ops
            if op.name in groups or op.name not in taken
        ),
        outputs=graph.outputs,
    )
    its_operators = {
        op.name: groups[op.name].operator if op.name in groups else operators[op.name] for op in together.ops
    }
    return FusedGraph(together, its_operators, Counter(group.type for group in groups.values()), len(taken))


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes that stand for one op.

    Attributes:
        type: type of the op.
        inputs: operands of the op.
        members: names of the nodes.
        results: results of the op.
        attributes: attributes of the op.
        spelled_out: whether these nodes come from a model's code, not from an exporter.
        place: position of the member that the op replaces in the order.
    """

    type: str
    inputs: tuple[Operand | None, ...]
    members: tuple[str, ...]
    results: tuple[Operand, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    spelled_out: bool = False
    place: int = -1

    @property
    def operator(self) -> Operator:
        """The operator of the op."""
        return Operator(self.type, self.inputs, self.results, self.attributes, _OPSET)


def _op(graph: Draft, group: _Group) -> Op:
    members = [graph.op[name] for name in group.members]
    read = (value.name for value in group.inputs if value is not None and value.role is Role.ACTIVATION)
    return replace(
        members[group.place],
        type=group.type,
        inputs=tuple(dict.fromkeys(read)),
        outputs=tuple(value.name for value in group.results),
        workspace_bytes=max(member.workspace_bytes for member in members),
        inplace=None,
        recomputable=all(member.recomputable for member in members),
        saves=None,
        grad_inputs=None,
    )


class _OtherForm(Exception):
    """The nodes form no group of this kind."""


class _Nodes:
    """The nodes of a graph, found by their values.

    A missing node or value raises `_OtherForm`.
    """

    def __init__(self, graph: Draft, operators: Mapping[str, Operator]) -> None:
        self.operators = operators
        self._graph = graph
        self._maker: dict[str, str] = {}
        self._readers: dict[str, dict[str, None]] = {}
        for name, operator in operators.items():
            self._maker.update((value.name, name) for value in operator.outputs if value is not None)
            for value in operator.inputs:
                if value is not None:
                    self._readers.setdefault(value.name, {})[name] = None

    def type(self, node: str) -> str:
        """Return the type of a node."""
        return self.operators[node].type

    def input(self, node: str, position: int) -> Operand:
        """Return an operand of a node."""
        return _present(self.operators[node].inputs, position)

    def output(self, node: str) -> Operand:
        """Return the first result of a node."""
        return _present(self.operators[node].outputs, 0)

    def maker(self, value: Operand, *types: str) -> str:
        """Return the producer of a value, a node of one of these types."""
        node = self._maker.get(value.name)
        if node is None or self.type(node) not in types:
            raise _OtherForm
        return node

    def readers(self, node: str) -> tuple[str, ...]:
        """Return the nodes that read the first result of a node."""
        return tuple(self._readers.get(self.output(node).name, ()))

    def reader(self, node: str, *types: str) -> str:
        """Return the only reader of a node's first result.

        The reader has one of these types.
        """
        readers = self.readers(node)
        if len(readers) != 1 or self.type(readers[0]) not in types:
            raise _OtherForm
        return readers[0]

    def passed_on(self, node: str, *types: str) -> tuple[str, ...]:
        """Return the chain of nodes of these types after a node."""
        passed: list[str] = []
        while True:
            try:
                passed.append(self.reader(passed[-1] if passed else node, *types))
            except _OtherForm:
                return tuple(passed)

    def other_operand(self, node: str, value: Operand) -> Operand:
        """Return the other operand of a node that reads `value`."""
        first, second = self.input(node, 0), self.input(node, 1)
        if value.name not in (first.name, second.name):
            raise _OtherForm
        return second if first.name == value.name else first

    def non_constant_operand(self, node: str) -> Operand:
        """Return the other operand of a node that reads a constant."""
        operands = [self.input(node, position) for position in (0, 1)]
        others = [value for value in operands if value.role is not Role.CONSTANT]
        if len(others) != 1:
            raise _OtherForm
        return others[0]

    def are_closed(self, group: _Group) -> bool:
        """Return whether nodes outside read no inner value of a group."""
        tensors, members = self._graph.tensors, set(group.members)
        results = {value.name for value in group.results}
        inner = {name for member in group.members for name in self._graph.op[member].outputs} - results
        return (
            all(self._readers.get(name, {}).keys() <= members for name in inner)
            and inner.isdisjoint(self._graph.outputs)
            and inner.isdisjoint(filter(None, (tensors[name].view_of for name in results)))
        )


def _present(values: tuple[Operand | None, ...], position: int) -> Operand:
    value = values[position] if position < len(values) else None
    if value is None:
        raise _OtherForm
    return value


def _shape(value: Operand) -> tuple[int, ...]:
    if value.shape is None:
        raise _OtherForm
    return value.shape


def _recognised(nodes: _Nodes, node: str) -> _Group | None:
    """Return the group recognised at a node; None without a group."""
    recognise = _RECOGNISERS.get(nodes.type(node))
    try:
        return None if recognise is None else recognise(nodes, node)
    except _OtherForm:
        return None


# --- The groups, each recognised by one of its nodes ------------------------------------------------------------------


def _swish(nodes: _Nodes, sigmoid: str) -> _Group:
    """x * sigmoid(x)."""
    x, product = nodes.input(sigmoid, 0), nodes.reader(sigmoid, "Mul")
    if nodes.other_operand(product, nodes.output(sigmoid)).name != x.name:
        raise _OtherForm
    return _Group("Swish", (x,), (sigmoid, product), (nodes.output(product),))


def _gelu(nodes: _Nodes, function: str) -> _Group:
    """Half of x * (1 + f(x)), where f is erf of a multiple of x, or tanh of a polynomial in x."""
    plus_one = nodes.reader(function, "Add")
    nodes.non_constant_operand(plus_one)
    x, products, spelled_out = _times_half_of_x(nodes, plus_one)
    argument = _factors(nodes, nodes.input(function, 0), x)
    result = nodes.output(products[-1])
    return _Group("Gelu", (x,), (*argument, function, plus_one, *products), (result,), spelled_out=spelled_out)


def _times_half_of_x(nodes: _Nodes, factor: str) -> tuple[Operand, tuple[str, ...], bool]:
    """Return x, the two products, and whether x itself is halved.

    Models halve x.
    """
    first = nodes.reader(factor, "Mul")
    other = nodes.other_operand(first, nodes.output(factor))
    if other.role is Role.CONSTANT:
        second = nodes.reader(first, "Mul")
        return nodes.other_operand(second, nodes.output(first)), (first, second), False
    try:
        second = nodes.reader(first, "Mul")
        nodes.non_constant_operand(second)
        return other, (first, second), False
    except _OtherForm:
        half = nodes.maker(other, "Mul")
        return nodes.non_constant_operand(half), (half, first), True


def _factors(nodes: _Nodes, value: Operand, x: Operand) -> tuple[str, ...]:
    """Return the nodes between `value` and x; other inputs are constants."""
    between: dict[str, None] = {}
    pending = [value]
    while pending:
        operand = pending.pop()
        if operand.name == x.name or operand.role is Role.CONSTANT:
            continue
        node = nodes.maker(operand, "Mul", "Add", "Div", "Pow")
        between[node] = None
        if len(between) > _MOST_FACTORS:
            raise _OtherForm
        pending += [nodes.input(node, 0), nodes.input(node, 1)]
    return tuple(between)


def _normalization(nodes: _Nodes, root: str) -> _Group:
    """Layer norm or RMS norm.

    The last dimensions are normalized, then scaled.
    """
    variance = nodes.maker(nodes.non_constant_operand(nodes.maker(nodes.input(root, 0), "Add")), "ReduceMean")
    plus_epsilon = nodes.maker(nodes.input(root, 0), "Add")
    square = nodes.maker(nodes.input(variance, 0), "Pow", "Mul")
    centred = nodes.input(square, 0)
    if nodes.type(square) == "Mul" and nodes.other_operand(square, centred).name != centred.name:
        raise _OtherForm
    try:
        x, centring = _centring(nodes, centred)
    except _OtherForm:
        x, centring = centred, ()
    divided = _divided(nodes, centred, root)
    parameters, affine = _affine(nodes, divided[-1], 2 if centring else 1)
    axis = _first_reduced(_shape(x), _shape(nodes.output(variance)))
    return _Group(
        "LayerNormalization" if centring else "RMSNormalization",
        (x, *parameters),
        (*centring, square, variance, plus_epsilon, root, *divided, *affine),
        (nodes.output((*divided, *affine)[-1]),),
        {"axis": axis},
        spelled_out=not centring or nodes.type(divided[0]) != "Div",
    )


def _centring(nodes: _Nodes, centred: Operand) -> tuple[Operand, tuple[str, ...]]:
    """Return x and the nodes that subtract its mean."""
    difference = nodes.maker(centred, "Sub")
    x, mean = nodes.input(difference, 0), nodes.maker(nodes.input(difference, 1), "ReduceMean")
    if nodes.input(mean, 0).name != x.name:
        raise _OtherForm
    return x, (mean, difference)


def _divided(nodes: _Nodes, value: Operand, root: str) -> tuple[str, ...]:
    """Return the nodes that divide a value by the result of `root`."""
    first = nodes.reader(root, "Div", "Reciprocal")
    quotient = nodes.reader(first, "Mul") if nodes.type(first) == "Reciprocal" else first
    divisor = nodes.output(root if quotient == first else first)
    if nodes.other_operand(quotient, divisor).name != value.name:
        raise _OtherForm
    return tuple(dict.fromkeys((first, quotient)))


def _affine(nodes: _Nodes, node: str, most: int) -> tuple[tuple[Operand, ...], tuple[str, ...]]:
    """Return the scale and shift weights after `node`, with their nodes."""
    weights: list[Operand] = []
    members: list[str] = []
    for type_ in ("Mul", "Add")[:most]:
        casts = nodes.passed_on((node, *members)[-1], *_CASTS)
        last = (node, *members, *casts)[-1]
        try:
            applied = nodes.reader(last, type_)
            weight = nodes.other_operand(applied, nodes.output(last))
        except _OtherForm:
            break
        if weight.role is not Role.PARAMETER:
            break
        weights.append(weight)
        members += [*casts, applied]
    return tuple(weights), tuple(members)


def _first_reduced(whole: tuple[int, ...], reduced: tuple[int, ...]) -> int:
    """Return the first of the reduced last dimensions."""
    if len(whole) != len(reduced):
        raise _OtherForm
    kept = next((axis for axis, size in enumerate(reduced) if size != whole[axis]), len(whole))
    if set(reduced[kept:]) != {1}:
        raise _OtherForm
    return kept


def _group_norm(nodes: _Nodes, norm: str) -> _Group:
    """Group norm.

    Each group of channels is normalized like one channel, then the channels are scaled and shifted.
    """
    cut, joined = nodes.maker(nodes.input(norm, 0), "Reshape"), nodes.reader(norm, "Reshape")
    scaled = nodes.reader(joined, "Mul")
    shifted = nodes.reader(scaled, "Add")
    x = nodes.input(cut, 0)
    weights = nodes.other_operand(scaled, nodes.output(joined)), nodes.other_operand(shifted, nodes.output(scaled))
    if nodes.output(joined).shape != x.shape:
        raise _OtherForm
    _, groups, *_ = (*_shape(nodes.output(cut)), 1, 1)
    members = (cut, norm, joined, scaled, shifted)
    return _Group("GroupNormalization", (x, *weights), members, (nodes.output(shifted),), {"num_groups": groups})


def _attention(nodes: _Nodes, softmax: str) -> _Group:
    """Attention: softmax(q k + mask) v.

    An exporter scales both q and k, a model one of them, or their product.
    """
    guard = _guard(nodes, softmax)
    dropped = nodes.passed_on((softmax, *guard)[-1], "Dropout", *_CASTS)
    weights = (softmax, *guard, *dropped)[-1]
    product = nodes.reader(weights, "MatMul")
    if nodes.input(product, 0).name != nodes.output(weights).name:
        raise _OtherForm
    scores, mask, between = _scores(nodes, nodes.input(softmax, 0))
    q, k = nodes.input(scores, 0), nodes.input(scores, 1)
    spelled_out = any(nodes.type(node) in ("Mul", "Div") for node in between)
    scaling: tuple[str, ...] = ()
    try:
        scaling = nodes.maker(q, "Mul"), nodes.maker(k, "Mul")
        q, k = (nodes.non_constant_operand(node) for node in scaling)
    except _OtherForm:
        scaling, spelled_out = (), True
    if len(_shape(q)) != 4 or len(_shape(k)) != 4:
        raise _OtherForm
    *heads, size, keys = _shape(k)
    return _Group(
        "Attention",
        (q, replace(k, shape=(*heads, keys, size)), nodes.input(product, 1), mask),
        (*scaling, scores, *between, softmax, *guard, *dropped, product),
        (nodes.output(product),),
        spelled_out=spelled_out,
    )


def _guard(nodes: _Nodes, softmax: str) -> tuple[str, ...]:
    """Return the nodes that put zeros in empty softmax rows."""
    readers = sorted(nodes.readers(softmax), key=nodes.type)
    return tuple(readers) if [nodes.type(node) for node in readers] == ["IsNaN", "Where"] else ()


def _scores(nodes: _Nodes, value: Operand) -> tuple[str, Operand | None, tuple[str, ...]]:
    """Return the product q k, the mask, and the nodes up to `value`."""
    mask: Operand | None = None
    between: list[str] = []
    while True:
        node = nodes.maker(value, "MatMul", "Add", "Where", "Mul", "Div", *_CASTS)
        if nodes.type(node) == "MatMul":
            return node, mask, tuple(reversed(between))
        between.append(node)
        value, added = _unmasked(nodes, node)
        if added is not None and mask is not None:
            raise _OtherForm
        mask = added or mask


def _unmasked(nodes: _Nodes, node: str) -> tuple[Operand, Operand | None]:
    """Return the scores that a node reads, and its mask."""
    match nodes.type(node):
        case "Add":
            return _masked(nodes, node)
        case "Where":
            return _chosen(nodes, node), nodes.input(node, 0)
        case "Mul" | "Div":
            return nodes.non_constant_operand(node), None
        case _:
            return nodes.input(node, 0), None


def _masked(nodes: _Nodes, node: str) -> tuple[Operand, Operand]:
    """Return the scores and the mask that a node adds.

    The scores come from a product.
    """
    for scores, mask in ((0, 1), (1, 0)):
        value = nodes.input(node, scores)
        try:
            nodes.maker(value, "MatMul", "Mul", "Div", "Add")
        except _OtherForm:
            continue
        if value.shape == nodes.output(node).shape:
            return value, nodes.input(node, mask)
    raise _OtherForm


def _chosen(nodes: _Nodes, where: str) -> Operand:
    """Return the scores of a Where whose other choice is constant."""
    choices = [nodes.input(where, position) for position in (1, 2)]
    scores = [value for value in choices if value.role is Role.ACTIVATION]
    if len(scores) != 1:
        raise _OtherForm
    return scores[0]


def _split(nodes: _Nodes, split: str) -> _Group:
    """A split into a sequence whose parts are then taken out."""
    parts = nodes.readers(split)
    if not parts or any(nodes.type(part) != "SequenceAt" for part in parts):
        raise _OtherForm
    results = tuple(nodes.output(part) for part in parts)
    return _Group("Split", (nodes.input(split, 0),), (split, *parts), results, place=0)


_RECOGNISERS: Mapping[str, Callable[[_Nodes, str], _Group]] = {
    "Erf": _gelu,
    "InstanceNormalization": _group_norm,
    "Sigmoid": _swish,
    "Softmax": _attention,
    "SplitToSequence": _split,
    "Sqrt": _normalization,
    "Tanh": _gelu,
}
