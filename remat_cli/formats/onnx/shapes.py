"""The type of every value, by one walk over the nodes.

The walk infers shapes and folds shape arithmetic at the same time. Each node is inferred alone once its inputs are
known, and small constants are computed at once. So one round is enough where inference of a whole model needs several,
and a fault is found at its node. Shapes in the file, between inputs and outputs, are used only if inference fails: they
are often stale after binding sizes or editing the file.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from remat_cli.errors import GraphError, RematError, UsageError
from remat_cli.formats.onnx import classical
from remat_cli.formats.onnx.attributes import integer_attribute
from remat_cli.formats.onnx.contrib import standard_form
from remat_cli.formats.onnx.contrib_results import result_types
from remat_cli.formats.onnx.dtypes import BOOL, ELEMENT_TYPES, FLOAT32, INT64, STRING, ElementType
from remat_cli.formats.onnx.estimates import (
    AFTER_ESTIMATE,
    FROM_BODY,
    NO_SHAPE_RULE,
    NO_TENSOR,
    STRINGS,
    UNKNOWN_OP,
    largest_read,
    reads_guess,
    sized_as,
    sized_like,
    unsized,
)
from remat_cli.formats.onnx.expansion import NodeNames, expanded
from remat_cli.formats.onnx.folding import can_fold, compute, no_elements
from remat_cli.formats.onnx.inference import NEWEST, OperatorSets, check_form, infer
from remat_cli.formats.onnx.randomness import repeats_itself
from remat_cli.formats.onnx.sequences import SEQUENCE_RULES, mapped
from remat_cli.formats.onnx.sized_graph import SizedGraph, SizedNode
from remat_cli.formats.onnx.stored_values import constant_value, stored_values, unopened_names, unread_bytes
from remat_cli.formats.onnx.structure import Node, did_you_mean, executable_nodes
from remat_cli.formats.onnx.subgraphs import CONTROL_FLOW, NO_BODIES, ControlFlow, body_inputs, control_flow
from remat_cli.formats.onnx.values import (
    Misfit,
    Origin,
    TensorType,
    Value,
    Values,
    ValueType,
    checked,
    shape_text,
    value_type,
)
from remat_cli.settings import Setting
from remat_cli.units import first_of, format_names

if TYPE_CHECKING:
    import onnx
    from onnx.defs import OpSchema

    from remat_cli.formats.onnx.values import Array

_SHOWN = 40
# stored values in other files that a message names
_NAMED = 5
# Maximum dry runs to find further unknown shapes.
_TRIALS = 20
# replaces an unknown size
_EXAMPLE_SIZE = 8


@dataclass(frozen=True)
class _Scope:
    """A graph during the walk.

    Attributes:
        values: known values, here and in the surrounding graphs.
        declared: types in the file for values between inputs and outputs.
    """

    values: ChainMap[str, Value]
    declared: Mapping[str, onnx.TypeProto]


@dataclass
class ShapeInference:
    """The walk over a model and its bodies, with its findings.

    Attributes:
        opsets: the operator sets of the file.
        dims: values of the inputs' symbols.
        value_shapes: shapes that the user gives, by value name; for a sequence, the shape of all its elements taken
            together.
        weights: names read at positions of trained weights.
        overridable: initializers of the main graph that the caller may replace.
        without_kernel: ops of ONNX's own set that the runtime expands into their defining nodes.
        estimates: reason of each estimated op, by op name.
        is_sorted: whether the nodes of the file were in an executable order.
        names: names of all values and nodes, including expanded nodes.
        data: elements of the main graph's inputs that are given a value.
        left_out: branches that do not suit the sizes, with the reasons.
        constant_weights: names of Constant nodes' values that count as weights.
    """

    opsets: OperatorSets
    dims: Mapping[str, int]
    value_shapes: Mapping[str, tuple[int, ...]]
    weights: frozenset[str]
    overridable: frozenset[str]
    without_kernel: Collection[str] = ()
    estimates: dict[str, str] = field(default_factory=dict)
    is_sorted: bool = True
    names: NodeNames = field(default_factory=NodeNames)
    data: Mapping[str, Array] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    constant_weights: frozenset[str] = frozenset()
    _tries_examples: bool = False
    _elsewhere: frozenset[str] = frozenset()
    _unsized: dict[str, str] = field(default_factory=dict)
    _known_dims: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _inputs: frozenset[str] = frozenset()
    _reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _counts: set[str] = field(default_factory=set)

    def size(
        self, graph: onnx.GraphProto, inputs: Mapping[str, ValueType], data: Mapping[str, Array] | None = None
    ) -> SizedGraph:
        """Return the main graph with the type of every value.

        Args:
            graph: the main graph.
            inputs: types of its inputs, by name.
            data: elements of the inputs that are given a value.

        Raises:
            GraphError: there is a structural fault, or a node does not match its inputs.
            UsageError: the shape of a value cannot be inferred; a given shape belongs to no value of the graph, or
                contradicts inference.
        """
        self.names.take(graph)
        self.data, self._inputs = data or {}, frozenset(inputs)
        self._elsewhere = unopened_names(graph)
        sized = self._size(graph, inputs, ChainMap(), path="")
        for name in self.value_shapes:
            if name not in self._seen:
                raise UsageError(
                    f"a shape is given for {name!r}, and the model has no such value",
                    hint=did_you_mean(name, self._seen),
                )
        if self._unsized:
            raise self._unknown_shapes(graph, inputs)
        return sized

    def _unknown_shapes(self, graph: onnx.GraphProto, inputs: Mapping[str, ValueType]) -> UsageError:
        """Return the error that asks for all unknown shapes at once.

        It includes shapes that become unknown only once the first are given.
        """
        places: dict[str, str] = {}
        examples: dict[str, tuple[int, ...]] = {}
        unopened: set[str] = set()
        trial = self
        for _ in range(_TRIALS):
            new = {name: where for name, where in trial._unsized.items() if name not in places}
            if not new:
                break
            for name, where in new.items():
                dims = trial._known_dims.get(name)
                unopened |= trial._unopened_behind(name)
                places[name] = where if dims is not None else f"{where}; its rank is not known either"
                examples[name] = tuple(_EXAMPLE_SIZE if dim is None else dim for dim in dims or (None,))
            trial = self._given(examples)
            try:
                trial.names.take(graph)
                trial._size(graph, inputs, ChainMap(), path="")
            except RematError:  # the example shapes contradict each other, so later shapes stay unknown
                break
        shown = [f"{name!r} ({where})" for name, where in places.items()]
        reason = "depend on data and are not known" if not unopened else "are not known"
        kept = (
            f"; files of external data are not opened, and hold {format_names(sorted(unopened), _NAMED)}"
            if unopened
            else ""
        )
        given = dict(list(examples.items())[:_SHOWN])
        return UsageError(
            f"the shapes of these values {reason}: {first_of(shown, _SHOWN)}{kept}",
            hint=(
                *(["keep tensors under 1 KB in the model file when you save it; or "] if unopened else []),
                "give them, such as ",
                Setting("value_shapes", given),
                f", where each {_EXAMPLE_SIZE} is an example",
            ),
        )

    def _given(self, shapes: Mapping[str, tuple[int, ...]]) -> ShapeInference:
        """Return a fresh inference with more given shapes."""
        return replace(
            self,
            value_shapes={**self.value_shapes, **shapes},
            estimates={},
            names=NodeNames(),
            _unsized={},
            left_out={},
            _known_dims={},
            _seen=set(),
            _reads={},
            _counts=set(),
            _tries_examples=True,
        )

    def _unopened_behind(self, name: str) -> set[str]:
        """Return small stored values in other files that a shape depends on."""
        names: set[str] = set()
        seen: set[str] = set()
        open_names = list(self._reads.get(name, ()))
        while open_names:
            one = open_names.pop()
            if one in self._elsewhere:
                names.add(one)
            elif one not in seen and one in self._counts:
                open_names += self._reads.get(one, ())
            seen.add(one)
        return names

    def _size(
        self, graph: onnx.GraphProto, inputs: Mapping[str, ValueType], outer: ChainMap[str, Value], path: str
    ) -> SizedGraph:
        nodes, is_sorted = executable_nodes(graph, outer, path)
        self.is_sorted &= is_sorted
        stored = stored_values(graph, self.weights, () if path else self.overridable)
        known = {} if path else self.data
        fed = {name: Value(kind, Origin.INPUT, data=known.get(name)) for name, kind in inputs.items()}
        scope = _Scope(
            values=outer.new_child({**fed, **stored.values}),
            declared={value.name: value.type for value in (*graph.output, *graph.value_info)},
        )
        visited = [pair for node in nodes for pair in self._visited(node, scope)]
        self._seen.update(scope.values.maps[0])
        return SizedGraph(
            values=scope.values,
            nodes=tuple(sized for _, sized in visited if sized is not None),
            inputs=tuple(inputs),
            outputs=tuple(value.name for value in graph.output),
            stored=tuple(stored.values),
            stored_bytes=stored.bytes,
            folded=tuple(node for node, sized in visited if sized is None),
        )

    def _visited(self, node: Node, scope: _Scope) -> Iterator[tuple[Node, SizedNode | None]]:
        """Visit a node, or its expansion; yield each with its visit's result."""
        parts: tuple[Node, ...] = (node,)
        if _is_own(node.proto, *self.without_kernel) and self.without_kernel:
            schema = self.opsets.schema(node.proto)
            if schema is not None:
                check_form(node, schema)
                parts = expanded(node, schema, scope.values, self.opsets.version(""), self.names)
        if parts == (node,):
            yield node, self._visit(node, scope)
            return
        for part in parts:
            yield from self._visited(part, scope)

    def _visit(self, node: Node, scope: _Scope) -> SizedNode | None:
        """Add a node's results to the scope.

        Return None if they were computed, so that the node is no op.
        """
        proto, values = node.proto, scope.values
        if _is_own(proto, "Constant") and node.outputs:
            values[node.outputs[0]] = constant_value(proto, self.constant_weights)
            return None
        schema = self.opsets.schema(proto)
        inferred, flow = self._inferred(node, schema, scope)
        results = {name: self._settled(node, name, inferred.get(name), scope) for name in node.outputs}
        data = self._computed(node, schema, results, values)
        if data is not None:
            results = {name: _with_data(value, data[name]) for name, value in results.items()}
            if not any(_changes(values[name]) for name in _read_for_data(proto)):
                values.update({name: replace(value, origin=Origin.FOLDED) for name, value in results.items()})
                return None
        self._note(node, results, values)
        self._reads.update(dict.fromkeys(results, node.reads))
        self._counts.update(name for name, value in results.items() if value.type.element == INT64)
        repeats = repeats_itself(proto, values, self.opsets.version(proto.domain))
        values.update(results)
        plain = not flow.bodies and not _is_own(proto, "Optional") and all(map(_is_plain, results.values()))
        unread = sum(map(unread_bytes, flow.left_out))
        return SizedNode(node, flow.bodies, recomputable=repeats and plain, unread_bytes=unread)

    def _inferred(
        self, node: Node, schema: OpSchema | None, scope: _Scope
    ) -> tuple[Mapping[str, ValueType | None], ControlFlow]:
        """Infer the types of a node's outputs from its inputs, and its bodies."""
        proto, values = node.proto, scope.values
        if schema is not None:
            check_form(node, schema)
        if _is_own(proto, *CONTROL_FLOW):
            flow = self._control_flow(node, values)
            return dict(zip(proto.output, flow.types, strict=False)), flow
        if _is_own(proto, *SEQUENCE_RULES):
            inputs = [values[name] if name else None for name in proto.input]
            return {name: SEQUENCE_RULES[proto.op_type](proto, inputs) for name in node.outputs}, NO_BODIES
        if schema is None:
            return self._inferred_without_schema(node, values), NO_BODIES
        return self._inferred_by_onnx(node, schema, values), NO_BODIES

    def _control_flow(self, node: Node, values: ChainMap[str, Value]) -> ControlFlow:
        self.estimates[node.name] = FROM_BODY

        def size_body(body: onnx.GraphProto, types: Sequence[ValueType]) -> SizedGraph:
            before = {name: dict(getattr(self, name)) for name in _FOUND}
            try:
                return self._size(body, body_inputs(body, types, node.name), values, path=f"{node.name}/")
            except Misfit:
                for name, earlier in before.items():  # a branch that cannot run leaves no trace
                    setattr(self, name, earlier)
                raise

        flow = control_flow(node, values, self.opsets.version(""), size_body)
        for branch, reason in flow.misfits.items():
            values_to_give = " ".join(f"--value {name}=N" for name in self._inputs_behind(node.proto.input[0]))
            self.left_out[f"the {branch} of op {node.name!r}"] = f"{reason}; {values_to_give} says which branch runs"
        return flow

    def _inputs_behind(self, name: str) -> list[str]:
        """Return a few inputs of the main graph that a value depends on."""
        inputs: dict[str, None] = {}
        open_names = [name]
        while open_names and len(inputs) < _MOST_BEHIND:
            one = open_names.pop()
            if one not in inputs:
                inputs[one] = None
                open_names += self._reads.get(one, ())
        return [name for name in inputs if name in self._inputs] or ["NAME"]

    def _inferred_without_schema(self, node: Node, values: ChainMap[str, Value]) -> Mapping[str, ValueType | None]:
        """Return the output types of a node that onnx does not define."""
        if not node.proto.output:
            return {}
        standard = standard_form(node)
        # The standard form follows the newest definitions, whatever operator set the file imports.
        schema = None if standard is None else NEWEST.schema(standard.proto)
        types: dict[str, ValueType | None] = {}
        if standard is not None and schema is not None:
            types |= self._inferred_by_onnx(standard, schema, values, NEWEST)
        else:
            results = result_types(node.proto, [values.get(name) for name in node.proto.input]) or ()
            for name, kind in zip(node.proto.output, results, strict=False):
                types[name] = kind and checked(kind, f"{name!r}, which op {node.name!r} produces,")
        if any(types.get(name) is None for name in node.outputs):
            self.estimates[node.name] = UNKNOWN_OP
        return types

    def _inferred_by_onnx(
        self, node: Node, schema: OpSchema, values: ChainMap[str, Value], opsets: OperatorSets | None = None
    ) -> Mapping[str, ValueType | None]:
        try:
            protos = infer(node, schema, values, opsets or self.opsets)
        except GraphError:
            retyped = self._inferred_with_other_elements(node, schema, values, opsets or self.opsets)
            if retyped is None and not reads_guess(node, values):
                raise
            if retyped is None:
                self.estimates[node.name] = AFTER_ESTIMATE
                return {}
            protos = retyped
        types: dict[str, ValueType | None] = {}
        for name in node.outputs:
            if name in protos and protos[name].WhichOneof("value") is not None:
                types[name] = value_type(protos[name], {}, f"{name!r}, which op {node.name!r} produces,")
                if _is_own(node.proto, "SequenceMap"):
                    types[name] = mapped(types[name], values[node.proto.input[0]].type)
                self._remember_dims(name, protos[name])
                if types[name] is None:
                    self.estimates[node.name] = NO_TENSOR
        if _is_own(node.proto, "StringNormalizer"):
            # It may drop stop words, but adds nothing.
            return dict.fromkeys(node.outputs, values[node.proto.input[0]].type)
        if node.proto.domain == classical.DOMAIN:
            inputs = [values[name].type for name in node.proto.input]
            return classical.sized_results(node.proto, node.name, types, inputs)
        return types

    def _inferred_with_other_elements(
        self, node: Node, schema: OpSchema, values: ChainMap[str, Value], opsets: OperatorSets
    ) -> dict[str, onnx.TypeProto] | None:
        """Return the output types with other elements of assumed inputs.

        Inputs of an assumed type get the first that the op takes; None if it takes none.
        """
        assumed = [name for name in node.reads if values[name].assumed]
        for name, element in product(assumed, _LIKELY_FIRST):
            other = values.new_child({name: _with_element(values[name], element)})
            try:
                protos = infer(node, schema, other, opsets)
            except GraphError:
                continue
            self._retype(name, element, values)
            return protos
        return None

    def _retype(self, name: str, element: ElementType, values: ChainMap[str, Value]) -> None:
        """Give a value, and those its type follows from, other elements."""
        before = values[name].type.element
        open_names = [name]
        while open_names:
            one = open_names.pop()
            value = values.get(one)
            if value is not None and value.assumed and value.type.element == before:
                home = next(scope for scope in values.maps if one in scope)
                home[one] = _with_element(value, element)
                open_names += self._reads.get(one, ())

    def _settled(self, node: Node, name: str, inferred: ValueType | None, scope: _Scope) -> Value:
        """Return an output: inferred, given, declared or estimated.

        The first known one of these counts.
        """
        where = f"{name!r}, which op {node.name!r} produces,"
        given = self.value_shapes.get(name)
        from_guess = reads_guess(node, scope.values)
        assumed = inferred is not None and any(
            scope.values[read].assumed and scope.values[read].type.element == inferred.element for read in node.reads
        )
        if inferred is not None and inferred.is_sized and (given is None or not from_guess):
            _check_agrees(name, given, inferred)
            return Value(inferred, Origin.PRODUCED, guessed=from_guess, assumed=assumed)
        declared = value_type(scope.declared[name], self.dims, where) if name in scope.declared else None
        if name in scope.declared:
            self._remember_dims(name, scope.declared[name])
        like = largest_read(node, scope.values)
        template = inferred or declared or like or _first_read(node, scope.values) or TensorType(FLOAT32, None)
        assumed |= inferred is None and declared is None
        shape = given if given is not None or declared is None else declared.shape
        if shape is not None:
            is_example = self._tries_examples and given is not None
            return Value(sized_as(template, shape, where), Origin.PRODUCED, guessed=is_example, assumed=assumed)
        if self._tries_examples and inferred is not None:
            return Value(unsized(template), Origin.PRODUCED, assumed=assumed)
        if node.proto.domain == classical.DOMAIN and not from_guess:
            self.estimates.setdefault(node.name, NO_SHAPE_RULE)
        may_guess = from_guess or self.estimates.get(node.name) in (UNKNOWN_OP, NO_TENSOR, NO_SHAPE_RULE)
        if like is None or not may_guess:
            return Value(unsized(template), Origin.PRODUCED, assumed=assumed)
        self.estimates.setdefault(node.name, AFTER_ESTIMATE)
        return Value(sized_like(template, like), Origin.PRODUCED, guessed=True, assumed=assumed)

    def _remember_dims(self, name: str, proto: onnx.TypeProto) -> None:
        """Remember a value's rank and sizes, as far as known.

        Inferred sizes come before those in the file.
        """
        if proto.tensor_type.HasField("shape"):
            dims = (dim.dim_value if dim.HasField("dim_value") else None for dim in proto.tensor_type.shape.dim)
            self._known_dims.setdefault(name, tuple(dims))

    def _computed(
        self, node: Node, schema: OpSchema | None, results: Mapping[str, Value], values: Values
    ) -> Mapping[str, Array] | None:
        """Return the outputs' elements if they are known while reading."""
        proto = node.proto
        if schema is None or not _is_own(proto):
            return None
        if proto.op_type in _SHAPE_READERS:
            return _shape_data(proto, values)
        if not can_fold(proto.op_type, (value.type for value in results.values())):
            return None
        data = {name: values[name].data for name in proto.input if name}
        if proto.op_type == "CastLike" and data[proto.input[1]] is None:
            data[proto.input[1]] = no_elements(values[proto.input[1]].type.element)
        known = {name: array for name, array in data.items() if array is not None}
        return compute(proto, self.opsets.versions, known) if len(known) == len(data) else None

    def _note(self, node: Node, results: Mapping[str, Value], values: Values) -> None:
        """Remember the unknowns of an op's outputs."""
        for name, value in results.items():
            if value.type.element.is_string:
                self.estimates.setdefault(node.name, STRINGS)
            if not value.type.is_sized and all(values[read].type.is_sized for read in node.reads):
                self._unsized[name] = f"op {node.name!r}, {node.proto.op_type}"


# element types in the order in which they are tried for a value of unknown type
_LIKELY_FIRST = tuple(dict.fromkeys((INT64, BOOL, STRING, *ELEMENT_TYPES.values())))
_SHAPE_READERS = ("Shape", "Size")
# The number of values to inspect in the search for the deciding inputs.
_MOST_BEHIND = 100
# findings of a walk, reported at its end
_FOUND = ("estimates", "left_out", "_unsized", "_known_dims")


def _is_own(node: onnx.NodeProto, *op_types: str) -> bool:
    """Whether a node is one of these ops of ONNX's own set.

    Without names, any op of the set counts.
    """
    return node.domain == "" and (not op_types or node.op_type in op_types)


def _read_for_data(node: onnx.NodeProto) -> list[str]:
    """Return the inputs whose values matter, besides their types."""
    if _is_own(node, *_SHAPE_READERS):
        return []
    return [name for name in (node.input[:1] if _is_own(node, "CastLike") else node.input) if name]


def _changes(value: Value) -> bool:
    """Whether a value can differ when the model runs or is trained."""
    return value.is_activation or value.trainable or value.overridable


def _first_read(node: Node, values: Values) -> ValueType | None:
    return values[node.reads[0]].type if node.reads else None


def _with_element(value: Value, element: ElementType) -> Value:
    return replace(value, type=replace(value.type, element=element))


def _is_plain(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.element.is_string


def _check_agrees(name: str, given: tuple[int, ...] | None, inferred: ValueType) -> None:
    if given is not None and inferred.shape not in (None, given):
        raise UsageError(
            f"{name!r} is given the shape {shape_text(given)}, but it is {shape_text(inferred.shape or ())}",
            hint="leave it out: this shape follows from the inputs",
        )


def _with_data(value: Value, data: Array) -> Value:
    return replace(value, type=TensorType(value.type.element, tuple(data.shape)), data=data)


def _shape_data(node: onnx.NodeProto, values: Values) -> Mapping[str, Array] | None:
    """Return the result of Shape or Size."""
    kind = values[node.input[0]].type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.array(kind.elements, dtype=np.int64)}
    start, end = integer_attribute(node, "start", 0), integer_attribute(node, "end", len(kind.shape))
    return {node.output[0]: np.array(kind.shape[start:end], dtype=np.int64)}
