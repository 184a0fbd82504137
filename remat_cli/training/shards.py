"""Sharded parameters in the training step of one rank.

An op gathers each block's parameters from all ranks.

Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 4; Rajbhandari et al., ZeRO, SC 2020, section 7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_cli.core.graph import Draft, Op, Phase, Residency, Tensor, draft_graph
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.errors import GraphError
from remat_cli.training.annotate import needed_gradients
from remat_cli.training.names import Names
from remat_cli.training.saved import gradients_of, saved_for_backward

GATHER_TYPE, SCATTER_TYPE = "AllGather", "ReduceScatter"


@dataclass(frozen=True)
class ShardedBlock:
    """Trained parameters that one op gathers.

    Attributes:
        name: common start of the parameters' names.
        parameters: parameters of one element type, in the given order.
        ranks: number of ranks that share the parameters.
    """

    name: str
    parameters: tuple[Operand, ...]
    ranks: int

    @property
    def bytes(self) -> int:
        """Size of the gathered parameters."""
        return sum(parameter.bytes for parameter in self.parameters)

    @property
    def shard(self) -> Operand:
        """The flat shard of one rank; the last shard is padded."""
        size = -(-self.bytes // self.ranks)
        elements = -(-sum(parameter.elements for parameter in self.parameters) // self.ranks)
        return Operand(f"{self.name}.shard", Role.PARAMETER, (elements,), self.parameters[0].dtype, size)


def sharded_blocks(
    graph: Draft, operators: Mapping[str, Operator], parameters: Iterable[Operand], ranks: int
) -> tuple[ShardedBlock, ...]:
    """Return the blocks of a model: layers, and other modules.

    Each block is gathered as one.

    The block of a parameter is its name up to the first part with a number ("model.layers.3", "layer3"), or without a
    number up to its last dot. A name without dots tells nothing: it is prefixed by the path of the first module that
    reads the parameter. Parameters of different element types are gathered apart, as in FSDP.

    Args:
        graph: the graph that reads the parameters.
        operators: an operator for each op.
        parameters: the trained parameters.
        ranks: number of ranks that share each block.
    """
    module_of: dict[str, str] = {}
    for op in graph.ops:
        for value in operators[op.name].inputs:
            if value is not None and op.module:
                module_of.setdefault(value.name, op.module)
    blocks: dict[tuple[str, str], list[Operand]] = {}
    for parameter in parameters:
        path, module = parameter.name, module_of.get(parameter.name)
        if "." not in path and module is not None:
            path = f"{module}.{path}"
        blocks.setdefault((_block_of(path), parameter.dtype), []).append(parameter)
    return tuple(ShardedBlock(name, tuple(members), ranks) for (name, _), members in blocks.items())


def _block_of(path: str) -> str:
    return numbered_part(path) or path.rpartition(".")[0] or path


def numbered_part(path: str) -> str:
    """Return a parameter's name up to the first part with a number; empty if none has one."""
    parts = path.split(".")
    numbered = (end for end, part in enumerate(parts[:-1], start=1) if any(map(str.isdigit, part)))
    return ".".join(parts[: next(numbered, 0)])


def with_gathers(
    forward: Draft, operators: Mapping[str, Operator], blocks: Sequence[ShardedBlock], time: Callable[[int], int]
) -> Draft:
    """Return a forward pass that gathers parameters before their first use.

    The shards are graph inputs. A gather writes one tensor, and the block's parameters are views of this tensor; ops
    and backwards read these views. So the derived training graph has a gradient of every parameter. The backward of a
    gather is a reduce-scatter, which runs after the last of these gradients and writes the gradient of the shard. A
    plan may run a gather again, like every other op: so it reshards.

    Args:
        forward: a forward pass with times and the marks of `annotate_saves`.
        operators: an operator for each op.
        blocks: blocks of the trained parameters, which do not count as resident bytes.
        time: time to gather or scatter a number of bytes, in the graph's time unit.
    """
    names = Names(forward.tensors)
    tensor_of = {value.name: names.fresh(value.name) for block in blocks for value in block.parameters}
    tensors, gather_of = _gathers(forward, blocks, tensor_of, names, time)
    ops: dict[str, Op] = {}
    for op in forward.ops:
        operator = operators[op.name]
        read = [value.name for value in operator.inputs if value is not None and value.name in tensor_of]
        for gather in (gather_of[name] for name in read):
            ops[gather.name] = gather.edited(saves=(), grad_inputs=gather.inputs, grad_time=gather.time)
        ops[op.name] = _reading(op, operator, tensor_of)
    return _rebuilt(forward, (*forward.tensors.values(), *tensors), ops, forward.outputs)


def with_parameters(forward: Draft, operators: Mapping[str, Operator], parameters: Iterable[Operand]) -> Draft:
    """Return a forward pass whose ops read its parameters as residents.

    The derived training graph has a gradient of every parameter.

    Args:
        forward: a forward pass with times and the marks of `annotate_saves`.
        operators: an operator for each op.
        parameters: the trained parameters, which do not count as resident bytes.
    """
    names = Names(forward.tensors)
    residents = {
        value.name: Tensor(names.fresh(value.name), value.bytes, value.shape, value.dtype, resident=Residency.PARAMETER)
        for value in parameters
    }
    tensor_of = {name: tensor.name for name, tensor in residents.items()}
    ops = {op.name: _reading(op, operators[op.name], tensor_of) for op in forward.ops}
    tensors = {tensor.name: tensor for tensor in (*forward.tensors.values(), *residents.values())}
    for op in ops.values():
        tensors |= _views_of_parameters(op, tensors)
    return _rebuilt(forward, tensors.values(), ops, forward.outputs)


def _views_of_parameters(op: Op, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the results of an op as views of the parameter that it reads, if they are; else none.

    Without the parameter in the graph, a transposed weight is a tensor of 0 bytes that is a view of nothing.
    """
    read = [name for name in op.inputs if tensors[name].resident or (tensors[name].view_of and not tensors[name].bytes)]
    made = [tensors[name] for name in op.outputs]
    if len(read) != 1 or not all(tensor.shape and not tensor.bytes and not tensor.view_of for tensor in made):
        return {}
    base = tensors[read[0]].view_of or read[0]
    return {tensor.name: replace(tensor, view_of=base) for tensor in made if tensors[base].resident}


def _reading(op: Op, operator: Operator, tensor_of: Mapping[str, str]) -> Op:
    """Return a forward op that reads its parameters as tensors.

    Its backward reads the needed parameters, too.
    """
    if not any(value is not None and value.name in tensor_of for value in operator.inputs):
        return op
    rule = gradients_of(operator)
    positions = needed_gradients(operator, rule, set(op.grad_inputs or ()))
    saved = saved_for_backward(operator, rule, positions).operands
    trained = [operator.inputs[position] for position in sorted(positions)]

    def tensors(values: Iterable[Operand | None]) -> Iterator[str]:
        yield from dict.fromkeys(tensor_of[value.name] for value in values if value and value.name in tensor_of)

    return op.edited(
        inputs=(*op.inputs, *tensors(operator.inputs)),
        saves=(*(op.saves or ()), *tensors(saved)),
        grad_inputs=(*(op.grad_inputs or ()), *tensors(trained)),
    )


def with_step_gathers(
    step: Draft, gradient_of: Mapping[str, str], blocks: Sequence[ShardedBlock], time: Callable[[int], int]
) -> Draft:
    """Return a training step that gathers parameters, scatters gradients.

    It gathers as in `with_gathers`.

    Args:
        step: a training step with times; its parameters are graph inputs, and backward ops write their gradients.
        gradient_of: the gradient of each parameter, by the parameter's name.
        blocks: blocks of the trained parameters.
        time: as for `with_gathers`.

    Raises:
        GraphError: the step lacks the gradient of a parameter.
    """
    names, op_names = Names(step.tensors), Names(step.op)
    own = {value.name: value.name for block in blocks for value in block.parameters}
    gathered, gather_of = _gathers(step, blocks, own, names, time)
    scattered: list[Tensor] = []
    after: dict[str, list[Op]] = {}  # by op: the scatters that follow it
    place = {op.name: number for number, op in enumerate(step.ops)}
    for block in blocks:
        gradients = tuple(dict.fromkeys(gradient_of[value.name] for value in block.parameters))
        if unmade := [name for name in gradients if name not in step.gradients]:
            raise GraphError(
                f"block {block.name!r} cannot be sharded: the step does not make gradient {unmade[0]!r} itself",
                hint="leave the ranks out",
            )
        gather = gather_of[block.parameters[0].name]
        shard = Tensor(names.fresh(f"{block.shard.name}.grad"), block.shard.bytes, None, block.shard.dtype)
        scattered.append(shard)
        last = max((step.producer[name].name for name in gradients), key=place.__getitem__)
        scatter = Op(
            name=op_names.fresh(f"{gather.name}.backward"),
            type=SCATTER_TYPE,
            inputs=gradients,
            outputs=(shard.name,),
            time=time(block.bytes),
            phase=Phase.BACKWARD,
            grad_of=gather.name,
            recomputable=False,
            flops=0,
            moved_bytes=0,
        )
        after.setdefault(last, []).append(scatter)
    ops: dict[str, Op] = {}
    for op in step.ops:
        for gather in (gather_of[name] for name in op.inputs if name in own):
            ops.setdefault(gather.name, gather.edited(phase=op.phase))
        ops |= {each.name: each for each in (op, *after.get(op.name, ()))}
    replaced = set(gradient_of.values())
    outputs = (*(name for name in step.outputs if name not in replaced), *(tensor.name for tensor in scattered))
    others = (tensor for tensor in step.tensors.values() if tensor.name not in own)
    return _rebuilt(step, (*others, *gathered, *scattered), ops, outputs)


def _gathers(
    graph: Draft,
    blocks: Sequence[ShardedBlock],
    tensor_of: Mapping[str, str],
    names: Names,
    time: Callable[[int], int],
) -> tuple[list[Tensor], dict[str, Op]]:
    """Return the tensors of gathers, and the gathers by parameter.

    The tensors are shards, gathered blocks and parameters.

    Args:
        graph: the graph that gets the gathers.
        blocks: as for `with_gathers`.
        tensor_of: the tensor of each parameter.
        names: names of tensors.
        time: as for `with_gathers`.
    """
    op_names = Names(graph.op)
    tensors: list[Tensor] = []
    gather_of: dict[str, Op] = {}
    for block in blocks:
        shard, parameters = block.shard, block.parameters
        source, gathered = names.fresh(shard.name), names.fresh(f"{block.name}.gathered")
        elements = sum(value.elements for value in parameters)
        tensors.append(Tensor(source, shard.bytes, None, shard.dtype))
        tensors.append(Tensor(gathered, block.bytes, (elements,), shard.dtype))
        tensors += (
            Tensor(tensor_of[value.name], 0, value.shape, value.dtype, view_of=gathered) for value in parameters
        )
        gather = Op(
            name=op_names.fresh(f"{block.name}.all_gather"),
            type=GATHER_TYPE,
            inputs=(source,),
            outputs=(gathered, *(tensor_of[value.name] for value in parameters)),
            time=time(block.bytes),
            flops=0,
            moved_bytes=0,
        )
        gather_of |= dict.fromkeys((value.name for value in parameters), gather)
    return tensors, gather_of


def _rebuilt(graph: Draft, tensors: Iterable[Tensor], ops: Mapping[str, Op], outputs: Sequence[str]) -> Draft:
    """Return a graph with other tensors, ops and outputs, and its views resolved."""
    return draft_graph(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        tensors=tensors,
        ops=ops.values(),
        outputs=outputs,
    )
