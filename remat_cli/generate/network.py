"""A builder of a network's forward pass, with PyTorch's views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from remat_cli.core.graph import Kind, Op, Tensor, build_graph
from remat_cli.core.operators import AttributeValue, Operand, Operator, Role
from remat_cli.generate.generator import Generated

Shape = tuple[int, ...]

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "int64": 8}
# The first operator set of ONNX with the present form of all used operators.
_OPSET = 23


class NetworkBuilder:
    """Adds operators to a forward pass.

    Values have names; an op with one result has the result's name.
    """

    def __init__(self, dtype: str = "float32") -> None:
        """Begin without ops.

        Weights and results have this element type.
        """
        self._dtype = dtype
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._operators: dict[str, Operator] = {}
        self._operands: dict[str, Operand] = {}

    def input(self, name: str, shape: Shape, dtype: str | None = None) -> str:
        """Add a graph input."""
        return self._value(name, shape, dtype).name

    def weight(self, name: str, *shape: int) -> str:
        """Add a trainable parameter, a resident value."""
        return self._operand(name, Role.PARAMETER, shape).name

    def constant(self, name: str, *shape: int) -> str:
        """Add a resident value that is not trained."""
        return self._operand(name, Role.CONSTANT, shape).name

    def op(self, type_: str, name: str, inputs: Sequence[str], shape: Shape, **attributes: AttributeValue) -> str:
        """Add an op with one result of this shape."""
        result = self._value(name, shape)
        self._add(type_, name, inputs, (result,), attributes)
        return name

    def view(self, type_: str, name: str, of: str, shape: Shape) -> str:
        """Add an op whose only result is a view of its input."""
        return self.views(type_, name, of, (name,), shape)[0]

    def views(self, type_: str, name: str, of: str, results: Sequence[str], shape: Shape) -> Sequence[str]:
        """Add an op, such as a split, whose results share the input's storage.

        Args:
            type_: kind of the op.
            name: name of the op.
            of: the input.
            results: names of the results.
            shape: shape of each result.
        """
        views = tuple(self._value(result, shape, view_of=of) for result in results)
        self._add(type_, name, (of,), views, {})
        return results

    def generated(self, name: str, output: str) -> Generated:
        """Return the built graph, with this name and output."""
        stored = [value for value in self._operands.values() if value.role is not Role.ACTIVATION]
        graph = build_graph(
            name=name,
            kind=Kind.FORWARD,
            time_unit="flop",
            resident_bytes=sum(value.bytes for value in stored),
            tensors=self._tensors,
            ops=self._ops,
            outputs=(output,),
        )
        parameters = tuple(value for value in stored if value.role is Role.PARAMETER)
        return Generated(graph, self._operators, parameters)

    def _operand(self, name: str, role: Role, shape: Shape, dtype: str | None = None) -> Operand:
        dtype = dtype or self._dtype
        operand = Operand(name, role, shape, dtype, prod(shape) * _ELEMENT_BYTES[dtype])
        self._operands[name] = operand
        return operand

    def _value(self, name: str, shape: Shape, dtype: str | None = None, view_of: str | None = None) -> Operand:
        operand = self._operand(name, Role.ACTIVATION, shape, dtype)
        self._tensors.append(Tensor(name, 0 if view_of is not None else operand.bytes, shape, operand.dtype, view_of))
        return operand

    def _add(
        self,
        type_: str,
        name: str,
        inputs: Sequence[str],
        results: tuple[Operand, ...],
        attributes: Mapping[str, AttributeValue],
    ) -> None:
        operands = tuple(self._operands[each] for each in inputs)
        self._operators[name] = Operator(type_, operands, results, attributes, _OPSET)
        read = dict.fromkeys(value.name for value in operands if value.role is Role.ACTIVATION)
        self._ops.append(Op(name, type_, tuple(read), tuple(value.name for value in results), time=0))
