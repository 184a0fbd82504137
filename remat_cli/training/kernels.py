"""Ops that a file holds as several nodes, and that training runs as one kernel, which keeps less for the backward.

Two writers take such ops apart. An exporter does where its operator set has none like it (`silu`, and below operator
set 20 `gelu`). A model does where its code spells the formula out (GPT-2's GELU, Llama's RMS norm); PyTorch then keeps
the values between. What the exporters of PyTorch 2.13 write for operator sets 16 to 23 is told from the other by the
order of its products.
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
    """Which ops training runs in one kernel, of those that a file may hold as several nodes."""

    WRITTEN = "written"  # none: the nodes as they stand
    ORIGINAL = "original"  # those that were one op before an exporter took them apart
    FUSED = "fused"  # those that the model spells out, too


@dataclass(frozen=True)
class FusedGraph:
    """A forward graph with one op in the place of each group.

    Attributes:
        graph: without the values within the groups.
        operators: one for each op.
        groups: how many groups there were, by the type of the op.
        nodes: how many nodes these had.
    """

    graph: Draft
    operators: Mapping[str, Operator]
    groups: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0


def with_kernels(graph: Draft, operators: Mapping[str, Operator], which: Kernels) -> FusedGraph:
    """Put one op in the place of each group of nodes that stands for it.

    A group is left as it is where one of its inner values is read from outside, or is a result of the graph.

    Args:
        graph: a forward pass.
        operators: one for each op.
        which: the groups that are put together.
    """
    nodes = _Nodes(graph, operators)
    groups: dict[str, _Group] = {}  # by the member in whose place the op runs
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
        type: of the op.
        inputs: its operands.
        members: names of the nodes.
        results: what the op makes.
        attributes: of the op.
        spelled_out: whether only models write these nodes, and no exporter.
        place: position of the member in whose place the op runs.
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
        """The op."""
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
    """The nodes are not those that are looked for."""


class _Nodes:
    """The nodes of a graph by what they read and make. What is looked up and not there raises `_OtherForm`."""

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
        """Return the node that makes a value, which is of one of these types."""
        node = self._maker.get(value.name)
        if node is None or self.type(node) not in types:
            raise _OtherForm
        return node

    def readers(self, node: str) -> tuple[str, ...]:
        """Return the nodes that read the first result of a node."""
        return tuple(self._readers.get(self.output(node).name, ()))

    def reader(self, node: str, *types: str) -> str:
        """Return the only node that reads the first result of a node, which is of one of these types."""
        readers = self.readers(node)
        if len(readers) != 1 or self.type(readers[0]) not in types:
            raise _OtherForm
        return readers[0]

    def passed_on(self, node: str, *types: str) -> tuple[str, ...]:
        """Return the nodes of these types through which the result of a node goes on, one after the other."""
        passed: list[str] = []
        while True:
            try:
                passed.append(self.reader(passed[-1] if passed else node, *types))
            except _OtherForm:
                return tuple(passed)

    def beside(self, node: str, value: Operand) -> Operand:
        """Return the other operand of a node with two, one of which is `value`."""
        first, second = self.input(node, 0), self.input(node, 1)
        if value.name not in (first.name, second.name):
            raise _OtherForm
        return second if first.name == value.name else first

    def beside_constant(self, node: str) -> Operand:
        """Return the other operand of a node with two, one of which is a constant."""
        operands = [self.input(node, position) for position in (0, 1)]
        others = [value for value in operands if value.role is not Role.CONSTANT]
        if len(others) != 1:
            raise _OtherForm
        return others[0]

    def are_closed(self, group: _Group) -> bool:
        """Tell whether no one outside a group needs what is within it."""
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
    """Return the group that is recognised by this node."""
    recognise = _RECOGNISERS.get(nodes.type(node))
    try:
        return None if recognise is None else recognise(nodes, node)
    except _OtherForm:
        return None


# --- The groups, each recognised by one of its nodes ------------------------------------------------------------------


def _swish(nodes: _Nodes, sigmoid: str) -> _Group:
    """x * sigmoid(x)."""
    x, product = nodes.input(sigmoid, 0), nodes.reader(sigmoid, "Mul")
    if nodes.beside(product, nodes.output(sigmoid)).name != x.name:
        raise _OtherForm
    return _Group("Swish", (x,), (sigmoid, product), (nodes.output(product),))


def _gelu(nodes: _Nodes, function: str) -> _Group:
    """Half of x * (1 + f(x)), where f is erf of a multiple of x, or tanh of a polynomial in x."""
    plus_one = nodes.reader(function, "Add")
    nodes.beside_constant(plus_one)
    x, products, spelled_out = _times_half_of_x(nodes, plus_one)
    argument = _factors(nodes, nodes.input(function, 0), x)
    result = nodes.output(products[-1])
    return _Group("Gelu", (x,), (*argument, function, plus_one, *products), (result,), spelled_out=spelled_out)


def _times_half_of_x(nodes: _Nodes, factor: str) -> tuple[Operand, tuple[str, ...], bool]:
    """Return x, the two products, and whether x itself is halved, as models write it."""
    first = nodes.reader(factor, "Mul")
    other = nodes.beside(first, nodes.output(factor))
    if other.role is Role.CONSTANT:
        second = nodes.reader(first, "Mul")
        return nodes.beside(second, nodes.output(first)), (first, second), False
    try:
        second = nodes.reader(first, "Mul")
        nodes.beside_constant(second)
        return other, (first, second), False
    except _OtherForm:
        half = nodes.maker(other, "Mul")
        return nodes.beside_constant(half), (half, first), True


def _factors(nodes: _Nodes, value: Operand, x: Operand) -> tuple[str, ...]:
    """Return the nodes that make `value` of x and constants alone."""
    found: dict[str, None] = {}
    pending = [value]
    while pending:
        operand = pending.pop()
        if operand.name == x.name or operand.role is Role.CONSTANT:
            continue
        node = nodes.maker(operand, "Mul", "Add", "Div", "Pow")
        found[node] = None
        if len(found) > _MOST_FACTORS:
            raise _OtherForm
        pending += [nodes.input(node, 0), nodes.input(node, 1)]
    return tuple(found)


def _normalization(nodes: _Nodes, root: str) -> _Group:
    """Layer norm, or the norm by the root mean square; the last dimensions are normalized, then scaled."""
    variance = nodes.maker(nodes.beside_constant(nodes.maker(nodes.input(root, 0), "Add")), "ReduceMean")
    plus_epsilon = nodes.maker(nodes.input(root, 0), "Add")
    square = nodes.maker(nodes.input(variance, 0), "Pow", "Mul")
    centred = nodes.input(square, 0)
    if nodes.type(square) == "Mul" and nodes.beside(square, centred).name != centred.name:
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
    """Return x and the nodes that take its mean from it."""
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
    if nodes.beside(quotient, divisor).name != value.name:
        raise _OtherForm
    return tuple(dict.fromkeys((first, quotient)))


def _affine(nodes: _Nodes, node: str, most: int) -> tuple[tuple[Operand, ...], tuple[str, ...]]:
    """Return the weights with which the result of `node` is scaled, and shifted, and the nodes that do so."""
    weights: list[Operand] = []
    members: list[str] = []
    for type_ in ("Mul", "Add")[:most]:
        casts = nodes.passed_on((node, *members)[-1], *_CASTS)
        last = (node, *members, *casts)[-1]
        try:
            applied = nodes.reader(last, type_)
            weight = nodes.beside(applied, nodes.output(last))
        except _OtherForm:
            break
        if weight.role is not Role.PARAMETER:
            break
        weights.append(weight)
        members += [*casts, applied]
    return tuple(weights), tuple(members)


def _first_reduced(whole: tuple[int, ...], reduced: tuple[int, ...]) -> int:
    """Return the first of the last dimensions, over which was reduced."""
    if len(whole) != len(reduced):
        raise _OtherForm
    kept = next((axis for axis, size in enumerate(reduced) if size != whole[axis]), len(whole))
    if set(reduced[kept:]) != {1}:
        raise _OtherForm
    return kept


def _group_norm(nodes: _Nodes, norm: str) -> _Group:
    """Each group of channels is normalized like one channel, then the channels are scaled and shifted."""
    cut, joined = nodes.maker(nodes.input(norm, 0), "Reshape"), nodes.reader(norm, "Reshape")
    scaled = nodes.reader(joined, "Mul")
    shifted = nodes.reader(scaled, "Add")
    x = nodes.input(cut, 0)
    weights = nodes.beside(scaled, nodes.output(joined)), nodes.beside(shifted, nodes.output(scaled))
    if nodes.output(joined).shape != x.shape:
        raise _OtherForm
    _, groups, *_ = (*_shape(nodes.output(cut)), 1, 1)
    members = (cut, norm, joined, scaled, shifted)
    return _Group("GroupNormalization", (x, *weights), members, (nodes.output(shifted),), {"num_groups": groups})


def _attention(nodes: _Nodes, softmax: str) -> _Group:
    """softmax(q k + mask) v; an exporter scales both q and k, a model one of them, or their product."""
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
        q, k = (nodes.beside_constant(node) for node in scaling)
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
    """Return the nodes that put zeros where the softmax is of nothing."""
    readers = sorted(nodes.readers(softmax), key=nodes.type)
    return tuple(readers) if [nodes.type(node) for node in readers] == ["IsNaN", "Where"] else ()


def _scores(nodes: _Nodes, value: Operand) -> tuple[str, Operand | None, tuple[str, ...]]:
    """Return the product of queries and keys, the mask, and the nodes between the product and `value`."""
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
    """Return the scores that a node reads, and the mask with which it covers them."""
    match nodes.type(node):
        case "Add":
            return _masked(nodes, node)
        case "Where":
            return _chosen(nodes, node), nodes.input(node, 0)
        case "Mul" | "Div":
            return nodes.beside_constant(node), None
        case _:
            return nodes.input(node, 0), None


def _masked(nodes: _Nodes, node: str) -> tuple[Operand, Operand]:
    """Return the scores and the mask that a node adds: the scores are what takes products."""
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
    """Return the scores where the other choice is a constant."""
    choices = [nodes.input(where, position) for position in (1, 2)]
    scores = [value for value in choices if value.role is Role.ACTIVATION]
    if len(scores) != 1:
        raise _OtherForm
    return scores[0]


def _split(nodes: _Nodes, split: str) -> _Group:
    """A sequence of parts, each of which is then taken out of it."""
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
