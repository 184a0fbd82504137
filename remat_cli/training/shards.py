"""Sharded parameters: a training step of one rank, in which an op gathers each block's parameters from all ranks.

Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 4; Rajbhandari et al., ZeRO, SC 2020, section 7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remat_cli.core.graph import Draft, Op, Tensor, draft_graph
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.training.annotate import needed_gradients
from remat_cli.training.names import Names
from remat_cli.training.saved import gradients_of, saved_for_backward

GATHER_TYPE, SCATTER_TYPE = "AllGather", "ReduceScatter"


@dataclass(frozen=True)
class ShardedBlock:
    """The trained parameters that are gathered together.

    Attributes:
        name: what the names of its parameters have in common.
        parameters: of one element type, in the order in which they are given.
        ranks: over which they are sharded.
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
        """The part of one rank; the last is padded."""
        size = -(-self.bytes // self.ranks)
        return Operand(f"{self.name}.shard", Role.PARAMETER, None, self.parameters[0].dtype, size)


def sharded_blocks(
    graph: Draft, operators: Mapping[str, Operator], parameters: Iterable[Operand], ranks: int
) -> tuple[ShardedBlock, ...]:
    """Return the blocks of a model, each of which is gathered as one: those of a layer, and every other module's.

    The block of a parameter is its name up to the first part with a number ("model.layers.3", "layer3"), or where there
    is none, up to its last dot. An exporter's name without dots says nothing: the path of the module that reads the
    parameter first stands before it. Parameters of different element types are gathered apart, as in FSDP.

    Args:
        graph: what reads them.
        operators: one for each op.
        parameters: those that are trained.
        ranks: over which each block is sharded.
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
    parts = path.split(".")
    for end, part in enumerate(parts[:-1], start=1):
        if any(map(str.isdigit, part)):
            return ".".join(parts[:end])
    return ".".join(parts[:-1]) or path


def with_gathers(
    forward: Draft, operators: Mapping[str, Operator], blocks: Sequence[ShardedBlock], time: Callable[[int], int]
) -> Draft:
    """Return a forward pass that gathers each block of parameters before the first op that reads it.

    The shards are graph inputs. A gather makes one tensor, of which the block's parameters are views; ops, and the
    backwards of those that need it, read them there. So the training graph that is derived has a gradient of every
    parameter, and the gradient of a gather is a reduce-scatter, which follows the last of them and makes the gradient
    of the shard. A gather may run again like every other op: that is how a plan reshards.

    Args:
        forward: with times, and marked by `annotate_saves`.
        operators: one for each op.
        blocks: of the trained parameters, which are not among the resident bytes.
        time: of gathering so many bytes, or scattering them, in the graph's time unit.
    """
    tensor_names, op_names = Names(forward.tensors), Names(forward.op)
    tensor_of = {value.name: tensor_names.fresh(value.name) for block in blocks for value in block.parameters}
    tensors = list(forward.tensors.values())
    gather_of: dict[str, Op] = {}  # by parameter
    for block in blocks:
        shard, parameters = block.shard, block.parameters
        source, gathered = tensor_names.fresh(shard.name), tensor_names.fresh(f"{block.name}.gathered")
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
            saves=(),
            grad_inputs=(source,),
            grad_time=time(block.bytes),
            flops=0,
            moved_bytes=0,
        )
        gather_of |= dict.fromkeys((value.name for value in parameters), gather)
    ops: dict[str, Op] = {}
    for op in forward.ops:
        operator = operators[op.name]
        read = [value.name for value in operator.inputs if value is not None and value.name in tensor_of]
        ops |= {gather_of[name].name: gather_of[name] for name in read}
        ops[op.name] = _reading(op, operator, tensor_of) if read else op
    return draft_graph(
        name=forward.name,
        kind=forward.kind,
        time_unit=forward.time_unit,
        resident_bytes=forward.resident_bytes,
        tensors=tensors,
        ops=ops.values(),
        outputs=forward.outputs,
    )


def _reading(op: Op, operator: Operator, tensor_of: Mapping[str, str]) -> Op:
    """Return a forward op that reads its parameters as tensors, as its backward does where it needs them."""
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
