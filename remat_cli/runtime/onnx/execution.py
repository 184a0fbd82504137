"""A model and its rewritten form, run in child processes: outputs, order and memory held against each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from remat_cli.formats.onnx.given_values import fitted
from remat_cli.formats.onnx.reader import SizedModel
from remat_cli.formats.onnx.structure import Node, stored_names
from remat_cli.formats.onnx.upper_bounds import upper_bounds
from remat_cli.formats.onnx.values import TensorType, Value, type_proto
from remat_cli.formats.onnx.walk import all_graphs, all_nodes
from remat_cli.runtime.onnx.external_data import location_of
from remat_cli.runtime.onnx.memory_divergence import first_parting
from remat_cli.runtime.onnx.node_order import without_dead_ops
from remat_cli.runtime.onnx.rewrite import Rewritten
from remat_cli.runtime.onnx.session import import_onnxruntime
from remat_cli.settings import Setting, Wording
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    import onnx

# Tolerance between measured and predicted peak: the larger of the two.
TOLERANCE_BYTES = 2 * 2**20
TOLERANCE_SHARE = 0.03
# Tolerance between two runs of the same model, which came to within 130 KiB of each other.
NOISE_BYTES = 2**18
_TIMED_RUNS = 5
_MEASURED_RUNS = 3
_ITERATIONS = 2
_KEEP_NUMBERS = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
# The number of runs, or the size of the results, of these depends on values.
_SIZED_BY_DATA = frozenset(("Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Unique"))

# onnxruntime says this where a kernel refuses its inputs, not where it refuses the model.
_WHILE_RUNNING = "while running"

_RANDOM_TYPES = frozenset(
    ("float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The peak of a run beside weights and graph inputs, in bytes.

    Attributes:
        predicted: by the simulator.
        measured: in onnxruntime.
        at_most: which branch runs, or how often, is not known: what is predicted is the most that it may take.
    """

    predicted: int
    measured: int
    at_most: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the two are within the tolerance, or less is measured than the most that it may take."""
        off = self.measured - self.predicted
        tolerance = max(TOLERANCE_BYTES, TOLERANCE_SHARE * self.predicted)
        return off <= tolerance and (self.at_most or off >= -tolerance)


@dataclass(frozen=True, slots=True)
class UsualRun:
    """What the model takes in a session with onnxruntime's default options: optimised, with an arena.

    Attributes:
        peak_bytes: what the process comes to hold beside weights and graph inputs; None where it does not run.
        time_ns: of one run.
        failure: why it does not run.
    """

    peak_bytes: int | None = None
    time_ns: int | None = None
    failure: str = ""

    def beside(self, measured: int) -> str:
        """Return what this takes beside what was measured with `session_options()`, in a sentence, no full stop."""
        ours = f"measured at {format_bytes(measured)} with remat_cli.session_options()"
        if self.peak_bytes is None:
            return f"{ours}; with its own options onnxruntime does not run it: {self.failure}"
        return f"{ours}, at {format_bytes(self.peak_bytes)} with onnxruntime's own options, beside weights and inputs"


@dataclass(frozen=True)
class InBothSessions:
    """What one model takes in a session with `session_options()`, and in one with onnxruntime's own options.

    Attributes:
        version: of onnxruntime.
        ours: with `session_options()`.
        time_ns: of one run of it.
        usual: with onnxruntime's own options.
        random_weights: number of weights whose files are not there, and which were drawn instead.
        upper_bounds: ops that may take less than is predicted.
    """

    runtime: ClassVar[Literal["onnxruntime"]] = "onnxruntime"

    version: str
    ours: ProcessPeak
    time_ns: int
    usual: UsualRun
    random_weights: int
    upper_bounds: tuple[str, ...] = ()

    def broken(self, graph: Graph) -> InvalidSchedule | None:
        """Return the error for a peak that is not the one predicted of `graph`; None where it is."""
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
    """What came of running a model as it is and as rewritten, on the same inputs.

    Attributes:
        version: of onnxruntime.
        usual: the model as it is, with onnxruntime's own options; None where that was not asked for.
        plain: the model as it is, with ours.
        plan: the model as rewritten.
        plain_time_ns: of one run of the model as it is; None where that was not asked for.
        plan_time_ns: of one run of the rewritten model, likewise.
        fused: whether onnxruntime's optimiser has worked on the model.
        nodes: number of nodes of the rewritten model that ran.
        outputs: names of the outputs that were compared.
        changed: those of them that are not the same bit by bit.
        not_finite: those of them that hold infinity or what is no number, of which little can be learnt.
        out_of_order: where the executed order departs from the schedule: the place, the node that should have run
            and the one that did; None where it does not.
        parted_at: where the measured memory departs from the predicted one: the op; None where it does not, or where
            no single op does.
        random_weights: number of weights whose files are not there, and which were drawn instead.
        upper_bounds: ops that may take less than is predicted.
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

    @property
    def holds(self) -> bool:
        """Whether the rewritten model does what the schedule says."""
        return not self.changed and self.out_of_order is None and self.plan.agrees and not self.takes_more

    @property
    def takes_more(self) -> bool:
        """Whether the rewritten model was measured to need more memory than the model as it is."""
        return self.plan.measured > self.plain.measured + NOISE_BYTES

    def broken(self, graph: Graph) -> InvalidSchedule | None:
        """Return the error for the first departure of the rewritten model from graph and schedule; None without one."""
        if self.changed:
            random = [op.name for op in graph.ops if not op.recomputable]
            return InvalidSchedule(
                f"the rewritten model gives other bits at its outputs: {', '.join(map(repr, self.changed))}",
                hint=f"it may draw random numbers: {', '.join(map(repr, random[:4]))}"
                if random
                else "a kernel of this onnxruntime does not repeat itself; compare the two models' outputs",
            )
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
    observe: Observer | None = None,
) -> ModelExecution:
    """Run a model as it is and as rewritten.

    Args:
        path: the model as it is.
        model: what was read of it.
        rewritten: the model as rewritten.
        graph: what was planned.
        computes: the schedule that it was rewritten for; dead ops in it were left out.
        fed: values of inputs that are not drawn, by name, as `--input` takes them.
        seed: of the random inputs and, where there are none, weights.
        time_limit: seconds that each process may take.
        beside_usual: run it with onnxruntime's own options, too, and take the time of all three.
        observe: is told what runs.

    Raises:
        UsageError: as `check_can_measure`, or an input is of a type that cannot be drawn.
        GraphError: onnxruntime cannot run the model as it is.
        InvalidSchedule: it cannot run the rewritten model, or a process was killed or took too long.
    """
    check_can_measure()
    live = without_dead_ops(graph)
    observe, timed_runs = observe or Observer(), _TIMED_RUNS if beside_usual else 0
    bounds = upper_bounds(model.graph)
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, fed, Path(folder)), time_limit)
        observe.phase("running the model as it is")
        try:
            plain = child.run(path, timed_runs=timed_runs)
        except _Failed as failed:
            raise failed.as_error(f"{path} does not run in onnxruntime", GraphError) from None
        usual = None
        if beside_usual:
            observe.phase("running the model with onnxruntime's own options")
            usual = _usual_run(partial(child.run, path))
        try:
            observe.phase("running the rewritten model")
            plan = child.run_proto(rewritten.proto, timed_runs=timed_runs)
            observe.phase("following the order of the rewritten model")
            order = child.run_proto(rewritten.proto, profile=True)["order"]
            schedule = with_frees(live, [name for name in computes if name in live.op])
            peak = ProcessPeak(_peak(live, schedule), plan["peak_bytes"], bool(bounds))
            parted_at = None
            if not peak.agrees:
                parted_at = _parted_at(child, rewritten, live, schedule, observe, at_most=peak.at_most)
        except _Failed as failed:
            raise failed.as_error("the rewritten model does not run in onnxruntime", InvalidSchedule) from None
    outputs = {name: found for name, found in plain["outputs"].items() if found is not None}
    return ModelExecution(
        version=plan["version"],
        usual=usual,
        plain=ProcessPeak(_peak(graph, plain_run(graph)), plain["peak_bytes"], bool(bounds)),
        plan=peak,
        plain_time_ns=plain["time_ns"],
        plan_time_ns=plan["time_ns"],
        fused=is_fused(rewritten.proto),
        nodes=len(rewritten.order),
        outputs=tuple(outputs),
        changed=tuple(name for name, found in outputs.items() if plan["outputs"].get(name) != found),
        not_finite=tuple(name for name, found in outputs.items() if not found["finite"]),
        out_of_order=_out_of_order(rewritten, order),
        parted_at=parted_at,
        random_weights=len(child.request["random_weights"]),
        upper_bounds=bounds,
    )


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
        path: the model as it is.
        model: what was read of it.
        graph: what predicts.
        schedule: by which the model runs.
        rewritten: the model, where it is not the one at `path`.
        fed: values of inputs that are not drawn, by name, as `--input` takes them.
        seed: of the random inputs and, where there are none, weights.
        time_limit: seconds that each process may take.
        observe: is told what runs.

    Raises:
        UsageError: as `check_can_measure`, or an input is of a type that cannot be drawn.
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
            found = run(timed_runs=_TIMED_RUNS)
        except _Failed as failed:
            raise failed.as_error(f"{path} does not run in onnxruntime", GraphError) from None
        observe.phase("running the model with onnxruntime's own options")
        usual = _usual_run(run)
    bounds = upper_bounds(model.graph)
    ours = ProcessPeak(_peak(graph, schedule), found["peak_bytes"], bool(bounds))
    drawn = len(child.request["random_weights"])
    return InBothSessions(found["version"], ours, found["time_ns"], usual, drawn, bounds)


def times_of(
    path: Path, model: SizedModel, rewritten: Rewritten, *, runs: int, seed: int = 0, time_limit: float = 600
) -> tuple[str, dict[str, list[int]]]:
    """Run a rewritten model several times, on random inputs, and take down what each node takes.

    Args:
        path: the model as it is.
        model: what was read of it.
        rewritten: the model as rewritten.
        runs: how often.
        seed: of the random inputs and, where there are none, weights.
        time_limit: seconds that this may take.

    Returns:
        The version of onnxruntime; by the name of each node, nanoseconds of each run.

    Raises:
        UsageError: as `check_can_measure`, or an input is of a type that cannot be drawn.
        GraphError: onnxruntime cannot run the model.
        InvalidSchedule: a process was killed or took too long.
    """
    check_can_measure()
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, None, Path(folder)), time_limit)
        try:
            found = child.run_proto(rewritten.proto, profile=True, runs=runs)
        except _Failed as failed:
            raise failed.as_error(f"{path} does not run in onnxruntime", GraphError) from None
    return found["version"], found["times_ns"]


def kernels_of(
    path: Path, model: SizedModel, nodes: Iterable[Node], *, seed: int = 0, time_limit: float = 600
) -> dict[str, int]:
    """Run some nodes each by itself, on random inputs, and return the workspace of their kernels, by name.

    A node that does not run by itself, or whose inputs cannot be drawn, is left out.

    Args:
        path: the model.
        model: what was read of it, its data kept.
        nodes: nodes of its main graph, without bodies.
        seed: of the random inputs and, where there are none, weights.
        time_limit: seconds that each may take.

    Raises:
        UsageError: an input of the whole model is of a type that cannot be drawn.
    """
    values, found = model.graph.values, {}
    with TemporaryDirectory(prefix="remat-") as folder:
        child = _Child(Path(folder), _request(path, model, seed, None, Path(folder)), time_limit)
        for node in nodes:
            alone = _alone(model, node)
            try:
                inputs = [_drawn_input(given.name, model) for given in alone.graph.input]
                answer = child.run_proto(alone, inputs=inputs)
            except (_Failed, UsageError):
                continue
            found[node.name] = max(0, answer["peak_bytes"] - sum(values[name].type.bytes for name in node.outputs))
    return found


def _alone(model: SizedModel, node: Node) -> onnx.ModelProto:
    """Return a model of one node; the weights that it reads are those of the whole."""
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
    """Check that there is an onnxruntime, and an operating system that tells what it takes.

    Raises:
        UsageError: one of them is missing.
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
    """Return what all runs have in common; arrays that are fed lie in files in `workplace`."""
    values = model.graph.values
    given = {name: values[name].data for name in model.graph.inputs}
    data = {name: array for name, array in given.items() if array is not None}
    for name, value in (fed or {}).items():
        data[name] = fitted(name, value, values[name].type if name in model.graph.inputs else None)
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
        "random_weights": [_drawn_weight(one) for one in outside if not (folder / location_of(one)).exists()],
    }


def _trip_counts(model: SizedModel) -> dict[str, int]:
    """Return the inputs that say how often a Loop runs, each with a number that fits the sizes that were planned.

    That is the length of what a Loop collects. A Loop that collects nothing takes as much in two iterations as in more.
    """
    maker = {name: node.node for node in model.graph.nodes for name in node.node.outputs}
    counts = {}
    for node in (one.node.proto for one in model.graph.nodes if one.node.proto.op_type == "Loop"):
        name = node.input[0]
        while name in maker and maker[name].proto.op_type in _KEEP_NUMBERS:
            name = maker[name].proto.input[0]
        kinds = [model.graph.values[made].type for made in node.output[len(node.input) - 2 :] if made]
        lengths = [kind.shape[0] for kind in kinds if isinstance(kind, TensorType) and kind.shape]
        if name in model.graph.inputs:
            counts[name] = max(lengths, default=_ITERATIONS)
    return counts


def _read_in(model: onnx.ModelProto) -> set[str]:
    """Return what a model's nodes read: onnxruntime drops unread weights and rejects values supplied for them."""
    return {name for node in all_nodes(model.graph.node) for name in node.input}


def _drawn_input(name: str, model: SizedModel) -> tuple[str, str, Sequence[int]]:
    kind = model.graph.values[name].type
    if not isinstance(kind, TensorType) or kind.shape is None or kind.element.name not in _RANDOM_TYPES:
        raise UsageError(
            f"there are no random inputs for {name!r}: it is no tensor of numbers",
            hint="only models that take tensors of numbers can be executed",
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
    """A child process did not give a result.

    Attributes:
        reason: why, for people.
        hint: what to do; empty where the model itself is at fault.
    """

    def __init__(self, reason: str, hint: Wording = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

    def as_error(self, what: str, kind: type[GraphError | InvalidSchedule]) -> GraphError | InvalidSchedule:
        """Return the error to show: one about the model, or one without a cause."""
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
        folder: for files that come and go.
        request: what all runs have in common.
        time_limit: seconds that each may take.
    """

    folder: Path
    request: Mapping[str, Any]
    time_limit: float

    def run_proto(self, model: onnx.ModelProto, *, profile: bool = False, **particular: Any) -> dict[str, Any]:
        """Run a model that is not in a file yet: for its peak, or with `profile` for its order and times."""
        path = self.folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        read = _read_in(model)
        weights = [weight for weight in self.request["random_weights"] if weight[0] in read]
        prefix = str(self.folder / "profile") if profile else None
        return self.run(path, random_weights=weights, profile_prefix=prefix, **particular)

    def run(self, model: Path, **particular: Any) -> dict[str, Any]:
        """Run the model in a file.

        Raises:
            _Failed: see there.
        """
        asked, result = self.folder / "request.json", self.folder / "result.json"
        usual = {"profile_prefix": None, "runs": 1, "timed_runs": 0, "as_it_comes": False}
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
        found = run(as_it_comes=True, timed_runs=_TIMED_RUNS)
    except _Failed as failed:
        return UsualRun(failure=failed.reason)
    return UsualRun(found["peak_bytes"], found["time_ns"])


def _crash(code: int, said: str) -> _Failed:
    if code == -signal.SIGKILL:
        return _Failed("its process was killed", "most likely the machine ran out of memory: use smaller sizes")
    if code < 0:
        return _Failed(f"its process ended by {signal.Signals(-code).name}", "onnxruntime crashed; try another version")
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    return _Failed(f"its process ended with code {code}: {last[0]}", "is the installation of onnxruntime complete?")


def _refusal(message: str) -> _Failed:
    """Return the failure that an exception in the child means."""
    is_memory = any(text in message for text in ("out of memory", "bad_alloc", "Failed to allocate memory"))
    return _Failed(message, "the machine has too little memory: use smaller sizes" if is_memory else "")


def _peak(graph: Graph, schedule: Schedule) -> int:
    return simulate(graph, schedule).peak_bytes - graph.fixed_bytes


def _out_of_order(rewritten: Rewritten, executed: Sequence[str]) -> tuple[int, str, str] | None:
    """Return where the executed order departs first from the file's; nodes in bodies are not looked at.

    Nor are casts that do not run at all: onnxruntime leaves out those that change nothing.
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
    """Return the op by which the measured memory departs from the predicted one."""
    memory = simulate(graph, schedule).memory_bytes[1:]
    steps = zip(schedule.steps, memory, strict=True)
    predicted = [size - graph.fixed_bytes for step, size in steps if isinstance(step, Compute | Inplace)]

    def departs(model: onnx.ModelProto, peak: int) -> bool:
        observe.phase(f"looking for the op at which memory departs: {len(model.graph.node)} nodes")
        return not ProcessPeak(peak, child.run_proto(model)["peak_bytes"], at_most).agrees

    found = first_parting(rewritten, predicted, departs)
    return None if found is None else schedule.computes[found]
