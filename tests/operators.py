"""Forward graphs with their operators for tests, as a reader of a framework's file would give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from remat_cli.core.graph import Graph, Kind, Op, Tensor, build_graph
from remat_cli.core.operators import AttributeValue, Operand, Operator, Role

_ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "bool": 1}


def value(name: str, *shape: int, role: Role = Role.ACTIVATION, dtype: str = "float32") -> Operand:
    """Return a value of this shape."""
    return Operand(name, role, shape, dtype, prod(shape) * _ELEMENT_BYTES[dtype])


def weight(name: str, *shape: int) -> Operand:
    """Return a trainable weight."""
    return value(name, *shape, role=Role.PARAMETER)


def constant(name: str, *shape: int, dtype: str = "float32") -> Operand:
    """Return a constant."""
    return value(name, *shape, role=Role.CONSTANT, dtype=dtype)


class Model:
    """Builds a forward graph op by op; `y = model.add("Relu", [x], y)` returns the first output."""

    def __init__(self) -> None:
        self.operators: dict[str, Operator] = {}
        self._tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []

    def add(
        self,
        type_: str,
        inputs: Sequence[Operand | None],
        *outputs: Operand | None,
        view_of: Operand | None = None,
        opset: int = 20,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> Operand:
        """Add an op named after its first output; with `view_of`, its outputs share that value's storage."""
        name = next(f"{type_}.{output.name}" for output in outputs if output is not None)
        activations = [each for each in inputs if each is not None and each.role is Role.ACTIVATION]
        made = [each for each in outputs if each is not None]
        for each in activations:
            self._tensors.setdefault(each.name, Tensor(each.name, each.bytes, each.shape, each.dtype))
        for each in made:
            base = None if view_of is None else view_of.name
            self._tensors[each.name] = Tensor(each.name, 0 if base else each.bytes, each.shape, each.dtype, base)
        names = tuple(dict.fromkeys(each.name for each in activations))
        self._ops.append(Op(name, type_, names, tuple(each.name for each in made), time=0))
        self.operators[name] = Operator(type_, tuple(inputs), outputs, attributes or {}, opset)
        return made[0]

    def graph(self, *outputs: Operand, kind: Kind = Kind.FORWARD) -> Graph:
        """Return the graph; without `outputs`, they are the values that nobody reads."""
        return build_graph(
            name="test",
            kind=kind,
            time_unit="unit",
            resident_bytes=0,
            tensors=self._tensors.values(),
            ops=self._ops,
            outputs=[each.name for each in outputs] or None,
        )
