"""Marks in a forward graph for its backward.

Each op gets the tensors that it saves, and its inputs that receive a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remat_cli.core.graph import Draft, Op, Tensor, draft_graph
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.training.copies import copied_operands
from remat_cli.training.names import Names
from remat_cli.training.saved import Gradients, Saved, gradients_of, no_gradients, saved_for_backward
from remat_cli.training.statistics import Statistic

# Stands for several weights, or for a weight of several dimensions.
_MORE = "*"


def is_differentiable(dtype: str | None) -> bool:
    """Return whether values of an element type can have a gradient.

    An unknown type is taken to be a float.
    """
    return dtype is None or dtype.startswith(("float", "bfloat", "double", "complex"))


def annotate_saves(graph: Draft, operators: Mapping[str, Operator]) -> tuple[Draft, tuple[str, ...]]:
    """Return a graph with saved tensors marked, and guessed ops' names.

    Every op has `saves` and `grad_inputs`.

    A tensor has a gradient if it depends on a trainable parameter and an output of the graph depends on it, in both
    cases through differentiable floats. An op with such an output saves tensors by the table of `saved.py`. Values that
    only its backward reads (indices, masks, statistics) become outputs of the op. All other ops save nothing. The
    backward of an unknown operator is assumed to read all inputs and outputs: a safe guess.

    Args:
        graph: a forward pass.
        operators: an operator for each op.
    """
    waves = _waves(graph, operators)
    gradients = {name: (no_gradients if name in waves else gradients_of)(operators[name]) for name in graph.op}
    copies = copied_operands(graph, operators)
    with_gradient = _tensors_with_gradient(graph, operators, gradients)
    names = Names(graph.tensors)
    ops: list[Op] = []
    statistics: list[Tensor] = []
    guessed: list[str] = []
    for op in graph.ops:
        operator, rule = operators[op.name], gradients[op.name]
        if not any(value.name in with_gradient for value in _results(operator, rule)):
            ops.append(op.edited(saves=(), grad_inputs=()))
            continue
        needed = _needed(operator, rule, with_gradient)
        saved = _with_copies(saved_for_backward(operator, rule, needed.positions), copies.get(op.name, {}))
        new_statistics = _statistics(op, saved, names)
        statistics += new_statistics
        new_names = tuple(tensor.name for tensor in new_statistics)
        own = {*op.inputs, *op.outputs}  # parameters and constants are operands, but no tensors of the graph
        kept = tuple(value.name for value in saved.operands if value.name in own)
        ops.append(
            op.edited(outputs=(*op.outputs, *new_names), saves=(*kept, *new_names), grad_inputs=needed.activations)
        )
        if not rule.known:
            guessed.append(op.name)
    annotated = draft_graph(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        tensors=(*graph.tensors.values(), *statistics),
        ops=ops,
        outputs=graph.outputs,
    )
    return annotated, tuple(guessed)


def trainable_parameters(operators: Mapping[str, Operator], parameters: Iterable[Operand]) -> tuple[Operand, ...]:
    """Return parameters that operators read with a gradient.

    Running means and variances of batch normalisation are not trained, though they are weights in the file.
    """
    trained = {
        operand.name
        for operator in operators.values()
        for operand, reads in zip(operator.inputs, gradients_of(operator).reads, strict=True)
        if operand is not None and reads is not None and operand.role is Role.PARAMETER
    }
    return tuple(parameter for parameter in parameters if parameter.name in trained)


def needed_gradients(operator: Operator, rule: Gradients, with_gradient: set[str]) -> frozenset[int]:
    """Return the positions of operands whose gradient is needed.

    These are parameters, and activations with a gradient.

    Args:
        operator: the forward operator.
        rule: result of `gradients_of` for the operator.
        with_gradient: names of the activations that have a gradient.
    """
    return _needed(operator, rule, with_gradient).positions


def _waves(graph: Draft, operators: Mapping[str, Operator]) -> set[str]:
    """Return sines and cosines of frequencies stored as weights.

    Rotary and sinusoidal embeddings have a table of frequencies with one dimension. It is not trained: the argument of
    such a sine depends on no other weight.
    """
    waves: set[str] = set()
    depends_on: dict[str, str] = {}  # by activation: its only weight, none, or more
    for op in graph.ops:
        operator = operators[op.name]
        weights = {_weight_of(value, depends_on) for value in operator.inputs if value is not None} - {""}
        weight = _MORE if len(weights) > 1 else weights.pop() if weights else ""
        if operator.type in ("Sin", "Cos") and weight != _MORE:
            waves.add(op.name)
            weight = ""
        depends_on.update(dict.fromkeys(op.outputs, weight))
    return waves


def _weight_of(value: Operand, depends_on: Mapping[str, str]) -> str:
    if value.role is Role.PARAMETER:
        is_vector = value.shape is not None and value.elements == max(value.shape, default=1)
        return value.name if is_vector else _MORE
    return depends_on.get(value.name, "")


def _with_copies(saved: Saved, copies: Mapping[str, Statistic]) -> Saved:
    """Return saved values with copies in place of their operands."""
    kept = (copies[value.name] for value in saved.operands if value.name in copies)
    operands = tuple(value for value in saved.operands if value.name not in copies)
    return Saved(operands, (*saved.statistics, *kept))


@dataclass(frozen=True, slots=True)
class _Needed:
    """Operands whose gradient is needed: positions and activations' names."""

    positions: frozenset[int]
    activations: tuple[str, ...]


def _needed(operator: Operator, rule: Gradients, with_gradient: set[str]) -> _Needed:
    operands = {
        position: operand
        for position, (operand, reads) in enumerate(zip(operator.inputs, rule.reads, strict=True))
        if reads is not None and operand is not None and _has_gradient(operand, with_gradient)
    }
    activations = (value.name for value in operands.values() if value.role is Role.ACTIVATION)
    return _Needed(frozenset(operands), tuple(dict.fromkeys(activations)))


def _has_gradient(operand: Operand, with_gradient: set[str]) -> bool:
    return operand.role is Role.PARAMETER or (operand.role is Role.ACTIVATION and operand.name in with_gradient)


def _results(operator: Operator, rule: Gradients) -> list[Operand]:
    """Return the outputs of `operator` that can carry a gradient."""
    outputs = (operator.outputs[position] for position in rule.results)
    return [output for output in outputs if output is not None and is_differentiable(output.dtype)]


def _tensors_with_gradient(
    graph: Draft, operators: Mapping[str, Operator], gradients: Mapping[str, Gradients]
) -> set[str]:
    depends_on_parameter: set[str] = set()
    for op in graph.ops:
        operator, rule = operators[op.name], gradients[op.name]
        if _needed(operator, rule, depends_on_parameter).positions:
            depends_on_parameter.update(value.name for value in _results(operator, rule))
    with_gradient = depends_on_parameter.intersection(graph.outputs)
    for op in reversed(graph.ops):
        operator, rule = operators[op.name], gradients[op.name]
        if any(value.name in with_gradient for value in _results(operator, rule)):
            with_gradient.update(_needed(operator, rule, depends_on_parameter).activations)
    return with_gradient


def _statistics(op: Op, saved: Saved, names: Names) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(names.fresh(f"{op.name}.{each.name}"), each.bytes, each.shape, each.dtype) for each in saved.statistics
    )
