"""Graphs and problems on which planners are tried: a few by shape, and hypothesis strategies for random ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph, Kind, Op, Phase, Residency, Tensor, build_graph
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate

Item = TypeVar("Item")


def op(name: str, reads: str = "", makes: str = "", *, time: int = 1, **fields: Any) -> Op:
    """Return an op; the tensors that it reads and makes are separated by spaces."""
    return Op(name=name, type="Test", inputs=tuple(reads.split()), outputs=tuple(makes.split()), time=time, **fields)


def graph_of(
    *ops: Op,
    sizes: Mapping[str, int] | None = None,
    views: Mapping[str, str] | None = None,
    outputs: Sequence[str] | None = None,
    kind: Kind = Kind.INFERENCE,
    resident_bytes: int = 0,
    held: Collection[str] = (),
    residents: Mapping[str, Residency] | None = None,
) -> Graph:
    """Return the graph of `ops`; a tensor has 1 byte unless `sizes` says otherwise, a view (name to base) has none."""
    sizes, views = sizes or {}, views or {}
    names = dict.fromkeys(name for each in ops for name in (*each.inputs, *each.outputs))
    return build_graph(
        name="test",
        kind=kind,
        time_unit="unit",
        resident_bytes=resident_bytes,
        tensors=[
            Tensor(
                name,
                0 if name in views else sizes.get(name, 1),
                view_of=views.get(name),
                held=name in held,
                resident=(residents or {}).get(name),
            )
            for name in names
        ],
        ops=ops,
        outputs=outputs,
    )


def diamond() -> Graph:
    """`a` feeds `b` and `c`, which `d` joins. Plain run: a 4, then b 4+2, then c 4+2+2, then d 2+2+1."""
    return graph_of(
        op("a", "", "ta"),
        op("b", "ta", "tb"),
        op("c", "ta", "tc"),
        op("d", "tb tc", "td"),
        sizes={"ta": 4, "tb": 2, "tc": 2, "td": 1},
    )


def training_chain(length: int, *, size: int = 1, time: int = 1) -> Graph:
    """A forward chain and its backward: `b2` reads the input of `f2` and the gradient `g2`, and makes `g1`."""
    forward = [op(f"f{i}", f"a{i - 1}" if i > 1 else "", f"a{i}", time=time) for i in range(1, length + 1)]
    loss = op("loss", f"a{length}", f"g{length}", time=time, phase=Phase.BACKWARD)
    backward = [
        op(
            f"b{i}",
            f"a{i - 1} g{i}" if i > 1 else f"g{i}",
            f"g{i - 1}",
            time=2 * time,
            phase=Phase.BACKWARD,
            grad_of=f"f{i}",
        )
        for i in range(length, 0, -1)
    ]
    ops = [*forward, loss, *backward]
    return graph_of(*ops, sizes={name: size for each in ops for name in each.outputs}, kind=Kind.TRAINING)


def training_unet(depth: int) -> Graph:
    """A U-Net's training step: `up1` reads what `down1` made, and so do the backward ops."""
    downs = [op(f"down{i}", f"d{i - 1}" if i > 1 else "", f"d{i}") for i in range(1, depth + 1)]
    bottom = op("bottom", f"d{depth}", f"u{depth + 1}")
    ups = [op(f"up{i}", f"u{i + 1} d{i}", f"u{i}") for i in range(depth, 0, -1)]
    loss = op("loss", "u1", "gu1", phase=Phase.BACKWARD)
    backward = [
        *(_grad(f"up{i}", f"u{i + 1} d{i} gu{i}", f"gu{i + 1} skip{i}") for i in range(1, depth + 1)),
        _grad("bottom", f"d{depth} gu{depth + 1}", f"gd{depth}"),
        *(
            _grad(f"down{i}", f"gd{i} skip{i} d{i - 1}" if i > 1 else "gd1 skip1", f"gd{i - 1}")
            for i in range(depth, 0, -1)
        ),
    ]
    ops = [*downs, bottom, *ups, loss, *backward]
    names = dict.fromkeys(name for each in ops for name in each.outputs)
    # The deeper, the smaller: each level has half the size of the one above.
    sizes = {name: 2 ** (depth + 2 - int(name.lstrip("dugskip"))) for name in names}
    return graph_of(*ops, sizes=sizes, kind=Kind.TRAINING)


def _grad(forward_op: str, reads: str, makes: str) -> Op:
    return op(f"grad_{forward_op}", reads, makes, time=2, phase=Phase.BACKWARD, grad_of=forward_op)


def in_place() -> Graph:
    """`relu` can take over the storage of `x`, which nobody else reads."""
    return graph_of(
        op("make", "", "x"), op("relu", "x", "y", inplace="x"), op("use", "y", "z"), sizes={"x": 4, "y": 4, "z": 1}
    )


# Strategies are made once: a new one takes longer to look at than to draw from.
# Small numbers, so that ties and exact fits are common.
_BYTES = st.integers(0, 5)
_TIMES = st.integers(0, 4)
_WORKSPACE = st.sampled_from([0, 0, 0, 1, 3])
_RESIDENT = st.sampled_from([0, 0, 7])
# Mostly one output; none (an op run for its effect) is rare.
_OUTPUT_COUNTS = st.sampled_from([1, 1, 1, 1, 1, 2, 2, 0])
_MOSTLY = st.sampled_from([True, True, True, True, True, False])
_RARELY = st.integers(0, 7).map(lambda number: number == 7)
_EITHER = st.booleans()


@cache
def _places(count: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(_place(count), unique=True, max_size=most)


@cache
def _place(count: int) -> st.SearchStrategy[int]:
    return st.sampled_from(range(count))


def _some_of(draw: st.DrawFn, names: Sequence[str], most: int) -> list[str]:
    return [names[place] for place in draw(_places(len(names), most))] if names else []


def _one_of(draw: st.DrawFn, values: Sequence[Item]) -> Item:
    return values[draw(_place(len(values)))]


@st.composite
def small_graphs(draw: st.DrawFn, max_ops: int = 8, build: Callable[..., Graph] = build_graph) -> Graph:
    """Random graphs of 2 to `max_ops` ops with everything that a graph can have, small enough for exhaustive search."""
    tensors = [Tensor(f"x{i}", draw(_BYTES)) for i in range(draw(st.integers(0, 2)))]
    ops: list[Op] = []
    for number in range(draw(st.integers(2, max_ops))):
        reads = _some_of(draw, [tensor.name for tensor in tensors], 3)
        outputs = [_output(draw, f"t{number}{letter}", tensors) for letter in "ab"[: draw(_OUTPUT_COUNTS)]]
        ops.append(
            Op(
                name=f"f{number}",
                type="Test",
                inputs=tuple(reads),
                outputs=tuple(tensor.name for tensor in outputs),
                time=draw(_TIMES),
                workspace_bytes=draw(_WORKSPACE),
                inplace=_one_of(draw, [None, *reads]) if outputs else None,
                recomputable=draw(_MOSTLY),
            )
        )
        tensors += outputs
    names = [tensor.name for tensor in tensors]
    return build(
        name="small",
        kind=Kind.INFERENCE,
        time_unit="unit",
        resident_bytes=draw(_RESIDENT),
        # Nothing may depend on the order in which a file lists its tensors.
        tensors=draw(st.permutations(tensors)),
        ops=ops,
        outputs=_some_of(draw, names, 3) if draw(_EITHER) else None,
    )


def _output(draw: st.DrawFn, name: str, earlier: Sequence[Tensor]) -> Tensor:
    """Return a tensor of its own storage or, now and then, a view of an earlier one."""
    if draw(_RARELY) and earlier:
        return Tensor(name, 0, view_of=_one_of(draw, earlier).name)
    return Tensor(name, draw(_BYTES))


@st.composite
def forward_graphs(draw: st.DrawFn, max_ops: int = 6) -> Graph:
    """Random forward passes whose training graph is to be derived: one data input, one result, all of it connected."""
    tensors = [Tensor("x", draw(_BYTES))]
    unread = ["x"]
    ops: list[Op] = []
    count = draw(st.integers(2, max_ops))
    for number in range(count):
        # The last op reads whatever nobody has read, so that everything reaches the loss.
        reads = [*unread] if number == count - 1 else [_one_of(draw, unread)] if unread else []
        reads += [name for name in _some_of(draw, [t.name for t in tensors], 2) if name not in reads]
        reads = reads or [tensors[-1].name]
        outputs = [_output(draw, f"t{number}", tensors)]
        if draw(_RARELY):
            outputs.append(Tensor(f"mask{number}", draw(_BYTES)))
        kept = [*reads, *(tensor.name for tensor in outputs)]
        ops.append(
            Op(
                name=f"f{number}",
                type="Test",
                inputs=tuple(reads),
                outputs=tuple(tensor.name for tensor in outputs),
                time=draw(_TIMES),
                workspace_bytes=draw(_WORKSPACE),
                inplace=_one_of(draw, [None, *reads]),
                recomputable=draw(_MOSTLY),
                saves=tuple(_some_of(draw, kept, 3)) if draw(_EITHER) else None,
                grad_inputs=tuple(name for name in reads if name != "x") if draw(_EITHER) else None,
                grad_time=draw(_TIMES) if draw(_EITHER) else None,
            )
        )
        unread = [name for name in unread if name not in reads] + [outputs[0].name]
        tensors += outputs
    return build_graph(
        name="forward",
        kind=Kind.FORWARD,
        time_unit="unit",
        resident_bytes=draw(_RESIDENT),
        tensors=tensors,
        ops=ops,
        outputs=[ops[-1].outputs[0]],
    )


@st.composite
def training_graphs(draw: st.DrawFn, max_forward_ops: int = 4) -> Graph:
    """Random training steps: a forward pass and its backward in reverse, with gradients summed in place on fan-out.

    Written apart from `remat_cli.training` on purpose: planners must not depend on how that derives its graphs.
    """
    forward = draw(forward_graphs(max_forward_ops))
    produced = forward.producer
    tensors = list(forward.tensors.values())
    ops = [replace(each, saves=None, grad_inputs=None, grad_time=None) for each in forward.ops]
    result = forward.outputs[0]
    tensors.append(Tensor(f"d_{result}", forward.tensors[result].bytes))
    ops.append(op("loss", result, f"d_{result}", time=draw(_TIMES), phase=Phase.BACKWARD))
    gradients: dict[str, list[str]] = {result: [f"d_{result}"]}
    for each in reversed(forward.ops):
        summed = [name for output in each.outputs if (name := _summed(output, gradients, tensors, ops)) is not None]
        into = [name for name in each.inputs if name in produced]
        saved = each.saves if each.saves is not None else (*each.inputs, *each.outputs)
        outputs = [f"d_{name}_{each.name}" for name in into] + ([f"dw_{each.name}"] if draw(_EITHER) else [])
        sizes = [forward.tensors[name].bytes for name in into] + [1]
        tensors += (Tensor(name, size) for name, size in zip(outputs, sizes, strict=False))
        for name, gradient in zip(into, outputs, strict=False):
            gradients.setdefault(name, []).append(gradient)
        ops.append(
            Op(
                name=f"b_{each.name}",
                type="Grad",
                inputs=tuple(dict.fromkeys((*summed, *saved))),
                outputs=tuple(outputs),
                time=each.time * 2 if each.grad_time is None else each.grad_time,
                workspace_bytes=each.workspace_bytes,
                phase=Phase.BACKWARD,
                grad_of=each.name,
            )
        )
    return build_graph(
        name="training",
        kind=Kind.TRAINING,
        time_unit="unit",
        resident_bytes=forward.resident_bytes,
        tensors=tensors,
        ops=ops,
        outputs=_one_of(draw, (None, [], [result])),
    )


def _summed(name: str, gradients: Mapping[str, Sequence[str]], tensors: list[Tensor], ops: list[Op]) -> str | None:
    """Add the ops that sum the gradients of `name` in place; return the name of the sum, None where there is none."""
    parts = gradients.get(name, ())
    if not parts:
        return None
    total = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        sum_name = f"sum_{name}_{number}"
        tensors.append(Tensor(sum_name, next(t.bytes for t in tensors if t.name == total)))
        ops.append(op(f"add_{name}_{number}", f"{total} {part}", sum_name, inplace=total, phase=Phase.BACKWARD))
        total = sum_name
    return total


def updating_chain(length: int, *, size: int = 2, state: int = 4) -> Graph:
    """A chain, its backward, and updates: `f2` and `b2` read `w2`, `b2` makes `dw2`, and `u2` writes `w2` and `s2`.

    Gradients are made once, so that no planner runs an op again after the update of what it reads.
    """
    numbers = range(1, length + 1)
    forward = [op(f"f{i}", f"a{i - 1} w{i}" if i > 1 else f"w{i}", f"a{i}") for i in numbers]
    loss = op("loss", f"a{length}", f"g{length}", phase=Phase.BACKWARD, recomputable=False)
    backward = [
        op(
            f"b{i}",
            f"a{i - 1} g{i} w{i}" if i > 1 else f"g{i} w{i}",
            f"g{i - 1} dw{i}" if i > 1 else f"dw{i}",
            time=2,
            phase=Phase.BACKWARD,
            grad_of=f"f{i}",
            recomputable=False,
        )
        for i in reversed(numbers)
    ]
    updates = [_update(f"u{i}", f"w{i}", f"s{i}", f"dw{i}", f"done{i}") for i in numbers]
    sizes = {f"{letter}{i}": size for letter in ("a", "g", "w", "dw") for i in range(length + 1)}
    sizes |= {f"s{i}": state for i in numbers} | {f"done{i}": 0 for i in numbers}
    residents = {f"w{i}": Residency.PARAMETER for i in numbers} | {f"s{i}": Residency.STATE for i in numbers}
    ops = [*forward, loss, *backward, *updates]
    return graph_of(*ops, sizes=sizes, residents=residents, kind=Kind.TRAINING)


def _update(name: str, parameter: str, state: str, gradient: str, done: str, **fields: Any) -> Op:
    written = (parameter, state)
    reads = f"{parameter} {state} {gradient}"
    return op(name, reads, done, phase=Phase.UPDATE, recomputable=False, writes=written, **fields)


@st.composite
def updating_graphs(draw: st.DrawFn, max_forward_ops: int = 3) -> Graph:
    """Random training steps with parameters, most of them trained: each of these has an update and state."""
    step = draw(training_graphs(max_forward_ops))
    tensors = dict(step.tensors)
    ops = {each.name: each for each in step.ops}
    updates: list[Op] = []
    for each in step.ops:
        if each.grad_of is None or not draw(_MOSTLY):
            continue
        parameter, gradient = f"w_{each.grad_of}", f"dw_{each.grad_of}"
        tensors[parameter] = Tensor(parameter, draw(_BYTES), resident=Residency.PARAMETER)
        for name in (each.name, each.grad_of):
            ops[name] = replace(ops[name], inputs=(*ops[name].inputs, parameter))
        if gradient in tensors:
            tensors[gradient] = replace(tensors[gradient], bytes=tensors[parameter].bytes)
            state, done = f"s_{each.grad_of}", f"done_{each.grad_of}"
            tensors[state] = Tensor(state, draw(_BYTES), resident=Residency.STATE)
            tensors[done] = Tensor(done, 0)
            fields = {"time": draw(_TIMES), "workspace_bytes": draw(_WORKSPACE)}
            updates.append(_update(f"u_{each.grad_of}", parameter, state, gradient, done, **fields))
    read = {name for update in updates for name in update.inputs}
    return build_graph(
        name="updating",
        kind=Kind.TRAINING,
        time_unit="unit",
        resident_bytes=step.resident_bytes,
        tensors=tensors.values(),
        ops=(*ops.values(), *draw(st.permutations(updates))),
        outputs=(*(name for name in step.outputs if name not in read), *(update.outputs[0] for update in updates)),
    )


@st.composite
def problems(draw: st.DrawFn, graphs: st.SearchStrategy[Graph]) -> Problem:
    """A graph of `graphs` and a budget between just below its largest working set and just above its plain peak."""
    graph = draw(graphs)
    plain = simulate(graph, plain_run(graph))
    lowest = largest_working_set(graph).bytes
    return Problem(graph, Budget(draw(st.integers(max(0, lowest - 1), plain.peak_bytes + 1))))
