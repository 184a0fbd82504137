"""The reader of ONNX models: its steps in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.convert import Conversion, parameters
from remat_cli.formats.onnx.dims import bind_inputs
from remat_cli.formats.onnx.estimates import UNKNOWN_OP, guesses, in_words
from remat_cli.formats.onnx.expansion import WITHOUT_KERNEL
from remat_cli.formats.onnx.half_precision import run_in_float32
from remat_cli.formats.onnx.inference import OperatorSets
from remat_cli.formats.onnx.load import Model, load_model
from remat_cli.formats.onnx.norms import folded_norms, missing_norms
from remat_cli.formats.onnx.parts import split
from remat_cli.formats.onnx.shapes import ShapeInference
from remat_cli.formats.onnx.sized_graph import SizedGraph
from remat_cli.formats.onnx.stored_values import constant_weights, weights_read
from remat_cli.formats.onnx.structure import stored_names
from remat_cli.formats.onnx.upper_bounds import with_bodies
from remat_cli.formats.onnx.workspace import WITHOUT_RULE
from remat_cli.formats.reader import Aliasing, Reading, ReadOptions
from remat_cli.formats.source import Source
from remat_cli.settings import Setting
from remat_cli.units import first_of, format_bytes, format_names

_SESSION = "Peaks hold with session_options(); a default session mostly takes more."

_NAMED = 3


@dataclass(frozen=True)
class SizedModel:
    """A sized model, before it becomes a `Graph`.

    Attributes:
        model: the model in the file.
        graph: the nodes as they run, with the type of every value.
        inference: the inference of types, with its estimates.
    """

    model: Model
    graph: SizedGraph
    inference: ShapeInference


def read_sized(source: Source, options: ReadOptions, *, keep_data: bool = False) -> SizedModel:
    """Read a model, and size every value.

    Arguments and errors are as for `load_model` and `read_model`.
    """
    whole = _sized(load_model(source, keep_data=keep_data), options)
    return in_parts(whole, options) if options.parts else whole


def in_parts(whole: SizedModel, options: ReadOptions) -> SizedModel:
    """Return a model with the regions in parts that the options name; its graph is changed.

    Raises:
        UsageError: as `split`.
    """
    model = whole.model
    split(model.graph, whole.graph.values, whole.inference.opsets.version(""), options.cuts)
    there = {name for node in model.graph.node for name in node.output}
    known = {name: shape for name, shape in options.value_shapes.items() if name in there}
    return _sized(model, replace(options, value_shapes=known))


def _sized(model: Model, options: ReadOptions) -> SizedModel:
    stored = stored_names(model.graph)
    inputs = bind_inputs([value for value in model.graph.input if value.name not in stored], options)
    # From IR version 4 on, the caller may replace an initializer that is listed as an input.
    listed = {value.name for value in model.graph.input} if model.proto.ir_version >= 4 else set()
    inference = ShapeInference(
        opsets=OperatorSets(model.opsets),
        dims=inputs.dims,
        value_shapes=options.value_shapes,
        weights=frozenset(weights_read(model.graph.node)),
        constant_weights=constant_weights(model.graph.node),
        overridable=frozenset(stored & listed),
        without_kernel=WITHOUT_KERNEL.get(options.storage, ()),
    )
    return SizedModel(model, inference.size(model.graph, inputs.types, inputs.data), inference)


def read_model(source: Source, options: ReadOptions) -> Reading:
    """Read a model; see `remat_cli.formats.onnx.read`."""
    return _reading(read_sized(source, options), options, source.path.stem)


def reader_in_parts(source: Source, options: ReadOptions) -> Callable[[ReadOptions], Reading]:
    """Return a function that reads a model in parts; the file is parsed and sized once, for all of them.

    Arguments and errors are as for `read_model`; those of the function differ in the parts alone.
    """
    whole = read_sized(source, replace(options, parts={}))

    def read(within: ReadOptions) -> Reading:
        if not within.parts:
            return _reading(whole, within, source.path.stem)
        proto = type(whole.model.proto)()
        proto.CopyFrom(whole.model.proto)
        copied = replace(whole, model=replace(whole.model, proto=proto))
        return _reading(in_parts(copied, within), within, source.path.stem)

    return read


def _reading(read: SizedModel, options: ReadOptions, name: str) -> Reading:
    model, sized, inference = read.model, read.graph, read.inference
    conversion = Conversion(inference.opsets, options.storage, options.counts_workspace)
    graph = conversion.graph(sized, name)
    estimated = {op.name: inference.estimates[op.name] for op in graph.ops if op.name in inference.estimates}
    understated = _understated(sized, options)
    if options.strict and estimated:
        raise GraphError(
            f"some ops can only be estimated, and strict forbids it: {in_words(estimated)}",
            hint=(
                "leave ",
                Setting("strict"),
                " out to plan with these estimates, or export the model without these ops",
            ),
        )
    return Reading(
        graph=graph,
        operators=conversion.operators(sized),
        parameters=parameters(sized),
        notes=(
            *_notes(model, inference, sized, estimated),
            *(["; ".join((*understated, "'remat verify --execute' refuses this one"))] if understated else []),
            *_kernel_notes(sized, options),
        ),
        training_notes=(*_constant_weights(read), *missing_norms(model)),
        exported_to_run=bool(folded_norms(model)),
        estimated=tuple(estimated),
        guessed=_guessed(sized, inference),
        understated=understated,
        session=_SESSION if options.mode == "inference" and _follows_onnxruntime(options) else "",
    )


def _follows_onnxruntime(options: ReadOptions) -> bool:
    return options.storage is Aliasing.ORT_CPU and options.counts_workspace


def _constant_weights(read: SizedModel) -> Iterator[str]:
    """Yield the note on weights in Constant nodes, for training."""
    weights = [one for one in parameters(read.graph) if one.name in read.inference.constant_weights]
    if weights:
        size = format_bytes(sum(one.bytes for one in weights))
        yield f"{len(weights):,} weights are Constant nodes in the file, {size}: they count as trained"


def _notes(model: Model, inference: ShapeInference, sized: SizedGraph, estimated: Mapping[str, str]) -> list[str]:
    notes = list(model.notes)
    if not inference.is_sorted:
        notes.append("the nodes of the file are not in an executable order: they were sorted")
    if sized.folded:
        total = len(sized.folded) + len(sized.nodes)
        notes.append(f"{len(sized.folded)} of {total} nodes only compute constants or shapes, and are no ops")
    for branch, reason in inference.left_out.items():
        notes.append(f"{branch} cannot run at these sizes, and is left out: {reason}")
    strings = [name for name in sized.inputs if sized.values[name].type.element.is_string]
    if strings:
        notes.append(f"inputs that hold strings are counted with 32 bytes an element: {', '.join(map(repr, strings))}")
    if estimated:
        notes.append(f"estimated: {in_words(estimated)}")
    # An assumption that others follow from stands at an op whose type neither the file nor onnx knows.
    assumed = [
        f"{name!r} ({sized.values[name].type.element.name})"
        for one in sized.nodes
        for name in one.node.outputs
        if sized.values[name].assumed and estimated.get(one.node.name) == UNKNOWN_OP
    ]
    if assumed:
        notes.append(f"assumed, as the file does not say the element type: {first_of(assumed, _NAMED)}")
    return notes


def _guessed(sized: SizedGraph, inference: ShapeInference) -> tuple[str, str] | None:
    """Return reason and remedy if the memory estimate may be far too small."""
    graphs = with_bodies(sized)
    nodes = [node for one in graphs for node in guesses(one.nodes, one.values, inference.estimates)]
    if not nodes:
        return None
    names = format_names([node.name for node in nodes], _NAMED)
    return (
        f"the peak is estimated, and may be far too low: the sizes of what {names} makes are not known",
        f"give the shape of each result: 'value_shapes: {{{nodes[0].outputs[0]}: [2, 100]}}', with your sizes",
    )


def _understated(sized: SizedGraph, options: ReadOptions) -> tuple[str, str] | None:
    """Return reason and remedy if onnxruntime takes more than predicted."""
    single = run_in_float32((one.node for one in sized.nodes), sized.values)
    if options.storage is not Aliasing.ORT_CPU or not single:
        return None
    return (
        f"{len(single):,} ops of float16 ({single[0].proto.op_type} and others) have no kernel in onnxruntime's CPU "
        "provider, which runs them in float32, with casts around them: the run takes more memory than predicted",
        "plan the model that 'remat fuse' writes, in which the casts stand",
    )


def _kernel_notes(sized: SizedGraph, options: ReadOptions) -> Iterator[str]:
    """Yield notes on kernels that may take more memory than predicted."""
    if options.workspace is not None:
        counted = "onnxruntime's" if options.counts_workspace else "none"
        yield f"workspace of kernels that is counted, as asked for: {counted}"
    if not options.counts_workspace:
        return
    if unknown := sorted({full_type(one.node.proto) for one in sized.nodes} & WITHOUT_RULE):
        yield (
            f"the workspace of kernels of {', '.join(unknown)} is not known: 'remat measure' measures it, and "
            "--measurements gives it to other verbs"
        )
