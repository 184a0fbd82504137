"""The optimizer's update as part of a training graph: one op for each trained parameter.

An update reads the parameter, its gradient and its state, and writes parameter and state in place. Nothing needs the
gradient afterwards, so a plan may run the update as soon as the gradient is final, and free it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_cli.core.graph import Draft, Graph, Kind, Op, Phase, Residency, Tensor, draft_graph
from remat_cli.errors import GraphError
from remat_cli.settings import Setting
from remat_cli.training.derive import ElementwiseTime
from remat_cli.training.names import Names
from remat_cli.training.resident import state_bytes

UPDATE_TYPE, READY_TYPE = "Update", "GradientsReady"

# Temporaries of an update, in copies of the parameter: those of torch's step for one parameter, which Lion's is written
# like. 8-bit Adam has one kernel.
_TEMPORARIES = {"sgd": 0, "momentum": 0, "adam": 2, "adamw": 2, "lion": 2, "adafactor": 2, "adam8bit": 0}
_USUAL_TEMPORARIES = 2


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's update of one parameter.

    Attributes:
        parameter: name of the parameter.
        gradient: name of its gradient.
        state_bytes: bytes of its state.
        temporary_bytes: memory that the update takes meanwhile.
    """

    parameter: str
    gradient: str
    state_bytes: int
    temporary_bytes: int


def updates_by(
    optimizer: str, step: Draft, gradient_of: Mapping[str, str], all_state_bytes: int | None = None
) -> tuple[Update, ...]:
    """Return the updates by an optimizer.

    Args:
        optimizer: one of `OPTIMIZERS`; or with known state, the class of any other.
        step: the training step.
        gradient_of: the gradient of each trained parameter.
        all_state_bytes: bytes of the state of all parameters, which have their share of it by size; None for that of
            the optimizer's name.

    Raises:
        UsageError: an unknown optimizer.
    """
    sizes = {name: step.tensors[name].bytes for name in gradient_of}
    if all_state_bytes is None:
        states = {name: state_bytes(optimizer, step.tensors[name].shape, size) for name, size in sizes.items()}
    else:
        states = {name: all_state_bytes * size // max(1, sum(sizes.values())) for name, size in sizes.items()}
    copies = _TEMPORARIES.get(optimizer.lower(), _USUAL_TEMPORARIES)
    return tuple(Update(name, gradient_of[name], states[name], copies * sizes[name]) for name in gradient_of)


def with_update(
    step: Draft,
    updates: Sequence[Update],
    *,
    frozen: Collection[str] = (),
    after_backward: bool = False,
) -> Graph:
    """Return a training step that ends with the optimizer's updates.

    Parameters become residents, and each gets its state beside it. Gradients that an update reads are no outputs any
    more. The updates follow the backward pass, in the order of the parameters, as in eager.

    Args:
        step: a training step with times; its parameters are graph inputs, and its ops produce their gradients.
        updates: one for each trained parameter.
        frozen: parameters without a gradient.
        after_backward: whether something needs all gradients before the first update, such as clipping by their norm.

    Raises:
        GraphError: the step has updates already, or does not produce a gradient.
    """
    _check(step, updates)
    names, op_names = Names(step.tensors), Names(step.op)
    time = ElementwiseTime(step)
    gradients = tuple(dict.fromkeys(update.gradient for update in updates))
    parameters = (*frozen, *(update.parameter for update in updates))
    tensors = dict(step.tensors)
    tensors |= {name: replace(tensors[name], resident=Residency.PARAMETER) for name in parameters}
    ops = list(step.ops)
    ready: tuple[str, ...] = ()
    if after_backward:
        token = Tensor(names.fresh("gradients.ready"), 0)
        moved = sum(step.tensors[name].bytes for name in gradients)
        ops.append(_once(op_names.fresh("gradients.ready"), READY_TYPE, gradients, token, time, moved))
        tensors[token.name], ready = token, (token.name,)
    for update in updates:
        token = Tensor(names.fresh(f"{update.parameter}.updated"), 0)
        state = Tensor(names.fresh(f"{update.parameter}.state"), update.state_bytes, resident=Residency.STATE)
        tensors |= {each.name: each for each in (state, token) if each is token or each.bytes}
        written = tuple(name for name in (update.parameter, state.name) if name in tensors)
        moved = step.tensors[update.gradient].bytes + 2 * sum(tensors[name].bytes for name in written)
        inputs = (*written, update.gradient, *ready)
        op = _once(op_names.fresh(f"{update.parameter}.update"), UPDATE_TYPE, inputs, token, time, moved)
        ops.append(op.edited(writes=written, workspace_bytes=update.temporary_bytes))
    done = [output for op in ops[len(step.ops) :] if op.type == UPDATE_TYPE for output in op.outputs]
    return draft_graph(
        name=step.name,
        kind=Kind.TRAINING,
        time_unit=step.time_unit,
        resident_bytes=step.resident_bytes,
        tensors=tensors.values(),
        ops=ops,
        outputs=(*_without_gradients(step, gradients), *done),
    ).checked()


def _check(step: Draft, updates: Iterable[Update]) -> None:
    if any(op.phase is Phase.UPDATE for op in step.ops):
        raise GraphError(f"graph {step.name!r} has updates already", hint=("leave ", Setting("update"), " out"))
    for update in updates:
        if update.gradient not in step.producer:
            raise GraphError(
                f"no op of graph {step.name!r} produces {update.gradient!r}, the gradient of {update.parameter!r}",
                hint="only gradients that the step itself computes can be in an update of the plan",
            )


def _once(name: str, kind: str, inputs: Iterable[str], token: Tensor, time: ElementwiseTime, moved: int) -> Op:
    """Return an op of the update that moves so many bytes, and produces a token."""
    return Op(
        name=name,
        type=kind,
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=(token.name,),
        time=time.of_bytes(moved),
        phase=Phase.UPDATE,
        recomputable=False,
        flops=moved // 4,
        moved_bytes=moved,
    )


def _without_gradients(step: Draft, gradients: Iterable[str]) -> list[str]:
    """Return the outputs of a step without gradients and what these are views of."""
    consumed = {name for gradient in gradients for name in (gradient, step.tensors[gradient].view_of)}
    producer, tensors = step.producer, step.tensors
    return [
        name
        for name in step.outputs
        if name not in consumed or tensors[name].held or name not in producer or producer[name].phase is Phase.FORWARD
    ]
