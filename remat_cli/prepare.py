"""Preparation of a file's graph for planning: read, derive, cost.

Saved tensors are marked before the training graph is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.config import GIVEN_COSTS, GraphOptions, load_device, load_measurements
from remat_cli.core.graph import Draft, Graph, Kind, Residency
from remat_cli.core.link import Duplex, Link
from remat_cli.core.operators import Operand, Operator
from remat_cli.costs import COST_MODELS, CostModel, Device, Measurements, annotate_work, apply_costs
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats import Reading, can_split, has_fixed_sizes, read_graph, reader_in_parts
from remat_cli.formats.files_read import files_read
from remat_cli.formats.model_config import names_step
from remat_cli.formats.reader import ALL_OTHER_DIMS, UnknownDim
from remat_cli.formats.source import Source
from remat_cli.pytorch import capture
from remat_cli.settings import Setting
from remat_cli.splitting import Split
from remat_cli.training import (
    KeptForBackward,
    Kernels,
    ShardedBlock,
    annotate_saves,
    kept_for_backward,
    sharded_blocks,
    trainable_parameters,
    training_graph,
    training_resident_bytes,
    training_step,
    updates_by,
    with_gathers,
    with_kernels,
    with_parameters,
    with_step_gathers,
    with_update,
)
from remat_cli.units import format_bytes, format_names, format_time, parse_rate

if TYPE_CHECKING:
    from remat_cli.pytorch.capture.reader import TakenStep

_DEFAULT_DEVICE = "generic"
_DEFAULT_OPTIMIZER = "sgd"
_NS = 10**9
_MOST_NAMED = 4


@dataclass(frozen=True)
class GraphOrigin:
    """The file of a graph, which is read again for regions in parts.

    Attributes:
        path: the file.
        options: options for reading.
    """

    path: Path
    options: GraphOptions

    @cached_property
    def undivided(self) -> Graph:
        """The graph without parts."""
        if self.options.parts:
            return prepare(self.path, replace(self.options, parts={}, fused=False)).graph
        return self.in_parts({}).graph

    @cached_property
    def prepared(self) -> Prepared:
        """The graph without parts, prepared."""
        return replace(prepare_reading(read(self.path, self.options), str(self.path), self.options), origin=self)

    @cached_property
    def taken(self) -> TakenStep:
        """The captured PyTorch step, before it is cut."""
        return capture.take(self.path, self.options)

    @property
    def whole_reading(self) -> Reading:
        """The reading of the graph without parts: of a step, the one that is cut."""
        return self.taken.reading() if names_step(self.path) else read_graph(self.path, self.options)

    @cached_property
    def in_parts(self) -> PreparedWith:
        """The function that prepares the graph with regions in parts."""
        path, options = self.path, self.options
        if (fault := why_not_in_parts(path, options)) is not None:
            raise fault
        read_model = None if names_step(path) else reader_in_parts(path, options)
        if read_model is None:
            _ = self.taken  # a step that cannot be captured is refused before its parts are

        def prepared(cuts: Mapping[str, Split]) -> Prepared:
            within = replace(options, parts={**options.parts, **{name: str(cut) for name, cut in cuts.items()}})
            reading = read_model(within) if read_model is not None else self.taken.in_parts(cuts).reading()
            return replace(prepare_reading(reading, str(path), within), origin=self)

        return prepared


@dataclass(frozen=True)
class Prepared:
    """A graph ready to be planned.

    Attributes:
        graph: the graph to plan.
        mode: "training" or "inference".
        link: link to the host; None if its rate is unknown.
        kept: tensors that the plain run keeps for the backward; None for inference.
        parameter_bytes: bytes of trained parameters; 0 if the file does not tell them apart.
        optimizer: optimizer whose state is resident; None without one.
        costs: source of the ops' times, for people.
        notes: remarks for the user, one line each.
        guessed: reason and remedy if sizes are guesses that may be too small; otherwise None.
        understated: reason and remedy if a run is known to take more memory than predicted; otherwise None.
        session: the runtime's session for which the peaks hold, in a sentence; empty if there is no choice.
        exported_to_run: the file shows that it was exported for inference, whatever the mode is.
        trains_by_default: the training graph was derived of an ONNX model without being asked for.
        options: options for reading; with ranks, all figures are those of one rank.
        origin: the file, for regions in parts; None for a graph that was not read from one.
    """

    graph: Graph
    mode: str
    link: Link | None
    kept: KeptForBackward | None
    parameter_bytes: int
    optimizer: str | None
    costs: str
    notes: tuple[str, ...]
    guessed: tuple[str, str] | None = None
    understated: tuple[str, str] | None = None
    session: str = ""
    exported_to_run: bool = False
    trains_by_default: bool = False
    options: GraphOptions = field(default_factory=GraphOptions)
    origin: GraphOrigin | None = field(default=None, repr=False, compare=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files from which the graph was read, with those that the options name."""
        return self.options.files if self.origin is None else (*files_read(self.origin.path), *self.options.files)

    @property
    def undivided(self) -> Graph:
        """The graph without regions in parts: the model as the user gave it."""
        return self.origin.undivided if self.options.parts and self.origin is not None else self.graph

    @property
    def in_parts(self) -> PreparedWith:
        """The function that prepares this graph with regions in parts.

        Raises:
            UsageError: it can have no parts.
        """
        if self.origin is None:
            raise UsageError(
                f"graph {self.graph.name!r} was not read from a file that can be split",
                hint="split takes PyTorch steps, and ONNX models for inference",
            )
        return self.origin.in_parts

    @property
    def is_estimated(self) -> bool:
        """Whether the sizes of some results are guesses, so that peaks may be above those that are told."""
        return self.guessed is not None


# Returns the graph with these regions in parts; raises UsageError where one cannot be.
PreparedWith = Callable[[Mapping[str, Split]], Prepared]


def read(path: Path, options: GraphOptions) -> Reading:
    """Read the graph at `path`: a file of any format, or a function as FILE.py:NAME.

    Raises:
        GraphError: the file, the function or the graph in it is bad.
        UsageError: the options do not fit what is read, or torch is missing.
    """
    options.check()
    return capture.read(path, options) if names_step(path) else read_graph(path, options)


def prepare(path: Path, options: GraphOptions, *, derive_training: bool = True, split: bool = False) -> Prepared:
    """Read the file at `path`, and prepare its graph for planning.

    Args:
        path: a file in any supported format.
        options: options for reading.
        derive_training: whether a forward graph becomes a training graph in training mode; otherwise the result is the
            forward graph, with the marks from which the training graph can be derived.
        split: its regions are going to run in parts: a step that is captured now is not captured for them again.

    Raises:
        GraphError: the file or the graph in it is bad.
        UsageError: the options contradict each other or the file, or the graph cannot be split.
    """
    if split:
        return prepare_in_parts(path, options)({})
    prepared = prepare_reading(read(path, options), str(path), options, derive_training=derive_training)
    return replace(prepared, origin=GraphOrigin(path, options))


def prepare_in_parts(path: Path, options: GraphOptions) -> PreparedWith:
    """Return a function that prepares a PyTorch step, or an ONNX model for inference, with regions in parts.

    Args:
        path: FILE.py:NAME, or a model.
        options: how it is read.

    Raises:
        GraphError: as `prepare`.
        UsageError: it can have no parts, or its ops were measured without parts; the function that is returned: a
            region cannot be split.
    """
    return GraphOrigin(path, options).in_parts


def why_not_in_parts(path: Path, options: GraphOptions) -> UsageError | None:
    """Return the reason why `prepare_in_parts` refuses; None where it does not."""
    if not names_step(path) and not can_split(Source(path), options):
        return UsageError(
            f"{path} is no PyTorch step, and split takes ONNX models for inference alone",
            hint=("name a function, such as train.py:step, or add ", Setting("mode", "inference"), " to an ONNX model"),
        )
    for name, value in (("measurements", options.measurements), ("ranks", options.ranks)):
        if value:
            return UsageError(
                (Setting(name, value), " is known of the step without parts, and does not go with split"),
                hint="leave one of the two out",
            )
    return None


def prepare_without_absent_dims(
    path: Path, options: GraphOptions, optional: Set[str], *, split: bool = False
) -> Prepared:
    """Prepare a graph without the optional dims that it does not have.

    Otherwise the same as `prepare`, but for a graph that cannot be split: it is refused when it is planned.
    """
    if optional and has_fixed_sizes(path):
        options = replace(options, dims=_without(options.dims, optional - {ALL_OTHER_DIMS}))
    while True:
        try:
            return prepare(path, options, split=split and names_step(path))
        except UnknownDim as error:
            if error.dim not in optional:
                raise
            options = replace(options, dims=_without(options.dims, {error.dim}))


def _without(dims: Mapping[str, int], names: Set[str]) -> dict[str, int]:
    return {name: size for name, size in dims.items() if name not in names}


def prepare_reading(
    reading: Reading,
    where: str,
    options: GraphOptions,
    *,
    derive_training: bool = True,
    measured: Measurements | None = None,
) -> Prepared:
    """Prepare the graph of a reading, or of a generator.

    Args:
        reading: the graph as read or generated.
        where: source of the graph, for messages.
        options: as for `prepare`.
        derive_training: as for `prepare`.
        measured: measurements of its ops, if the options name no file of these; without times, they give workspace
            only.

    Raises:
        GraphError: the graph has no training graph.
        UsageError: the options contradict each other or the graph.
    """
    mode = _mode(reading.graph, options, where)
    notes = [*(reading.training_notes if mode == "training" else ()), *reading.notes]
    if empty := sorted(name for name, size in options.dims.items() if size == 0):
        notes.append(
            f"dims of size 0: {format_names(empty, _MOST_NAMED)}; tensors with them are empty, and take no memory"
        )
    # A draft from here on: the reader has checked the graph, and the result is checked again at the end.
    known = _with_operators(reading, mode, options, notes)
    # Costs come first: the backward's cost is known of the forward op, and the file can give it there.
    draft, costs, device = _with_costs(
        known.graph, options, measured or _measured(known.graph, options), has_operators=bool(reading.operators)
    )
    if known.blocks:
        draft = _with_shards(draft, reading, known, device, notes)
    if known.residents:
        draft = with_parameters(draft, known.operators, known.residents)
    if mode == "inference":
        graph = _as_it_is(draft).checked()
    elif draft.kind is Kind.FORWARD and not derive_training:
        graph = draft.checked()
    elif options.update:
        graph = _with_update(draft, reading, known, after_backward=options.update_after_backward)
    else:
        graph = training_graph(draft) if draft.kind is Kind.FORWARD else draft.checked()
    return Prepared(
        graph=graph,
        mode=mode,
        link=_link(graph, options, device),
        kept=kept_for_backward(graph) if graph.kind is Kind.TRAINING else None,
        parameter_bytes=known.parameter_bytes,
        optimizer=known.optimizer,
        costs=costs,
        notes=tuple(notes),
        guessed=reading.guessed,
        understated=reading.understated,
        session=reading.session,
        exported_to_run=reading.exported_to_run,
        trains_by_default=options.mode is None and bool(reading.operators) and graph.kind is not draft.kind,
        options=options,
    )


def _mode(graph: Graph, options: GraphOptions, where: str) -> str:
    if options.mode == "training" and graph.kind is Kind.INFERENCE:
        raise UsageError(
            f"{where}: an inference graph has no training graph",
            hint=(
                "use ",
                Setting("mode", "inference"),
                "; or, if it is a forward pass to be trained, set its kind to 'forward'",
            ),
        )
    if options.mode is not None:
        return options.mode
    return "inference" if graph.kind is Kind.INFERENCE else "training"


@dataclass(frozen=True)
class _Known:
    """The knowledge of a graph from its operators.

    Attributes:
        graph: the graph with its work, its saves (for training) and its resident bytes.
        parameter_bytes: bytes of trained parameters; of one rank's shards if they are sharded.
        optimizer: optimizer whose state is resident.
        operators: operator of each op; empty if the file has none.
        blocks: blocks of sharded parameters; empty without them.
        residents: parameters that become residents of a forward pass without them; empty without an update.
    """

    graph: Draft
    parameter_bytes: int = 0
    optimizer: str | None = None
    operators: Mapping[str, Operator] = field(default_factory=dict)
    blocks: tuple[ShardedBlock, ...] = ()
    residents: tuple[Operand, ...] = ()


def _with_operators(reading: Reading, mode: str, options: GraphOptions, notes: list[str]) -> _Known:
    """Derive work, saves and resident bytes from operators.

    Remarks are added to `notes`.
    """
    graph: Draft = reading.graph
    if options.ranks is not None:
        _check_ranks(reading, mode, options.ranks)
    if options.update:
        _check_update(mode, options)
    operators = reading.operators
    if options.accumulate and (graph.kind is not Kind.TRAINING or not operators):
        raise UsageError(
            (Setting("accumulate"), " needs a PyTorch step"), hint="other graphs have their gradients resident anyway"
        )
    if operators and graph.kind is Kind.TRAINING:
        return _with_step(reading, options, notes)
    if not operators:
        if options.optimizer is not None and not options.update:
            raise UsageError(
                "an optimizer needs a file that tells parameters apart, such as ONNX",
                hint="a JSON graph's resident_bytes counts parameters, gradients and optimizer state already",
            )
        return _Known(graph, optimizer=options.optimizer or _DEFAULT_OPTIMIZER if options.update else None)
    conservative: tuple[str, ...] = ()
    if mode == "training":
        graph, operators = _with_kernels(graph, operators, options, notes)
        graph, conservative = annotate_saves(graph, operators)
    graph = _with_work(graph, operators, options, notes)
    if conservative:
        unknown = format_names(conservative, _MOST_NAMED)
        text = f"what the backward of {unknown} reads is not known; taken to be all inputs and outputs"
        _tell(text, options.strict, notes)
    if mode == "inference":
        return _Known(graph, sum(parameter.bytes for parameter in reading.parameters))
    return _with_trained(graph, operators, trainable_parameters(operators, reading.parameters), options)


def _with_trained(
    graph: Draft, operators: Mapping[str, Operator], trainable: tuple[Operand, ...], options: GraphOptions
) -> _Known:
    """Count trained parameters, their gradients and the optimizer's state; or make residents of parameters."""
    optimizer = options.optimizer or _DEFAULT_OPTIMIZER
    blocks: tuple[ShardedBlock, ...] = ()
    parameter_bytes = sum(parameter.bytes for parameter in trainable)
    rest = graph.resident_bytes - parameter_bytes
    if options.update:
        return _Known(graph.edited(resident_bytes=rest), parameter_bytes, optimizer, operators, residents=trainable)
    if options.ranks is None:
        resident = training_resident_bytes(graph.resident_bytes, trainable, optimizer)
    else:
        # Shards are inputs of the graph, and the step produces their gradients: neither is among the resident bytes.
        blocks = sharded_blocks(graph, operators, trainable, options.ranks)
        trainable = tuple(block.shard for block in blocks)
        resident = training_resident_bytes(rest, trainable, optimizer, gradients=False)
    parameter_bytes = sum(parameter.bytes for parameter in trainable)
    return _Known(graph.edited(resident_bytes=resident), parameter_bytes, optimizer, operators, blocks)


def _check_ranks(reading: Reading, mode: str, ranks: int) -> None:
    said = Setting("ranks", ranks)
    if not reading.parameters:
        raise UsageError(
            (said, f": graph {reading.graph.name!r} does not tell parameters apart"),
            hint="give a file that does, such as ONNX, or generate the graph with these ranks",
        )
    if mode == "inference":
        raise UsageError(
            (said, " shards the parameters of a training step"), hint=("use ", Setting("mode", "training"))
        )
    if reading.graph.kind is Kind.TRAINING and not reading.gradients:
        raise UsageError((said, " has no meaning where gradients are not told apart"), hint="leave it out")
    if reading.optimizer is not None and reading.counts_state:
        raise UsageError(
            (said, f": the state of the step's optimizer, {reading.optimizer}, cannot be sharded"),
            hint=("leave the optimizer out of the step, and use ", Setting("optimizer", "adam")),
        )


def _check_update(mode: str, options: GraphOptions) -> None:
    if mode == "inference":
        raise UsageError((Setting("update"), " is part of a training step"), hint=("use ", Setting("mode", "training")))
    if options.accumulate or options.ranks is not None:
        other = Setting("accumulate") if options.accumulate else Setting("ranks", options.ranks)
        raise UsageError((Setting("update"), " and ", other, " do not go together"), hint="leave one of them out")


def _with_update(draft: Draft, reading: Reading, known: _Known, *, after_backward: bool) -> Graph:
    """Return the training graph that ends with the optimizer's updates."""
    gradient_of: dict[str, str]
    if draft.kind is Kind.FORWARD:
        graph, gradient_of = training_step(draft)
    else:
        graph, gradient_of = draft.checked(), {name: f"{name}.grad" for name in draft.residents}
    frozen = reading.frozen
    if reading.gradients:
        names = (parameter.name for parameter in reading.parameters)
        gradient_of = dict(zip(names, reading.gradients, strict=True))
    else:
        parameters = [name for name in graph.residents if graph.tensors[name].resident is Residency.PARAMETER]
        gradient_of = {name: gradient_of[name] for name in parameters if gradient_of.get(name) in graph.producer}
        frozen = tuple(name for name in parameters if name not in gradient_of)
    if known.optimizer is None or (not gradient_of and not any(op.writes for op in graph.ops)):
        raise UsageError(
            ("no parameter of graph ", repr(graph.name), " is known to have a gradient, so there is nothing to update"),
            hint='give a file that tells parameters apart, such as ONNX; or name "residents" in a JSON graph',
        )
    counted = reading.state_bytes if reading.optimizer is not None and reading.counts_state else None
    updates = updates_by(known.optimizer, graph, gradient_of, counted)
    if counted is not None:
        graph = replace(graph, resident_bytes=graph.resident_bytes - counted)
    return with_update(graph, updates, frozen=frozen, after_backward=after_backward)


def _with_shards(graph: Draft, reading: Reading, known: _Known, device: Device | None, notes: list[str]) -> Draft:
    """Return the graph of one rank, which gathers its parameters.

    Remarks are added to `notes`.
    """
    ranks = known.blocks[0].ranks
    if device is None or graph.time_unit != "ns":
        raise UsageError(
            (Setting("ranks", ranks), " needs times in nanoseconds, and a device that says how ranks are joined"),
            hint=("use ", Setting("cost_model", "roofline"), " with ", Setting("device", "h100")),
        )

    def time_of(size: int) -> int:
        return device.collective_time(size, ranks)

    if graph.kind is Kind.TRAINING:
        names = (parameter.name for parameter in reading.parameters)
        gradient_of = dict(zip(names, reading.gradients, strict=True))
        sharded = with_step_gathers(graph, gradient_of, known.blocks, time_of)
    else:
        sharded = with_gathers(graph, known.operators, known.blocks, time_of)
    gathered = sum(block.bytes for block in known.blocks)
    time = sum(time_of(block.bytes) for block in known.blocks)
    notes.append(
        f"the graph of one of {ranks:,} ranks: it gathers {format_bytes(gathered)} of parameters in "
        f"{len(known.blocks):,} blocks, which takes {format_time(time, 'ns')} in all, beside no other work"
    )
    return sharded


def _with_kernels(
    graph: Draft, operators: Mapping[str, Operator], options: GraphOptions, notes: list[str]
) -> tuple[Draft, Mapping[str, Operator]]:
    """Replace nodes that training runs as one by one op.

    Remarks are added to `notes`.
    """
    fused = with_kernels(graph, operators, options.kernels or Kernels.ORIGINAL)
    if fused.groups:
        counts = ", ".join(f"{count} {type_}" for type_, count in sorted(fused.groups.items()))
        notes.append(f"{fused.nodes} nodes count as the ops that training runs: {counts}")
    return fused.graph, fused.operators


def _with_step(reading: Reading, options: GraphOptions, notes: list[str]) -> _Known:
    """Derive work and resident bytes of a complete training step.

    Its backward ops exist already, so it produces its gradients itself.
    """
    if options.optimizer is not None and reading.optimizer is not None:
        raise UsageError(
            (Setting("optimizer", options.optimizer), f": the step brings one, {reading.optimizer}"),
            hint="leave one of them out",
        )
    graph = _with_work(reading.graph, reading.operators, options, notes)
    optimizer = options.optimizer or _DEFAULT_OPTIMIZER
    if reading.optimizer is not None and not reading.counts_state:
        optimizer = reading.optimizer
    trained, blocks = reading.parameters, tuple[ShardedBlock, ...]()
    if options.ranks is not None:
        # A parameter may be part of a larger storage, which is in memory as a whole.
        stored = (replace(value, bytes=graph.tensors[value.name].bytes) for value in trained)
        blocks = sharded_blocks(graph, reading.operators, stored, options.ranks)
        trained = tuple(block.shard for block in blocks)
    if not options.update:
        resident = training_resident_bytes(graph.resident_bytes, trained, optimizer, gradients=options.accumulate)
        graph = graph.edited(resident_bytes=resident)
    parameter_bytes = sum(parameter.bytes for parameter in trained)
    return _Known(graph, parameter_bytes, reading.optimizer or optimizer, reading.operators, blocks)


def _with_work(graph: Draft, operators: Mapping[str, Operator], options: GraphOptions, notes: list[str]) -> Draft:
    graph, uncosted = annotate_work(graph, operators)
    if uncosted:
        text = f"no formula for the work of {format_names(uncosted, _MOST_NAMED)}; counted by the bytes moved"
        _tell(text, options.strict, notes)
    return graph


def _tell(text: str, strict: bool, notes: list[str]) -> None:
    if strict:
        raise GraphError(text, hint=("leave ", Setting("strict"), " out to go on with the estimate"))
    notes.append(text)


def _as_it_is(graph: Draft) -> Draft:
    """Return the graph for inference, without fields for a backward pass."""
    if graph.kind is not Kind.FORWARD:
        return graph
    ops = tuple(op.edited(saves=None, grad_inputs=None, grad_time=None, grad_flops=None) for op in graph.ops)
    return graph.edited(kind=Kind.INFERENCE, ops=ops)


def _with_costs(
    graph: Draft, options: GraphOptions, measured: Measurements | None, *, has_operators: bool
) -> tuple[Draft, str, Device | None]:
    """Return the graph with its times, their source, and the device profile."""
    name = options.cost_model
    if name is None:
        uses_device = options.device is not None or has_operators
        name = "measured" if measured is not None and measured.times_ns else "roofline" if uses_device else GIVEN_COSTS
    if name == "measured" and measured is None:
        raise UsageError(
            "the measured cost model needs a table of times", hint=("give ", Setting("measurements", "FILE"))
        )
    if name == GIVEN_COSTS and has_operators:
        raise UsageError("operators come without times", hint=("use ", Setting("cost_model", " or ".join(COST_MODELS))))
    device = None
    if options.device is not None or name == "roofline":
        device = load_device(options.device or _DEFAULT_DEVICE)
    if measured is not None:
        graph = measured.with_workspace(graph)
    if name == GIVEN_COSTS:
        return graph, "times as given in the file", device
    described = name
    if name == "roofline" and device is not None:
        described = f"{name}, {device.name}"
    elif name == "measured" and measured is not None and measured.machine:
        described = f"{name}, {measured.machine}"
    return apply_costs(graph, _cost_model(name, device, measured)), described, device


def _measured(graph: Draft, options: GraphOptions) -> Measurements | None:
    if options.measurements is None:
        return None
    measured = load_measurements(Path(options.measurements))
    measured.check(graph, options.dims, options.measurements)
    return measured


def _cost_model(name: str, device: Device | None, measured: Measurements | None) -> CostModel:
    """Build a cost model from the fields that it needs."""
    model = COST_MODELS[name]
    known: dict[str, Any] = {"device": device, "times_ns": None if measured is None else measured.times_ns}
    return model(**{item.name: known[item.name] for item in fields(model)})


def link_of(graph: Draft, options: GraphOptions) -> Link | None:
    """Return the link of the options or of their device, or None.

    Raises:
        UsageError: its rate is wrong, or does not suit the graph's unit of time.
    """
    return _link(graph, options, None if options.device is None else load_device(options.device))


def _link(graph: Draft, options: GraphOptions, device: Device | None) -> Link | None:
    rate = _bytes_per_time(graph, options, device)
    if rate is None:
        return None
    return Link(rate, options.link_duplex or (Duplex.HALF if device is None else device.link_duplex))


def _bytes_per_time(graph: Draft, options: GraphOptions, device: Device | None) -> Fraction | None:
    """Return the link's rate in bytes per unit of the graph's time.

    A rate per second needs a graph in nanoseconds.
    """
    if options.link_bandwidth is None:
        return Fraction(device.link_bandwidth, _NS) if device is not None and graph.time_unit == "ns" else None
    said = str(options.link_bandwidth)
    rate = parse_rate(said)
    if "/" not in said:
        return rate
    if graph.time_unit != "ns":
        raise UsageError(
            f"a link bandwidth of {said} is a rate a second, but {graph.name!r} counts time in {graph.time_unit!r}",
            hint="give it as a plain number: bytes per unit of the graph's time",
        )
    return rate / _NS
