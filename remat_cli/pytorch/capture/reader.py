"""The reading of the training step of a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_tb
from typing import Any

import torch
from torch import fx, nn

from remat_cli.errors import GraphError, RematError, UsageError
from remat_cli.formats.functions import checked_dims, names_function, parts
from remat_cli.formats.garbage import no_search_for_garbage
from remat_cli.formats.model_config import read_config
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.formats.user_files import noting_files
from remat_cli.pytorch.capture.blocks import read_by_few
from remat_cli.pytorch.capture.capture_errors import explained
from remat_cli.pytorch.capture.convert import (
    full_signature,
    graph_of,
    hashed,
    operators_of,
    parameter_storages,
    trained_parameters,
    with_signatures,
)
from remat_cli.pytorch.capture.from_config import load_step, notes_on_step
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import Captured, Foresee, Trace, check_supported, compiled, seen_by
from remat_cli.pytorch.capture.optimizer import checked_optimizer, optimizer_name, optimizer_state_bytes
from remat_cli.pytorch.capture.places import last_place
from remat_cli.pytorch.capture.split import split
from remat_cli.pytorch.capture.step import SHAPES, Step, as_step
from remat_cli.pytorch.capture.weightless import Weightless, with_fake_tensors
from remat_cli.pytorch.unstable.fakes import NO_DATA
from remat_cli.pytorch.unstable.front_end import captured_call, forgetting
from remat_cli.pytorch.unstable.joint_graphs import has_checkpoints
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.settings import Setting
from remat_cli.splitting import Split

_NO_DATA = (
    "remat builds the model without data, so values of tensors cannot be looked at; what is looked at, make with "
    'device="cpu"'
)


_OF_CONFIG = (
    "does transformers build and run this model? Where it needs other inputs, write a function that returns both, and "
    "name it: train.py:step"
)
_OWN_CHECKPOINTS = (
    "the step's own checkpoints are left out of the captured step: its plain run keeps what they would make again, and "
    "plans choose anew what runs again"
)
_FUSED = (
    "ops are those that inductor fuses into kernels: what these take in memory is known once they are compiled "
    "(verify --execute)"
)
_FUSED_IN_PARTS = (
    "ops are eager's, among which parts are found; inductor fuses what lies between the writes of parts, and what that "
    "takes in memory is known once it is compiled (plan, verify --execute)"
)


@dataclass(frozen=True, eq=False)
class TakenStep:
    """A training step that torch has captured.

    Attributes:
        reference: file and function of the step.
        step: the step, with fake tensors.
        captured: its joint graph from torch.
        joint: the joint graph, resolved.
        device: kind of device whose kernels it has.
        notes: notes for the user, one line each.
    """

    reference: str
    step: Step
    captured: Captured
    joint: Joint
    device: str
    notes: tuple[str, ...]

    def in_parts(self, cuts: Mapping[str, Split]) -> TakenStep:
        """Return the step with these regions in parts; see `split`.

        Raises:
            UsageError: one cannot be split.
        """
        if not cuts:  # resolving the graph changes it, and is done once
            return self
        captured = split(self.captured, cuts)
        notes = (*self.notes, *_notes_on_parts(cuts))
        return replace(self, captured=captured, joint=Joint.with_losses_alone(captured), notes=notes)

    def reading(self) -> Reading:
        """Return the reading of the step."""
        reading = reading_of(
            self.joint,
            self.captured,
            name_of_graph(self.reference),
            resident_bytes(self.step, (primal.value for primal in self.captured.primals)),
            optimizer_name(self.step.optimizer),
        )
        notes = [_OWN_CHECKPOINTS] if has_checkpoints(self.captured.module.graph) else []
        is_named = isinstance(self.step.optimizer, str)
        return replace(
            reading, notes=(*self.notes, *notes), counts_state=not is_named, state_bytes=state_bytes(self.step)
        )


def name_of_graph(reference: str) -> str:
    """Return the name of a step's graph: file or module, and function; or the head of a config."""
    if not names_function(Path(reference)):
        return read_config(Path(reference)).name
    where, name = parts(reference)
    return f"{Path(where).stem if where.endswith('.py') else where}.{name}"


def reading_of(joint: Joint, captured: Captured, name: str, resident_bytes: int, optimizer: str | None) -> Reading:
    """Return the reading of a captured step.

    Args:
        joint: the step.
        captured: the joint graph from torch.
        name: name of the graph.
        resident_bytes: parameters, buffers and optimizer state that no op reads.
        optimizer: name of the one whose state is among them; None where there is none.
    """
    by_name = trained_parameters(joint, captured)
    trained = by_name.values()
    return Reading(
        graph=graph_of(joint, name, resident_bytes),
        operators=operators_of(joint),
        parameters=tuple(parameter for parameter, _ in trained),
        gradients=tuple(gradient for _, gradient in trained),
        frozen=tuple(name for name in parameter_storages(joint, captured) if name not in by_name),
        optimizer=optimizer,
    )


def _notes_on_parts(cuts: Mapping[str, Split]) -> list[str]:
    return [
        f"the region around op {name!r} is run in {cut.parts} parts: results are those of the step to rounding"
        for name, cut in sorted(cuts.items())
    ]


class _Answered(BaseException):
    """Ends the capture once a reading exists."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading


@no_search_for_garbage()
def read_step(reference: str, options: ReadOptions) -> Reading:
    """Read a training step; arguments and errors are those of `take_step`."""
    step, device, notes = built_step(reference, options)

    def taken(step: Step, captured: Captured) -> TakenStep:
        return TakenStep(reference, step, captured, Joint.with_losses_alone(captured), device, notes).in_parts(
            options.cuts
        )

    def read_in_full(captured: Captured) -> Reading:
        few = taken(step, captured)
        return with_signatures(few.reading(), {op.name: full_signature(op) for op in few.joint.ops})

    def foresee(module: fx.GraphModule, inputs: Sequence[Any], trace: Trace) -> None:
        reading = read_by_few(module, inputs, trace, read_in_full)
        if reading is not None:
            signed = with_signatures(reading, {op.name: hashed(str(op.signature)) for op in reading.graph.ops})
            graph = replace(signed.graph, resident_bytes=resident_bytes(step, inputs))
            raise _Answered(replace(signed, graph=graph))

    whole = options.fused or bool(options.parts)
    try:
        seen = capture(step, device, reference, None if whole else foresee, fused=options.is_decomposed)
        return taken(*seen).reading()
    except _Answered as answered:
        return answered.reading


@no_search_for_garbage()
def take_step(reference: str, options: ReadOptions, *, to_split: bool = False) -> TakenStep:
    """Have torch capture a training step, without weights and without memory for its tensors.

    Args:
        reference: FILE.py:NAME, package.module:NAME, or a model's config.
        options: its dims are the function's keyword arguments.
        to_split: its regions are going to run in parts, which are found among eager's ops.

    Raises:
        UsageError: the function does not exist, or does not take these options.
        GraphError: the function returns no training step, or one that torch cannot capture as one graph.
    """
    step, device, notes = built_step(reference, options, to_split=to_split)
    step, captured = capture(step, device, reference, fused=options.is_decomposed and not to_split)
    joint = Joint.with_losses_alone(captured)
    return TakenStep(reference, step, captured, joint, device, notes).in_parts(options.cuts)


def built_step(reference: str, options: ReadOptions, *, to_split: bool = False) -> tuple[Step, str, tuple[str, ...]]:
    """Return a training step without data, its device, and notes.

    The kernels of this kind of device are read. Arguments are those of `take_step`.

    Raises:
        UsageError: the function does not exist, or does not take these options.
        GraphError: the function returns no training step.
    """
    check_supported()
    for name in ("input_shapes", "value_shapes", "values"):
        if getattr(options, name):
            raise UsageError(
                (Setting(name), f" has no meaning for {reference}"),
                hint=("its sizes come from its dims: ", Setting("dims", {"NAME": "N"})),
            )
    function = load_step(reference, options)
    dims = checked_dims(function, reference, options.dims)
    weightless = Weightless()
    with weightless, explaining_failure(reference):
        step = as_step(function(**dims), reference)
    if step.optimizer is not None:
        step = replace(step, optimizer=checked_optimizer(step.optimizer))
    device, notes = _device(weightless.device_type)
    notes.extend(notes_on_step(reference, step))
    if options.fused:
        notes.append(_FUSED if options.is_decomposed and not to_split else _FUSED_IN_PARTS)
    return step, device, tuple(notes)


@contextmanager
def explaining_failure(reference: str) -> Iterator[None]:
    """Turn errors of the user's code into errors with a place.

    The code builds the model, or runs; the files that it reads are noted.

    Args:
        reference: the function that GRAPH names.

    Raises:
        GraphError: the code raises something.
    """
    try:
        with noting_files():
            yield
    except RematError:
        raise
    except (Exception, SystemExit) as error:
        place = last_place("".join(format_tb(error.__traceback__)))
        at = f" at {place}" if place else ""
        text = str(error).splitlines()[0] if str(error) else ""
        runs = "does the function run by itself?" if names_function(Path(reference)) else _OF_CONFIG
        hint = _NO_DATA if "meta" in str(error) else runs
        raise GraphError(f"{reference} failed{at}: {type(error).__name__}: {text}", hint=hint) from error


def _device(asked: str | None) -> tuple[str, list[str]]:
    """Return the kind of device with the kernels to read, and notes."""
    has_cuda = torch.cuda.is_available()
    if asked not in (None, "cpu", "cuda") or (asked == "cuda" and not has_cuda):
        return "cpu", [
            f"the step asks for {asked}, which this torch does not have: the graph is that of the CPU's kernels"
        ]
    device = "cuda" if has_cuda else "cpu"
    return device, [f"read with torch {torch.__version__} for {device.upper()}: other devices have other kernels"]


def capture(
    step: Step, device: str, where: str, foresee: Foresee | None = None, *, fused: bool = False
) -> tuple[Step, Captured]:
    """Have torch capture a step on tensors without data.

    Args:
        step: its modules are changed in place.
        device: device of the captured kernels, such as "cpu".
        where: source of the step, for messages.
        foresee: sees the captured forward pass before the backward pass is traced.
        fused: with the ops that inductor fuses.

    Returns:
        The step with fake tensors, and its joint graph.

    Raises:
        GraphError: torch cannot capture the step as one graph.
    """
    _check_inputs(step, where)
    step, mode = with_fake_tensors(step, device)
    seen = None
    # Where nothing needs a gradient, torch goes on and runs what it has captured.
    with forgetting(), mode, explained(where), suppress(*NO_DATA):
        call = callable_of(step.model)
        seen = seen_by(lambda look: compiled(call, look, foresee, fused=fused)(*step.inputs, **step.keyword_inputs))
    if seen is None:
        raise GraphError(
            f"{where}: nothing in the step needs a gradient",
            hint="its model must have parameters that require gradients, and return what is computed from them: a loss "
            "as a tensor, not its .item()",
        )
    return step, seen


def _check_inputs(step: Step, where: str) -> None:
    """Check that the model takes these inputs, as far as its signature tells.

    Raises:
        GraphError: one is missing, or one too many.
    """
    called = step.model.forward if isinstance(step.model, nn.Module) else step.model
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of a callable that says nothing of its arguments
        return
    try:
        signature.bind(*step.inputs, **step.keyword_inputs)
    except TypeError as error:
        raise GraphError(
            f"{where}: its model cannot be called with these inputs: {error}",
            hint=f"it takes {', '.join(signature.parameters)}; {SHAPES}",
        ) from error


def callable_of(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that torch captures of a model.

    For a module it is the call with all hooks, as in `Module.compile`.
    """
    return captured_call(model) if isinstance(model, nn.Module) else model


def modules_of(step: Step) -> list[nn.Module]:
    """Return the modules that take part in a step, as far as they are in sight: the model, or a function's inputs."""
    candidates = (step.model, *step.inputs, *step.keyword_inputs.values())
    return [value for value in candidates if isinstance(value, nn.Module)]


def resident_bytes(step: Step, used: Iterable[torch.Tensor | None]) -> int:
    """Return the bytes that are there beside a step's inputs: of parameters that it does not use, and the optimizer's.

    Args:
        step: the step, with fake tensors.
        used: inputs of its graph; None where torch made one of several.
    """
    keys = {storage_key(tensor) for tensor in used if tensor is not None}
    return unused_bytes(modules_of(step), keys) + state_bytes(step)


def state_bytes(step: Step) -> int:
    """Return the bytes of the state of a step's optimizer; 0 if the step has none, or only its name."""
    is_told = step.optimizer is None or isinstance(step.optimizer, str)
    return 0 if is_told else optimizer_state_bytes(step.optimizer)


def unused_bytes(modules: Iterable[nn.Module], used: set[int]) -> int:
    """Return the bytes of parameters and buffers whose memory is not in `used`: they are there all the same.

    Args:
        modules: whose they are.
        used: keys of the storages that the graph has.
    """
    unused = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in _tensors(modules)}
    return sum(size for key, size in unused.items() if key not in used)


def _tensors(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()
