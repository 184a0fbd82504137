"""A model and its rewritten form, executed in child processes.

Their outputs, order and memory are compared.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Compute, Inplace, Schedule, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.formats.onnx.contrib import is_fused
from remat_cli.formats.onnx.dtypes import ELEMENT_TYPES
from remat_cli.formats.onnx.external_data import location_of
from remat_cli.formats.onnx.given_values import fitted
from remat_cli.formats.onnx.reader import SizedModel
from remat_cli.formats.onnx.structure import Node, stored_names
from remat_cli.formats.onnx.upper_bounds import upper_bounds
from remat_cli.formats.onnx.values import TensorType, Value, type_proto
from remat_cli.formats.onnx.walk import all_graphs, all_nodes
from remat_cli.runtime.onnx.memory_divergence import first_parting
from remat_cli.runtime.onnx.node_order import without_dead_ops
from remat_cli.runtime.onnx.rewrite import Rewritten
from remat_cli.runtime.onnx.session import import_onnxruntime
from remat_cli.settings import Setting, Wording
from remat_cli.splitting import regions_in_words
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    import onnx

# Tolerances between measured and predicted peak; the larger one counts.
TOLERANCE_BYTES = 2 * 2**20
TOLERANCE_SHARE = 0.03
# Tolerance between two runs of the same model; they agreed within 130 KiB.
NOISE_BYTES = 2**18
_TIMED_RUNS = 5
_MEASURED_RUNS = 3
_ITERATIONS = 2
_MOST_WORDS = 1000
_KEEP_NUMBERS = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
# The number of runs, or the size of results, of these ops depends on values.
_SIZED_BY_DATA = frozenset(("Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Unique"))

# Text in onnxruntime's message if a kernel refuses its inputs, not if the model is refused.
_WHILE_RUNNING = "while running"

_RANDOM_TYPES = frozenset(
    ("float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The peak of a run without weights and graph inputs, in bytes.

    Attributes:
        predicted: peak in the simulator.
        measured: peak in onnxruntime.
        at_most: the prediction is an upper bound: which branch runs, or how often, is unknown.
    """

    predicted: int
    measured: int
    at_most: bool = False

    @property
    def agrees(self) -> bool:
        """Whether both peaks agree within the tolerance.

        For an upper bound the measured peak may also be lower.
        """
        off = self.measured - self.predicted
        tolerance = max(TOLERANCE_BYTES, TOLERANCE_SHARE * self.predicted)
        return off <= tolerance and (self.at_most or off >= -tolerance)


@dataclass(frozen=True, slots=True)
class UsualRun:
    """Peak and time of the model with onnxruntime's default options.

    By default, onnxruntime optimises the model and uses an arena.

    Attributes:
        peak_bytes: most bytes of the process without weights and graph inputs; None if the model does not run.
        time_ns: time of one run.
        failure: why the model does not run.
    """

    peak_bytes: int | None = None
    time_ns: int | None = None
    failure: str = ""

    def compared_with(self, measured: int) -> str:
        """Return a sentence that compares `measured` with this run.

        `measured` is the peak with `session_options()`. The sentence has no full stop.
        """
        ours = f"measured at {format_bytes(measured)} with remat_cli.session_options()"
        if self.peak_bytes is None:
            return f"{ours}; with its own options onnxruntime does not run it: {self.failure}"
        return f"{ours}, at {format_bytes(self.peak_bytes)} with onnxruntime's own options, beside weights and inputs"


@dataclass(frozen=True)
class InBothSessions:
    """Peaks and times of a model in two sessions.

    One has `session_options()`, the other onnxruntime's own options.

    Attributes:
        version: version of onnxruntime.
        ours: peak with `session_options()`.
        time_ns: time of one run with `session_options()`.
        usual: peak and time with onnxruntime's own options.
        random_weights: number of weights without a file, drawn at random.
        upper_bounds: ops that may need less memory than predicted.
    """

    runtime: ClassVar[Literal["onnxruntime"]] = "onnxruntime"

    version: str
    ours: ProcessPeak
    time_ns: int
    usual: UsualRun
    random_weights: int
    upper_bounds: tuple[str, ...] = ()

    def broken(self, graph: Graph) -> InvalidSchedule | None:
        """Return the error for a peak that differs from the prediction.

        None if the peaks agree.
        """
        if self.ours.agrees:
            return None
        return InvalidSchedule(
            f"{graph.name}: the measured peak, {format_bytes(self.ours.measured)}, is not the predicted one, "
            f"{format_bytes(self.ours.predicted)}",
            hint="where a file leaves out sizes, onnxruntime shares less memory: plan it, and run what 'remat apply' "
            "writes; 'remat measure' measures the workspace of kernels",
        )


@dataclass(frozen=True)
class ModelExecution:
    """The results of a model and its rewritten form on the same inputs.

    Attributes:
        version: version of onnxruntime.
        usual: the original model, with onnxruntime's own options; None if not asked for.
        plain: the original model, with `session_options()`.
        plan: the rewritten model.
        plain_time_ns: time of one run of the original model; None if not asked for.
        plan_time_ns: time of one run of the rewritten model; None if not asked for.
        fused: whether onnxruntime's optimiser has changed the model.
        nodes: number of executed nodes of the rewritten model.
        outputs: names of the compared outputs.
        changed: outputs that are not equal bit by bit, nor to rounding.
        rounded: outputs of a model in parts that are equal to rounding, with their largest difference as a share of the
            largest value.
        not_finite: outputs with infinity or NaN, whose comparison proves little.
        out_of_order: first difference between the executed order and the schedule: the place, the scheduled node and
            the executed node; None if they agree.
        parted_at: op at which the measured memory differs from the prediction; None if they agree, or no single op is
            at fault.
        random_weights: number of weights without a file, drawn at random.
        upper_bounds: ops that may need less memory than predicted.
        differing: regions that alone in parts give other outputs, by the name of an op.
    """

    runtime: ClassVar[Literal["onnxruntime"]] = "onnxruntime"

    version: str
    usual: UsualRun | None
    plain: ProcessPeak
    plan: ProcessPeak
    plain_time_ns: int | None
    plan_time_ns: int | None
    fused: bool
    nodes: int
    outputs: tuple[str, ...]
    changed: tuple[str, ...]
    not_finite: tuple[str, ...]
    out_of_order: tuple[int, str, str] | None
    parted_at: str | None
    random_weights: int
    upper_bounds: tuple[str, ...] = ()
    rounded: Mapping[str, float] = field(default_factory=dict)
    differing: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the rewritten model agrees with the schedule."""
        return not self.changed and self.out_of_order is None and self.plan.agrees and not self.takes_more

    @property
    def takes_more(self) -> bool:
        """Whether the rewritten model measurably needs more memory."""
        return self.plan.measured > self.plain.measured + NOISE_BYTES

    def broken(self, graph: Graph) -> InvalidSchedule | None:
        """Return the error for the rewritten model's first fault.

        A fault is a difference from graph or schedule. None without a fault.
        """
        if self.changed:
            return _other_outputs(self.changed, graph, self.differing)
        if self.out_of_order is not None:
            place, planned, ran = self.out_of_order
            return InvalidSchedule(
                f"at place {place} of the executed order ran {ran!r}, where the schedule has {planned!r}",
                hint="onnxruntime runs an op as several nodes, not one: it has no kernel for it or its type "
                "(float16 on the CPU); plan the model that 'remat fuse' writes, or export it without such ops",
            )
        peak = self.plan
        if peak.agrees and self.takes_more:
            return InvalidSchedule(
                f"the plan raises memory: it was measured at {format_bytes(peak.measured)}, and the model as it is at "
                f"{format_bytes(self.plain.measured)}",
                hint="run the model as it is; the plan's saving is less than what cannot be predicted",
            )
        if peak.agrees:
            return None
        at = "no single op" if self.parted_at is None else f"op {self.parted_at!r}"
        if self.parted_at is not None and graph.op[self.parted_at].type in _SIZED_BY_DATA:
            return InvalidSchedule(
                f"the measured peak, {format_bytes(peak.measured)}, is not the predicted one, "
                f"{format_bytes(peak.predicted)}; they part at {at}, and what that makes depends on its data",
                hint="the inputs are drawn at random here: run the model that 'remat apply' writes on data of your own",
            )
        return InvalidSchedule(
            f"the measured peak, {format_bytes(peak.measured)}, is not the predicted one, "
            f"{format_bytes(peak.predicted)}; they part at {at}",
            hint="its kernel takes memory that is not known to remat, or shares it in another way (float16 on the CPU: "
            "see 'remat fuse'); please report it",
        )


def _other_outputs(changed: Iterable[str], graph: Graph, differing: Sequence[str]) -> InvalidSchedule:
    """Return the error for outputs that are not those of the original model."""
    hint = "a kernel of this onnxruntime does not repeat itself; compare the two models' outputs"
    if random := [op.name for op in graph.ops if not op.recomputable]:
        hint = f"it may draw random numbers: {', '.join(map(repr, random[:4]))}"
    elif differing:
        where = regions_in_words(differing)
        hint = f"other results come from {where} in parts: plan without these parts, and please report it"
    return InvalidSchedule(
        f"the rewritten model gives other bits at its outputs: {', '.join(map(repr, changed))}", hint=hint
    )


def check_parts(
    path: Path,
    model: SizedModel,
    rewritten: Rewritten,
    graph: Graph,
    regions: Mapping[str, Callable[[], onnx.ModelProto]],
    observe: Observer,
) -> str:
    """Run a model and its form in parts on the same random inputs; return the result in words.

    Args:
        path: the original model.
        model: the model as read.
        rewritten: the rewritten model.
        graph: the planned graph.
        regions: as for `execute`.
        observe: is told the progress.

    Raises:
        InvalidSchedule: outputs differ by more than rounding, or onnxruntime runs the original model alone.
    """
    if not all(op.recomputable for op in graph.ops):
        return "the parts were not checked by running: the model draws random numbers"
    try:
        check_can_measure()
        with TemporaryDirectory(prefix="remat-") as folder:
            child = _Child(Path(folder), _request(path, model, 0, None, Path(folder)), time_limit=600)
            files = [str(Path(folder, f"{which}.npz")) for which in ("plain", "plan")]
            observe.phase("running the model as it is")
            plain = child.run(path, outputs_file=files[0], measured_runs=1)
            observe.phase("running the model in parts")
            try:
                outputs = child.run_proto(rewritten.proto, outputs_file=files[1], measured_runs=1)["outputs"]
            except _Failed as failed:
                if failed.hint:  # it was killed, or took too long
                    raise
                raise failed.as_error("the model in parts does not run in onnxruntime", InvalidSchedule) from None
            changed, rounded = _compared(plain["outputs"], outputs, files)
            if changed:
                differing = _differing(child, plain["outputs"], files, regions, observe)
                raise _other_outputs(changed, graph, differing)
    except (_Failed, UsageError) as error:
        return f"the parts were not checked by running: {error}"
    same = f"to rounding, {max(rounded.values()):.1e} of the largest value" if rounded else "bit by bit"
    return f"the parts were checked by running: on random inputs, outputs are those of the model without parts {same}"


def execute(
    path: Path,
    model: SizedModel,
    rewritten: Rewritten,
    graph: Graph,
    computes: Sequence[str],
    *,
    fed: Mapping[str, Any] | None = None,
    seed: int = 0,
    time_limit: float = 600,
    beside_usual: bool = False,
    whole: Graph | None = None,
    regions: Mapping[str, Callable[[], onnx.ModelProto]] | None = None,
    observe: Observer | None = None,
) -> ModelExecution:
    """Run a model and its rewritten form.

    Args:
        path: the original model.
        model: the model as read.
        rewritten: the rewritten model.
        graph: the planned graph.
        computes: computes of the schedule; the rewritten model lacks dead ops.
        fed: given values of inputs, by name, as for `--input`.
        seed: seed of random inputs, and of weights without a file.
        time_limit: time limit of each process, in seconds.
        beside_usual: run the model with onnxruntime's own options, too, and time all three runs.
        whole: the graph without parts; None if the plan has none.
        regions: returns the model with one region alone in parts, by the name of an op.
        observe: is told the progress.

    Raises:
        UsageError: as in `check_can_measure`, or an input has a type without random values.
        GraphError: onnxruntime cannot run the original model.
        InvalidSchedule: onnxruntime cannot run the rewritten model, or a process was killed or took too long.
    """
    check_can_measure()
    live = without_dead_ops(graph)
    observe, timed_runs = observe or Observer(), _TIMED_RUNS if beside_usual else 0
    bounds = upper_bounds(model.graph)
    unsplit = graph if whole is None else whole
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, fed, Path(folder)), time_limit)
        files = [None if whole is None else str(Path(folder, f"{which}.npz")) for which in ("plain", "plan")]
        observe.phase("running the model as it is")
        try:
            plain = child.run(path, timed_runs=timed_runs, outputs_file=files[0])
        except _Failed as failed:
            raise failed.as_error(f"{path} does not run in onnxruntime", GraphError) from None
        usual = None
        if beside_usual:
            observe.phase("running the model with onnxruntime's own options")
            usual = _usual_run(partial(child.run, path))
        try:
            observe.phase("running the rewritten model")
            plan = child.run_proto(rewritten.proto, timed_runs=timed_runs, outputs_file=files[1])
            observe.phase("following the order of the rewritten model")
            order = child.run_proto(rewritten.proto, profile=True)["order"]
            schedule = with_frees(live, [name for name in computes if name in live.op])
            peak = ProcessPeak(_peak(live, schedule), plan["peak_bytes"], bool(bounds))
            parted_at = None
            if not peak.agrees:
                parted_at = _parted_at(child, rewritten, live, schedule, observe, at_most=peak.at_most)
        except _Failed as failed:
            raise failed.as_error("the rewritten model does not run in onnxruntime", InvalidSchedule) from None
        changed, rounded = _compared(plain["outputs"], plan["outputs"], files)
        differing: tuple[str, ...] = ()
        if changed and regions:
            differing = _differing(child, plain["outputs"], files, regions, observe)
    outputs = {name: digest for name, digest in plain["outputs"].items() if digest is not None}
    return ModelExecution(
        version=plan["version"],
        usual=usual,
        plain=ProcessPeak(_peak(unsplit, plain_run(unsplit)), plain["peak_bytes"], bool(bounds)),
        plan=peak,
        plain_time_ns=plain["time_ns"],
        plan_time_ns=plan["time_ns"],
        fused=is_fused(rewritten.proto),
        nodes=len(rewritten.order),
        outputs=tuple(outputs),
        changed=changed,
        rounded=rounded,
        differing=differing,
        not_finite=tuple(name for name, digest in outputs.items() if not digest["finite"]),
        out_of_order=_out_of_order(rewritten, order),
        parted_at=parted_at,
        random_weights=len(child.request["random_weights"]),
        upper_bounds=bounds,
    )


def _compared(
    plain: Mapping[str, Any], plan: Mapping[str, Any], files: Sequence[str | None]
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the outputs that differ by more than rounding, and those that are equal to rounding."""
    unequal = [name for name, digest in plain.items() if digest is not None and plan.get(name) != digest]
    rounded = _rounded(plain, unequal, files)
    return tuple(name for name in unequal if name not in rounded), rounded


def _differing(
    child: _Child,
    plain: Mapping[str, Any],
    files: Sequence[str | None],
    regions: Mapping[str, Callable[[], onnx.ModelProto]],
    observe: Observer,
) -> tuple[str, ...]:
    """Return the regions that alone in parts give other outputs."""

    def differs(name: str) -> bool:
        observe.phase(f"running the region around {name!r} in parts")
        outputs = child.run_proto(regions[name](), outputs_file=files[1], measured_runs=1)["outputs"]
        return bool(_compared(plain, outputs, files)[0])

    return tuple(filter(differs, regions))


def _rounded(outputs: Iterable[str], changed: Collection[str], files: Sequence[str | None]) -> dict[str, float]:
    """Return the changed outputs that are equal to rounding, with the difference as a share of the largest value.

    To rounding is: up to the square root of the distance from 1 to the next number of that type.
    """
    plain, plan = files
    if plain is None or plan is None:
        return {}
    rounded = {}
    with np.load(plain) as expected, np.load(plan) as actual:
        for place, name in enumerate(outputs):
            if name not in changed or f"output{place}" not in actual:
                continue
            one, other = expected[f"output{place}"], actual[f"output{place}"]
            if one.shape != other.shape or not np.issubdtype(one.dtype, np.floating):
                continue
            largest = float(np.abs(one).max(initial=0))
            share = float(np.abs(one.astype(float) - other.astype(float)).max(initial=0)) / (largest or 1.0)
            if share <= float(np.finfo(one.dtype).eps) ** 0.5:
                rounded[name] = share
    return rounded


def in_both_sessions(
    path: Path,
    model: SizedModel,
    graph: Graph,
    schedule: Schedule,
    *,
    rewritten: onnx.ModelProto | None = None,
    fed: Mapping[str, Any] | None = None,
    seed: int = 0,
    time_limit: float = 600,
    observe: Observer | None = None,
) -> InBothSessions:
    """Run one model with `session_options()` and with onnxruntime's own options.

    Args:
        path: the original model.
        model: the model as read.
        graph: the graph that predicts the memory.
        schedule: the model's schedule.
        rewritten: the model, if not the one at `path`.
        fed: given values of inputs, by name, as for `--input`.
        seed: seed of random inputs, and of weights without a file.
        time_limit: time limit of each process, in seconds.
        observe: is told the progress.

    Raises:
        UsageError: as in `check_can_measure`, or an input has a type without random values.
        GraphError: onnxruntime cannot run the model.
        InvalidSchedule: a process was killed or took too long.
    """
    check_can_measure()
    observe = observe or Observer()
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, fed, Path(folder)), time_limit)
        run = partial(child.run, path) if rewritten is None else partial(child.run_proto, rewritten)
        try:
            observe.phase("running the model with session_options()")
            result = run(timed_runs=_TIMED_RUNS)
        except _Failed as failed:
            raise failed.as_error(f"{path} does not run in onnxruntime", GraphError) from None
        observe.phase("running the model with onnxruntime's own options")
        usual = _usual_run(run)
    bounds = upper_bounds(model.graph)
    ours = ProcessPeak(_peak(graph, schedule), result["peak_bytes"], bool(bounds))
    drawn = len(child.request["random_weights"])
    return InBothSessions(result["version"], ours, result["time_ns"], usual, drawn, bounds)


def times_of(
    path: Path, model: SizedModel, rewritten: Rewritten, *, runs: int, seed: int = 0, time_limit: float = 600
) -> tuple[str, dict[str, list[int]]]:
    """Measure the times of a rewritten model's nodes.

    The model runs several times, on random inputs.

    Args:
        path: the original model.
        model: the model as read.
        rewritten: the rewritten model.
        runs: number of runs.
        seed: seed of random inputs, and of weights without a file.
        time_limit: time limit in seconds.

    Returns:
        The version of onnxruntime, and by node name the nanoseconds of each run.

    Raises:
        UsageError: as in `check_can_measure`, or an input has a type without random values.
        GraphError: onnxruntime cannot run the model.
        InvalidSchedule: a process was killed or took too long.
    """
    check_can_measure()
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, None, Path(folder)), time_limit)
        try:
            result = child.run_proto(rewritten.proto, profile=True, runs=runs)
        except _Failed as failed:
            raise failed.as_error(f"{path} does not run in onnxruntime", GraphError) from None
    return result["version"], result["times_ns"]


def kernels_of(
    path: Path, model: SizedModel, nodes: Iterable[Node], *, seed: int = 0, time_limit: float = 600
) -> dict[str, int]:
    """Measure the kernels' workspace of single nodes, by name.

    Each node runs alone, on random inputs.

    A node that does not run alone, or whose inputs have no random values, is left out.

    Args:
        path: the model.
        model: the model as read, with its data.
        nodes: nodes of the main graph, without bodies.
        seed: seed of random inputs, and of weights without a file.
        time_limit: time limit of each node, in seconds.

    Raises:
        UsageError: an input of the whole model has a type without random values.
    """
    values, workspace = model.graph.values, {}
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, None, Path(folder)), time_limit)
        for node in nodes:
            alone = _alone(model, node)
            try:
                inputs = [_drawn_input(given.name, model) for given in alone.graph.input]
                answer = child.run_proto(alone, inputs=inputs)
            except (_Failed, UsageError):
                continue
            workspace[node.name] = max(0, answer["peak_bytes"] - sum(values[name].type.bytes for name in node.outputs))
    return workspace


def _alone(model: SizedModel, node: Node) -> onnx.ModelProto:
    """Return a model of one node with the original weights."""
    import onnx
    from onnx import helper

    values, whole = model.graph.values, model.model
    alone = onnx.ModelProto(ir_version=whole.proto.ir_version)
    alone.opset_import.extend(whole.proto.opset_import)
    alone.graph.name = node.name
    alone.graph.node.append(node.proto)
    alone.graph.initializer.extend(one for one in whole.graph.initializer if one.name in node.reads)
    stored = {one.name for one in alone.graph.initializer}
    for name in node.reads:
        if values[name].is_activation:
            alone.graph.input.append(helper.make_value_info(name, _type_of(values[name])))
        elif name not in stored:
            data = values[name].data
            assert data is not None
            alone.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    alone.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in node.outputs)
    return alone


def _type_of(value: Value) -> onnx.TypeProto:
    assert isinstance(value.type, TensorType)
    return type_proto(value.type)


def check_can_measure() -> None:
    """Check that onnxruntime and Linux's memory counters exist.

    Raises:
        UsageError: onnxruntime or the counters are missing.
    """
    import_onnxruntime()
    if not Path("/proc/self/clear_refs").exists():
        raise UsageError(
            "memory is measured by Linux's /proc, which is not there",
            hint="run it on Linux; 'remat apply' and the model that it writes need none of this",
        )


def _request(
    path: Path, model: SizedModel, seed: int, fed: Mapping[str, Any] | None, workplace: Path
) -> dict[str, Any]:
    """Return the common part of all requests to child processes.

    Arrays of given values are written to files in `workplace`.
    """
    values = model.graph.values
    given = {name: values[name].data for name in model.graph.inputs}
    data = {name: array for name, array in given.items() if array is not None}
    for name, value in (fed or {}).items():
        kind = values[name].type if name in model.graph.inputs else None
        data[name] = fitted(name, value, kind, may_be_text=True)
    files = {name: str(workplace / f"input-{place}.npy") for place, name in enumerate(data)}
    for name, array in data.items():
        np.save(files[name], array)
    folder = Path(os.path.realpath(path.parent))
    read = _read_in(model.model.proto)
    outside = [one for one in model.model.graph.initializer if one.data_location == one.EXTERNAL and one.name in read]
    stored = stored_names(model.model.graph)
    return {
        "weights_folder": str(folder),
        "dims": dict(model.inference.dims),
        "seed": seed,
        "inputs": [_drawn_input(name, model) for name in model.graph.inputs if name not in stored],
        "files": files,
        "filled": _trip_counts(model),
        "words": _words(model.model.proto),
        "random_weights": [_drawn_weight(one) for one in outside if not (folder / location_of(one)).exists()],
    }


def _words(model: onnx.ModelProto) -> list[str]:
    """Return words that a model's nodes know, for random text; a few of any model's."""
    attributes = (attribute for node in all_nodes(model.graph.node) for attribute in node.attribute)
    known = (word.decode(errors="replace") for attribute in attributes for word in attribute.strings)
    return list(islice(dict.fromkeys(known), _MOST_WORDS)) or ["a", "b"]


def _trip_counts(model: SizedModel) -> dict[str, int]:
    """Return trip counts for Loops by input, which fit planned sizes.

    A trip count is the length of a Loop's scan outputs. A Loop without scan outputs needs as much memory in two
    iterations as in more.
    """
    maker = {name: node.node for node in model.graph.nodes for name in node.node.outputs}
    counts = {}
    for node in (one.node.proto for one in model.graph.nodes if one.node.proto.op_type == "Loop"):
        name = node.input[0]
        while name in maker and maker[name].proto.op_type in _KEEP_NUMBERS:
            name = maker[name].proto.input[0]
        kinds = [model.graph.values[output].type for output in node.output[len(node.input) - 2 :] if output]
        lengths = [kind.shape[0] for kind in kinds if isinstance(kind, TensorType) and kind.shape]
        if name in model.graph.inputs:
            counts[name] = max(lengths, default=_ITERATIONS)
    return counts


def _read_in(model: onnx.ModelProto) -> set[str]:
    """Return the names of values that a model's nodes read.

    onnxruntime drops unread weights, and rejects values for them.
    """
    return {name for node in all_nodes(model.graph.node) for name in node.input}


def _drawn_input(name: str, model: SizedModel) -> tuple[str, str, Sequence[int]]:
    kind = model.graph.values[name].type
    drawn = {*_RANDOM_TYPES, "string"}
    if not isinstance(kind, TensorType) or kind.shape is None or kind.element.name not in drawn:
        raise UsageError(
            f"there are no random inputs for {name!r}: it is no tensor of numbers or text",
            hint="only models that take tensors of numbers or text can be executed",
        )
    return name, kind.element.name, kind.shape


def _drawn_weight(tensor: onnx.TensorProto) -> tuple[str, str, Sequence[int]]:
    element = ELEMENT_TYPES[tensor.data_type]
    if element.name not in _RANDOM_TYPES:
        raise UsageError(
            f"the file of weight {tensor.name!r} is not there, and there are no random weights of type {element.name}",
            hint=f"put {location_of(tensor)!r} beside the model",
        )
    return tensor.name, element.name, tuple(tensor.dims)


class _Failed(Exception):
    """A child process ended without a result.

    Attributes:
        reason: why, in words.
        hint: remedy; empty if the model itself is at fault.
    """

    def __init__(self, reason: str, hint: Wording = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

    def as_error(self, what: str, kind: type[GraphError | InvalidSchedule]) -> GraphError | InvalidSchedule:
        """Return the error to show.

        It blames the model, or says only that nothing was verified.
        """
        if self.hint:
            return InvalidSchedule(f"the schedule could not be verified: {self.reason}", hint=self.hint)
        return kind(
            f"{what}: {self.reason}",
            hint="numbers are drawn for its inputs, and 0 or 1 for whole ones; give those that have to be others: "
            "remat verify --execute --input NAME=5, or NAME=FILE.npy"
            if _WHILE_RUNNING in self.reason
            else "does this version of onnxruntime have a kernel for each of its ops?",
        )


@dataclass(frozen=True)
class _Child:
    """Runs models, each in a process of its own.

    Attributes:
        folder: folder for temporary files.
        request: common part of all requests.
        time_limit: time limit of each process, in seconds.
    """

    folder: Path
    request: Mapping[str, Any]
    time_limit: float

    def run_proto(self, model: onnx.ModelProto, *, profile: bool = False, **particular: Any) -> dict[str, Any]:
        """Run a model in memory for its peak.

        With `profile` it runs for its order and times.
        """
        path = self.folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        read = _read_in(model)
        weights = [weight for weight in self.request["random_weights"] if weight[0] in read]
        prefix = str(self.folder / "profile") if profile else None
        return self.run(path, random_weights=weights, profile_prefix=prefix, **particular)

    def run(self, model: Path, **particular: Any) -> dict[str, Any]:
        """Run the model in a file.

        Raises:
            _Failed: the process gave no result.
        """
        asked, result = self.folder / "request.json", self.folder / "result.json"
        usual = {"profile_prefix": None, "runs": 1, "timed_runs": 0, "as_it_comes": False, "outputs_file": None}
        request = {**usual, "measured_runs": _MEASURED_RUNS, **self.request, "model": str(model), **particular}
        asked.write_text(json.dumps(request), encoding="utf-8")
        result.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "remat_cli.runtime.onnx.measured_process", str(asked), str(result)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self.time_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _Failed(
                f"it did not end within {self.time_limit:g} s",
                ("give it more by ", Setting("time_limit"), ", or use smaller sizes"),
            ) from None
        if done.returncode != 0:
            raise _crash(done.returncode, done.stderr.decode(errors="replace"))
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if "error" in answer:
            raise _refusal(answer["error"])
        return answer


def _usual_run(run: Callable[..., dict[str, Any]]) -> UsualRun:
    try:
        result = run(as_it_comes=True, timed_runs=_TIMED_RUNS)
    except _Failed as failed:
        return UsualRun(failure=failed.reason)
    return UsualRun(result["peak_bytes"], result["time_ns"])


def _crash(code: int, said: str) -> _Failed:
    if code == -signal.SIGKILL:
        return _Failed("its process was killed", "most likely the machine ran out of memory: use smaller sizes")
    if code < 0:
        return _Failed(f"its process ended by {signal.Signals(-code).name}", "onnxruntime crashed; try another version")
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    return _Failed(f"its process ended with code {code}: {last[0]}", "is the installation of onnxruntime complete?")


def _refusal(message: str) -> _Failed:
    """Return the failure for an exception in the child."""
    is_memory = any(text in message for text in ("out of memory", "bad_alloc", "Failed to allocate memory"))
    return _Failed(message, "the machine has too little memory: use smaller sizes" if is_memory else "")


def _peak(graph: Graph, schedule: Schedule) -> int:
    return simulate(graph, schedule).peak_bytes - graph.fixed_bytes


def _out_of_order(rewritten: Rewritten, executed: Sequence[str]) -> tuple[int, str, str] | None:
    """Return the first difference between executed order and file.

    Nodes in bodies are not compared.

    Casts that do not run are not compared, either: onnxruntime leaves out casts that change nothing.
    """
    in_bodies = {node.name for graph in islice(all_graphs(rewritten.proto.graph), 1, None) for node in graph.node}
    left_out = {node.name for node in rewritten.proto.graph.node if node.op_type == "Cast"} - set(executed)
    expected = [name for name in rewritten.order if name not in in_bodies | left_out]
    known = set(expected)
    ran = [name for name in executed if name in known]
    for place, (should, did) in enumerate(zip_longest(expected, ran, fillvalue="nothing")):
        if should != did:
            return place, should, did
    return None


def _parted_at(
    child: _Child, rewritten: Rewritten, graph: Graph, schedule: Schedule, observe: Observer, *, at_most: bool
) -> str | None:
    """Return the op at which memory departs from the prediction."""
    memory = simulate(graph, schedule).memory_bytes[1:]
    steps = zip(schedule.steps, memory, strict=True)
    predicted = [size - graph.fixed_bytes for step, size in steps if isinstance(step, Compute | Inplace)]

    def departs(model: onnx.ModelProto, peak: int) -> bool:
        observe.phase(f"looking for the op at which memory departs: {len(model.graph.node)} nodes")
        return not ProcessPeak(peak, child.run_proto(model)["peak_bytes"], at_most).agrees

    index = first_parting(rewritten, predicted, departs)
    return None if index is None else schedule.computes[index]
