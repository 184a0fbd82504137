"""A training step as eager PyTorch runs it, without a plan: its peak, and what fills it.

The step runs on tensors without data, which takes seconds; nothing is captured. The captured step's plain run keeps
less: it is what a plan at 100 % takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from remat_cli.config import GraphOptions, load_device
from remat_cli.core.graph import Graph, Op, Phase
from remat_cli.core.schedule import Compute, Schedule
from remat_cli.core.simulate import Trace, simulate
from remat_cli.costs import Measurements
from remat_cli.errors import GraphError
from remat_cli.formats.model_config import names_step
from remat_cli.prepare import Prepared, prepare_reading
from remat_cli.pytorch.capture import check_installed
from remat_cli.training import KeptOfModule

if TYPE_CHECKING:
    from remat_cli.pytorch.capture.cuda_kernels import CudaKernels
    from remat_cli.pytorch.capture.eager import EagerOp, EagerStep


@dataclass(frozen=True, eq=False)
class EagerReplay:
    """A step in eager mode, replayed by the judge.

    Attributes:
        reference: names the step's function.
        step: the step; all that the model returns is held during its backward pass, as training loops do.
        prepared: its graph, with times.
        trace: the judge's measurement.
    """

    reference: Path
    step: EagerStep
    prepared: Prepared
    trace: Trace

    @property
    def graph(self) -> Graph:
        """The graph of the ops that ran."""
        return self.prepared.graph

    @property
    def schedule(self) -> Schedule:
        """Every op once, and each storage freed where eager lets it go."""
        return self.step.schedule

    @property
    def peak_bytes(self) -> int:
        """The peak without a plan."""
        return self.trace.peak_bytes

    @property
    def uncounted_bytes(self) -> int:
        """Workspace at the peak that the captured step's peaks do not count: that of ops that were not measured."""
        if self.prepared.options.measurements is not None:
            return 0
        step = self.schedule.steps[self.trace.peak_step]
        return self.graph.op[step.op].workspace_bytes if isinstance(step, Compute) else 0

    def with_workspace(self, graph: Graph) -> Graph:
        """Return the captured step's graph with the workspace of eager's kernels.

        Ops are equal whose type and sizes are.
        """
        known: dict[object, int] = {}
        for op in self.graph.ops:
            key = _kind_of(self.graph, op)
            known[key] = max(op.workspace_bytes, known.get(key, 0))
        sizes = {op.name: known.get(_kind_of(graph, op), 0) for op in graph.ops}
        return Measurements({}, sizes).with_workspace(graph).checked()

    @cached_property
    def let_go_bytes(self) -> int:
        """The peak if the loop lets go of all returned values but the loss before the backward pass."""
        if not self.step.results:
            return self.peak_bytes
        return _run(self.reference, self.prepared.options, outputs_held=False).peak_bytes

    @cached_property
    def kept_by_module(self) -> tuple[KeptOfModule, ...]:
        """What autograd keeps from forward to backward pass, by the module that made it, the largest first.

        Parameters and inputs do not count.
        """
        step = self.step
        forward = sum(1 for op in step.ops if op.phase is Phase.FORWARD)
        kept = {item.storage for item in step.kept if item.at <= forward and item.until >= forward - 1}
        parts: dict[str, dict[str, EagerOp]] = {}
        for op in step.ops[:forward]:
            for name in kept.intersection(op.makes):
                parts.setdefault(step.modules.get(op.name, ""), {})[name] = op
        modules = (_of_module(module, makers, step.bytes) for module, makers in parts.items())
        return tuple(sorted(modules, key=lambda part: (-part.bytes, part.module)))


def _kind_of(graph: Graph, op: Op) -> object:
    given = tuple(sorted(graph.tensors[name].bytes for name in op.inputs))
    return op.type, given, tuple(graph.tensors[name].bytes for name in op.outputs[:1])


def _of_module(module: str, makers: Mapping[str, EagerOp], sizes: Mapping[str, int]) -> KeptOfModule:
    largest = max(makers, key=lambda name: sizes[name])
    return KeptOfModule(module, sum(sizes[name] for name in makers), len(makers), largest, makers[largest].source)


def eager_run(path: Path, options: GraphOptions) -> EagerReplay | None:
    """Return the eager run of a training step; None of a file or a fused step.

    Raises:
        UsageError: there is no such function, it does not take the dims, or torch is missing.
        GraphError: it is no training step, or fails on tensors without data.
    """
    if not names_step(path) or options.fused:
        return None
    check_installed()
    return _run(path, options, outputs_held=True)


def known_eager_run(path: Path, options: GraphOptions) -> EagerReplay | None:
    """Return the eager run of a step; None where there is none, or it fails on tensors without data.

    Raises:
        UsageError: as `eager_run`.
    """
    try:
        return eager_run(path, options)
    except GraphError:  # the capture tells why, or succeeds
        return None


def eager_peak_of(path: Path, options: GraphOptions) -> int | None:
    """Return eager's peak in bytes; None as `known_eager_run`.

    Raises:
        UsageError: as `eager_run`.
    """
    run = known_eager_run(path, options)
    return None if run is None else run.peak_bytes


def kernels_of(options: GraphOptions) -> CudaKernels | None:
    """Return the kernels of the device of the options; None for the CPU's."""
    from remat_cli.pytorch.capture.cuda_kernels import CudaKernels

    return None if options.device is None else CudaKernels.of(load_device(options.device).compute_capability)


def _run(path: Path, options: GraphOptions, *, outputs_held: bool) -> EagerReplay:
    from remat_cli.pytorch.capture.eager import run_eagerly
    from remat_cli.pytorch.capture.reader import name_of_graph
    from remat_cli.pytorch.memory.workspace import kernel_workspace

    step = run_eagerly(
        str(path),
        options,
        accumulate=options.accumulate,
        outputs_held=outputs_held,
        kernels=kernels_of(options),
        ranks=options.ranks,
    )
    # The gradients from before are in the step; what is measured or split is known of the captured step.
    cost_model = None if options.cost_model == "measured" else options.cost_model
    alone = replace(options, accumulate=False, update=False, ranks=None, measurements=None, parts={}, strict=False)
    alone = replace(alone, cost_model=cost_model)
    workspace = Measurements({}, {**kernel_workspace(step.calls_alone), **step.workspace_bytes})
    prepared = prepare_reading(step.reading(name_of_graph(str(path))), str(path), alone, measured=workspace)
    trace = simulate(prepared.graph, step.schedule)
    return EagerReplay(path, step, replace(prepared, options=options), trace)
