"""Measured times and workspace of a captured step's ops.

Each op runs alone on random tensors.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from statistics import median
from time import time_ns
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.core.problem import Observer
from remat_cli.costs import Measurements
from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.convert import signature, written
from remat_cli.pytorch.capture.joint import Joint, JointOp
from remat_cli.pytorch.capture.op_properties import in_place_of
from remat_cli.pytorch.capture.ops import (
    IN_PLACE,
    arguments,
    is_between_ranks,
    nodes_in,
    numbered,
    short_name,
    tensors_of,
)
from remat_cli.pytorch.capture.places import source_of
from remat_cli.pytorch.memory.memory import allocations_of, peak_of, time_of
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import without_modes
from remat_cli.pytorch.unstable.ops import OpOverload, schema_of
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.units import counted

_log = logging.getLogger("remat")

MEASURED_DEVICES = ("cpu", "cuda")
# Each op runs this often, or as often as fits into these nanoseconds, but at least a few times.
_MOST_RUNS, _FEWEST_RUNS, _ENOUGH_NS = 21, 3, 50_000_000


def measure_joint(joint: Joint, device: str, observe: Observer | None = None) -> Measurements:
    """Measure each op of a step on tensors of its shapes.

    Equal ops run once.

    Indices are drawn evenly from their valid range; other values are random, too. Ops that torch cannot run alone (an
    op with a graph inside, communication between processes, a check of values) are left out.

    Args:
        joint: the step.
        device: kind of device to run on: "cpu", or "cuda" (untried).
        observe: is told the progress.

    Raises:
        GraphError: an op does not run.
    """
    observe = observe or Observer()
    known: dict[str, tuple[int, int]] = {}
    times: dict[str, int] = {}
    workspace: dict[str, int] = {}
    ops = [op for op in joint.ops if op.node is None or _runs_alone(op.node)]
    for number, op in enumerate(ops):
        observe.phase(f"measuring op {number + 1:,} of {len(ops):,}: {op.name}")
        kind = "" if op.node is None else _kind(op.node)
        if kind not in known:
            known[kind] = (0, 0) if op.node is None else _measured(op, op.node, device)
        times[op.name], workspace[op.name] = known[kind]
    return Measurements(times, workspace, signatures={op.name: signature(op) for op in ops}, machine=machine(device))


def measure_once(joint: Joint, device: str, known: dict[str, tuple[int, int]]) -> Measurements:
    """Measure each unknown kernel of a step by two or three runs.

    This takes less time than two steps.

    Floating-point operands hold one number everywhere, as drawing takes longer than most kernels. Ops that torch cannot
    run alone are left out. The user's next random numbers stay the same.

    Args:
        joint: the step.
        device: kind of device to run on: "cpu", or "cuda" (untried).
        known: earlier measurements by kind of op: time in nanoseconds, and bytes; new ones are added.
    """
    ops = [op for op in joint.ops if op.node is None or _runs_alone(op.node)]
    kinds = {op.name: "" if op.node is None else _kind(op.node) for op in ops}
    known.setdefault("", (0, 0))
    new = {kinds[op.name]: op for op in ops if kinds[op.name] not in known}
    with torch.random.fork_rng(), without_modes(), torch.autocast(device, enabled=False):
        taken = _taken_once(new, device)
        # A first run may set up more, as that of an LSTM does: kernels that took memory are warm in a second.
        taken |= _taken_once({kind: new[kind] for kind, size in taken.items() if size}, device)
        known.update({kind: (_time_once(new[kind].node, device), size) for kind, size in taken.items()})
    measured = {name: known[kind] for name, kind in kinds.items() if kind in known}
    return Measurements(
        {name: time for name, (time, _) in measured.items()},
        {name: size for name, (_, size) in measured.items()},
        signatures={op.name: signature(op) for op in ops if op.name in measured},
        machine=machine(device),
    )


def _taken_once(new: Mapping[str, JointOp], device: str) -> dict[str, int]:
    """Run each op; return the bytes besides inputs and outputs.

    Ops that do not run are left out.
    """
    calls = {kind: partial(_call, op.node, drawn=False) for kind, op in new.items() if op.node is not None}
    return {kind: max(0, taken - _new_bytes(new[kind])) for kind, taken in _peaks_of(calls, device).items()}


def _peaks_of(calls: Mapping[str, Callable[[], Callable[[], object]]], device: str) -> dict[str, int]:
    """Run each call once; return the bytes that it takes at its peak.

    Calls that fail are left out.

    Args:
        calls: functions that make the operands and return the call.
        device: kind of device to run on.
    """
    runs: dict[str, tuple[int, int]] = {}
    peaks: dict[str, int] = {}

    def run_all() -> None:
        for kind, prepared in calls.items():
            try:
                call = prepared()
                start = time_ns()
                if device == "cuda":
                    peaks[kind] = peak_of(call, device)
                else:
                    call()
                runs[kind] = start, time_ns()
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                reason = (str(error).splitlines() or [""])[0]
                _log.info("%s was not measured, as it does not run by itself: %s", kind, reason)

    if device == "cuda":
        run_all()
    else:
        allocations = allocations_of(run_all)
        peaks = {kind: allocations.peak_between(*run) - allocations.at(run[0]) for kind, run in runs.items()}
    return peaks


def _new_bytes(op: JointOp) -> int:
    """Return the bytes of an op's results in a measurement."""
    return sum(storage.bytes for storage in op.makes) if op.inplace is None else 0


def _kind(node: fx.Node) -> str:
    """Return the key of ops with the same time and memory."""
    return f"{written(node, named=False)}{' in place' if IN_PLACE in node.meta else ''}"


def workspace_of(op: Callable[..., Any], args: Any, kwargs: Any, device: str) -> int:
    """Return an op's bytes besides inputs and outputs.

    0 if the op does not run alone. An op by which ranks communicate does not run, as the others would have to run it,
    too.

    Args:
        op: the op; it runs once.
        args: positional arguments; tensors without data are replaced by others with the same strides.
        kwargs: keyword arguments.
        device: kind of device to run on.
    """
    return 0 if is_between_ranks(op) else workspaces_of({str(op): (op, args, kwargs)}, device)[str(op)]


def workspaces_of(calls: Mapping[str, tuple[Callable[..., Any], Any, Any]], device: str) -> dict[str, int]:
    """Return the bytes of several calls besides inputs and outputs.

    0 for a call that does not run alone. The user's next random numbers stay the same.

    Args:
        calls: op, positional and keyword arguments by the kind of call, as for `workspace_of`.
        device: kind of device to run on.
    """
    new_bytes: dict[str, int] = {}

    def prepared(kind: str) -> Callable[[], object]:
        op, args, kwargs = calls[kind]
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        drawn = {leaf: drawn_like(leaf, 1, drawn=False, device=device) for leaf in tensors}
        real, named = pytree.tree_map_only(torch.Tensor, drawn.__getitem__, (args, kwargs))
        given = {storage_key(tensor) for tensor in drawn.values()}

        def call() -> object:
            results = op(*real, **named)
            new = {storage_key(tensor): tensor for tensor in tensors_of(results)}
            new_bytes[kind] = sum(new[key].untyped_storage().nbytes() for key in new.keys() - given)
            return results

        return call

    with torch.random.fork_rng(), without_modes(), torch.autocast(device, enabled=False), torch.no_grad():
        peaks = _peaks_of({kind: partial(prepared, kind) for kind in calls}, device)
    return {kind: max(0, peaks[kind] - new_bytes[kind]) if kind in peaks else 0 for kind in calls}


def _time_once(node: fx.Node | None, device: str) -> int:
    assert node is not None
    return time_of(_call(node, drawn=False), device)


def _runs_alone(node: fx.Node) -> bool:
    """Tell whether an op can run on random values; a check of values, which returns nothing, would fail."""
    if not isinstance(node.target, OpOverload) or node.target.namespace not in ("aten", "prims", "remat"):
        return False
    return bool(schema_of(node.target).returns) or schema_of(node.target).is_mutable


def _measured(op: JointOp, node: fx.Node, device: str) -> tuple[int, int]:
    """Return the time and the workspace of one run.

    The time is in nanoseconds, the workspace in bytes without inputs and outputs.
    """
    try:
        call = _call(node)
        call()
        taken = peak_of(call, device)
        return median_time(call, device), max(0, taken - _new_bytes(op))
    except RuntimeError as error:
        at = f" ({place})" if (place := source_of(node)) else ""
        reason = (str(error).splitlines() or [""])[0]
        raise GraphError(
            f"op {op.name!r}{at} does not run by itself: {reason}",
            hint="is there memory enough? else please report it, with the op",
        ) from error


def median_time(call: Callable[[], object], device: str) -> int:
    """Return the median of several runs, in nanoseconds."""
    times: list[int] = []
    while len(times) < _FEWEST_RUNS or (len(times) < _MOST_RUNS and sum(times) < _ENOUGH_NS):
        times.append(time_of(call, device))
    return int(median(times))


def _call(node: fx.Node, *, drawn: bool = True) -> Callable[[], object]:
    bounds = dict(_index_bounds(node))
    operands = {
        source: drawn_like(source.meta["val"], bounds.get(source, 1), drawn=drawn) for source in node.all_input_nodes
    }
    args, kwargs = map_arg((node.args, node.kwargs), operands.__getitem__)
    target = in_place_of(node.target) if IN_PLACE in node.meta else node.target
    assert callable(target)
    return partial(torch.no_grad()(target), *args, **kwargs)


def drawn_like(value: Any, bound: int, *, drawn: bool = True, device: str | None = None) -> Any:
    """Return a random tensor with a fake tensor's layout and type.

    Indices are below `bound`.

    Args:
        value: the fake tensor; other values are returned unchanged.
        bound: bound of indices.
        drawn: draw floating-point numbers; otherwise all are equal.
        device: device of the tensor; None takes the fake tensor's.
    """
    if not isinstance(value, torch.Tensor):
        return value
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    extent, where = extent if value.numel() else 0, device or value.device
    if not drawn and value.dtype.is_floating_point:
        flat = torch.full((extent,), 0.5, device=where).to(value.dtype)
    elif value.dtype.is_floating_point or value.dtype.is_complex:
        flat = torch.randn(extent, dtype=torch.float32, device=where).to(value.dtype)
    else:
        most = 2 if value.dtype == torch.bool else max(1, bound)
        flat = torch.randint(most, (extent,), device=where).to(value.dtype)
    return flat.as_strided(value.shape, value.stride())


def _index_bounds(node: fx.Node) -> Iterator[tuple[fx.Node, int]]:
    """Yield an op's index operands, with their bounds.

    For other integers the bound 1 is right.
    """
    operands = {name: numbered(value) for name, value in arguments(node).items()}
    for name, bound in _bounds(short_name(node), operands):
        for place, index in enumerate(nodes_in(operands.get(name))):
            yield index, bound(place)


def _bounds(kind: str, operands: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[int], int]]]:
    """Yield the names of an op's index operands, with bounds.

    A bound is a function of the number of the operand's tensor.
    """

    def shape(name: str) -> tuple[int, ...]:
        return tuple(operands[name].meta["val"].shape)

    if kind == "aten.embedding":
        yield "indices", lambda _: shape("weight")[0]
    elif kind == "aten.embedding_dense_backward":
        yield "indices", lambda _: int(operands["num_weights"])
    elif kind.startswith("aten.nll_loss"):
        yield "target", lambda _: shape("self")[min(1, len(shape("self")) - 1)]
    elif kind.startswith("aten.max_pool") and "indices" in operands:
        yield "indices", lambda _: prod(shape("self")[-(3 if "3d" in kind else 2) :])
    elif kind in ("aten.index", "aten.index_put", "aten._unsafe_index", "aten._unsafe_index_put"):
        places = [place for place, index in enumerate(operands["indices"]) if index is not None]
        yield "indices", lambda n: shape("self")[places[n]]
    elif "dim" in operands and "index" in operands and "self" in operands:
        yield "index", lambda _: (shape("self") or (1,))[operands["dim"]]


def machine(device: str) -> str:
    """Return a description of the machine for people.

    It has the version of torch, the processor, and the number of threads.
    """
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    count = torch.get_num_threads()
    threads = "" if device == "cuda" else f", {counted(count, 'thread')}"
    return f"torch {torch.__version__} on {name}{threads}"
