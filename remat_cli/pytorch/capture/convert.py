"""A captured training step as a `Graph`, with further facts on ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch
from torch import fx

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Kind, Op, Phase, Tensor, build_graph
from remat_cli.core.operators import AttributeValue, Operand, Operator, Role
from remat_cli.formats.reader import Reading
from remat_cli.pytorch.capture.joint import Joint, JointOp
from remat_cli.pytorch.capture.joint_capture import Captured
from remat_cli.pytorch.capture.mutation import is_backward
from remat_cli.pytorch.capture.ops import IN_PLACE, arguments, communicates, nodes_in, numbered, short_name, tensors_of
from remat_cli.pytorch.capture.places import module_of, source_of
from remat_cli.pytorch.unstable.joint_graphs import gradient_of, output_descriptions
from remat_cli.pytorch.unstable.ops import OpOverload, schema_of

_SIGNATURE_LENGTH = 12


def graph_of(joint: Joint, name: str, resident_bytes: int = 0) -> Graph:
    """Return the graph of a training step: times are 0 until a cost model gives them.

    A tensor is a storage. Parameters, buffers and inputs are graph inputs. An op that waits for another one without
    reading what it made (the next random op, the boundary for what is written into inputs) reads a token: a tensor of 0
    bytes. Outputs are what the caller holds at the end: what the forward pass returns, which stays once it is made, and
    the gradients.

    Args:
        joint: the step.
        name: name of the graph.
        resident_bytes: memory beside that of the graph's tensors that is there from start to end.
    """
    tokens = [Tensor(token, 0) for op in joint.ops for token in op.gives]
    held = set(joint.returned)
    storages = (
        Tensor(item.name, item.bytes, item.shape, item.dtype, held=item in held) for item in joint.storages.values()
    )
    differentiated = _differentiated(joint)
    return build_graph(
        name=name,
        kind=Kind.TRAINING,
        time_unit="unit",
        resident_bytes=resident_bytes,
        tensors=(*storages, *tokens),
        ops=[_op(joint, op, differentiated) for op in joint.ops],
        outputs=[storage.name for storage in joint.held_outputs],
    )


def _op(joint: Joint, op: JointOp, differentiated: Mapping[int, str]) -> Op:
    node = op.node
    sequence = None if node is None or op.phase is Phase.FORWARD else node.meta.get("seq_nr")
    return Op(
        name=op.name,
        type=BOUNDARY_TYPE if node is None else short_name(node),
        inputs=(*(storage.name for storage in op.reads), *op.needs),
        outputs=(*(storage.name for storage in op.makes), *op.gives),
        time=0,
        inplace=None if op.inplace is None else op.inplace.name,
        phase=op.phase,
        grad_of=None if sequence is None else differentiated.get(sequence),
        recomputable=op.recomputable,
        module=None if node is None else module_of(node, joint.root),
        source=None if node is None else source_of(node),
        signature=signature(op),
    )


def _differentiated(joint: Joint) -> dict[int, str]:
    """Return the forward op of each of autograd's sequence numbers.

    A number first used by a view maps to no op.
    """
    ops = {op.node: op for op in joint.ops if op.phase is Phase.FORWARD}
    first: dict[int, str | None] = {}
    for node in joint.module.graph.nodes:
        number = node.meta.get("seq_nr")
        if number is not None and node.op == "call_function" and not is_backward(node):
            first.setdefault(number, ops[node].name if node in ops else None)
    return {number: name for number, name in first.items() if name is not None}


def signature(op: JointOp) -> str:
    """Return a hash of an op.

    It depends on the op, its input values with their layouts, and its constants.

    Two joint graphs whose ops have the same names and signatures are the same graph.
    """
    return hashed(full_signature(op))


def full_signature(op: JointOp) -> str:
    """Return the text behind `signature`."""
    if op.node is None:
        return "boundary"
    return f"{written(op.node)} -> {[_layout(value) for value in tensors_of(op.node.meta.get('val'))]}"


def hashed(full: str) -> str:
    """Return the signature for a full text."""
    return sha256(full.encode()).hexdigest()[:_SIGNATURE_LENGTH]


def with_signatures(reading: Reading, signatures: Mapping[str, str]) -> Reading:
    """Return the reading with new signatures of its ops, given by name."""
    ops = tuple(replace(op, signature=signatures[op.name]) for op in reading.graph.ops)
    return replace(reading, graph=replace(reading.graph, ops=ops))


def written(node: fx.Node, *, named: bool = True) -> str:
    """Return an op with its operands as text: the layout of each tensor, the value of everything else.

    Left out is the name of a group of ranks: each group has one of its own, and does the same.

    Args:
        node: the op.
        named: name the tensors, too; without, ops that do the same on tensors of the same layout are equal.
    """
    args: Any = node.args
    if communicates(node):
        args = [value for name, value in arguments(node).items() if name != "group_name"]
    return f"{node.target}({_written(args, named)}, {_written(node.kwargs, named)})"


def _written(value: Any, named: bool) -> str:
    if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), int | float):
        return repr(value.meta["val"])
    if isinstance(value, fx.Node):
        return f"{value.name if named else ''}: {[_layout(tensor) for tensor in tensors_of(value.meta.get('val'))]}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_written(item, named) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_written(item, named)}' for key, item in value.items())}}}"
    if isinstance(value, torch.device):
        return value.type
    return repr(value)


def _layout(value: torch.Tensor) -> str:
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device.type}"


def operators_of(joint: Joint) -> dict[str, Operator]:
    """Return the operator of each op, from which its work is computed.

    It has inputs and results by position.
    """
    return {op.name: _operator(joint, op) for op in joint.ops}


def _operator(joint: Joint, op: JointOp) -> Operator:
    node = op.node
    if node is None:
        results = tuple(_described(joint, joint.storage(value).name, value.meta["val"]) for value in op.values)
        return Operator(BOUNDARY_TYPE, (), results)
    if IN_PLACE in node.meta and node.target is torch.ops.aten.slice_scatter.default:  # moves the slice alone
        part = node.all_input_nodes[1]
        written_into = _described(joint, joint.storage(node).name, part.meta["val"])
        return Operator(short_name(node), (_described(joint, part.name, part.meta["val"]),), (written_into,))
    operands: list[Operand | None] = []
    attributes: dict[str, AttributeValue] = {}
    for name, given in (arguments(node) or {str(place): value for place, value in enumerate(node.args)}).items():
        value = numbered(given)
        nodes = [item for item in nodes_in(value) if isinstance(item.meta.get("val"), torch.Tensor)]
        if nodes:
            operands.extend(_described(joint, item.name, item.meta["val"]) for item in nodes)
        elif value is None and _takes_tensor(node, name):
            operands.append(None)
        elif (attribute := _attribute(value)) is not None:
            attributes[name] = attribute
    results = tuple(_described(joint, joint.storage(value).name, value) for value in tensors_of(node.meta.get("val")))
    return Operator(short_name(node), tuple(operands), results, attributes)


def _takes_tensor(node: fx.Node, name: str) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    declared = {argument.name: str(argument.type) for argument in schema_of(node.target).arguments}
    return "Tensor" in declared.get(name, "")


def _attribute(value: Any) -> AttributeValue | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, int) for item in value):
        return tuple(int(item) for item in value)
    return None


def _described(joint: Joint, name: str, value: torch.Tensor) -> Operand:
    return Operand(
        name=name,
        role=Role.ACTIVATION,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        # An expanded tensor has fewer bytes than elements.
        bytes=min(value.numel() * value.element_size(), joint.storage(value).bytes),
    )


def trained_parameters(joint: Joint, captured: Captured) -> dict[str, tuple[Operand, str]]:
    """Return the parameters that get a gradient, each storage once by its name, with the storage of the gradient."""
    trained: dict[str, tuple[Operand, str]] = {}
    described = output_descriptions(joint.module.graph)[len(joint.forward_outputs) :]
    pairs = zip(map(gradient_of, described), joint.backward_outputs, strict=True)
    gradients = {primal: value for primal, value in pairs if primal is not None}
    for node, primal in zip(joint.primals, captured.primals, strict=True):
        gradient = gradients.get(node.meta.get("desc"))
        if gradient is not None and isinstance(primal.value, torch.nn.Parameter):
            name = joint.storage(node).name
            trained.setdefault(name, (_described(joint, name, node.meta["val"]), joint.storage(gradient).name))
    return trained


def parameter_storages(joint: Joint, captured: Captured) -> tuple[str, ...]:
    """Return the storages of a step's parameters, each once; buffers are left out."""
    pairs = zip(joint.primals, captured.primals, strict=True)
    named = (joint.storage(node) for node, primal in pairs if isinstance(primal.value, torch.nn.Parameter))
    return tuple(dict.fromkeys(storage.name for storage in named))
