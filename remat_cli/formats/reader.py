"""The questions that a reader is asked, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from remat_cli.core.graph import Graph
from remat_cli.core.operators import Operand, Operator
from remat_cli.errors import UsageError
from remat_cli.formats.input_values import parse_value
from remat_cli.settings import Settings, Wording, setting
from remat_cli.splitting.cuts import Split

MODES = ("training", "inference")


# The name under which a value is given to every dimension that has none of its own.
ALL_OTHER_DIMS = "*"


class UnknownDim(UsageError):
    """A dimension is given that a graph does not have.

    Attributes:
        dim: its name.
    """

    def __init__(self, message: Wording, dim: str, *, hint: Wording = "") -> None:
        super().__init__(message, hint=hint)
        self.dim = dim


class Aliasing(StrEnum):
    """Which ops share storage with their input (views) or overwrite it (in place), by runtime."""

    TORCH = "torch"  # PyTorch: transposes, slices, splits and expands are views; nothing is in place unless asked
    ORT_CPU = "ort-cpu"  # onnxruntime's CPU provider, measured on version 1.31
    NONE = "none"  # every op writes storage of its own


class Workspace(StrEnum):
    """Whose kernels' workspace is counted: memory that an op takes while it runs, beside inputs and outputs."""

    NONE = "none"
    ONNXRUNTIME = "onnxruntime"  # its CPU provider


def _entry(text: str) -> tuple[str, int]:
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value.isdecimal() or len(value) > 18:
        raise UsageError(f"{text!r} is not understood", hint="write it like batch=8")
    return name, int(value)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Accept the three spellings in use: x:1,3,224,224 and x:1x3x224x224 and x:[1,3,224,224]; x: is a scalar."""
    name, colon, shape = text.rpartition(":")
    sizes = shape.strip().removeprefix("[").removesuffix("]").replace("x", ",")
    parts = [part.strip() for part in sizes.split(",")] if sizes else []
    if not colon or not name or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise UsageError(f"{text!r} is not understood", hint="write it like x:1,3,224,224")
    return name, tuple(int(part) for part in parts)


def _cut(text: str) -> tuple[str, str]:
    name, equals, cut = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not understood", hint="write it like mm=8")
    return name, str(Split.parse(cut))


@dataclass(frozen=True)
class ReadOptions(Settings):
    """How a file is read; formats without symbolic shapes need none of it.

    Attributes:
        mode: "training" derives the training graph of a forward graph; "inference" plans the graph as it is. By
            default training for forward graphs and ONNX.
        dims: values of symbolic dimensions by name; under `ALL_OTHER_DIMS`, that of all that are not named.
        input_shapes: whole shapes of graph inputs by name.
        value_shapes: shapes of values that cannot be inferred (results of unknown ops), by name.
        values: values of inputs on which shapes or branches depend, by name; text is the name of a file.
        aliasing: which ops are views or work in place. By default as in PyTorch for training, as in onnxruntime for
            inference.
        workspace: whose kernels' workspace is counted. By default onnxruntime's where `storage` is as in onnxruntime.
        parts: in how many parts the region around an op of a PyTorch step is run, by the op's name.
        fused: a PyTorch step is captured with the small ops that inductor fuses into kernels.
        strict: an estimate (an op that is not known, a size that had to be guessed) is an error.
    """

    mode: str | None = setting(None, "Derive the training graph, or plan the graph as it is.", choices=MODES)
    dims: Mapping[str, int] = setting(
        dict,
        "Value of a symbolic dimension; '*=N': of all others. Repeatable.",
        metavar="NAME=N",
        parse=_entry,
        flag="--dim",
    )
    input_shapes: Mapping[str, tuple[int, ...]] = setting(
        dict, "Shape of an input. Repeatable.", metavar="X:1,3,224,224", parse=_shape, flag="--input-shape"
    )
    value_shapes: Mapping[str, tuple[int, ...]] = setting(
        dict,
        "Shape of a value that cannot be inferred. Repeatable.",
        metavar="Y:1,64,56,56",
        parse=_shape,
        flag="--value-shape",
    )
    values: Mapping[str, Any] = setting(
        dict,
        "Value of an input, on which shapes or branches depend. Repeatable.",
        metavar="X=5|X.npy",
        parse=parse_value,
        flag="--value",
    )
    aliasing: Aliasing | None = setting(
        None, "Which ops are views or work in place.", choices=tuple(map(str, Aliasing)), parse=Aliasing
    )
    workspace: Workspace | None = setting(
        None,
        "Whose kernels' workspace an ONNX model is counted with.",
        choices=tuple(map(str, Workspace)),
        parse=Workspace,
    )
    parts: Mapping[str, str | int] = setting(
        dict, "Run the region around an op of a PyTorch step in parts. Repeatable.", metavar="OP=N", parse=_cut
    )
    fused: bool = setting(False, "Plan a PyTorch step for the kernels of torch.compile.")
    strict: bool = setting(False, "Make every estimate an error.", changes_graph=False)

    @property
    def cuts(self) -> dict[str, Split]:
        """The cuts that `parts` stand for.

        Raises:
            UsageError: one is not understood.
        """
        return {name: Split.parse(str(text)) for name, text in self.parts.items()}

    @property
    def storage(self) -> Aliasing:
        """Which ops share storage by default: those of PyTorch in training, those of onnxruntime in inference."""
        return self.aliasing or (Aliasing.ORT_CPU if self.mode == "inference" else Aliasing.TORCH)

    @property
    def counts_workspace(self) -> bool:
        """Whether the workspace of onnxruntime's kernels is counted."""
        if self.workspace is None:
            return self.storage is Aliasing.ORT_CPU
        return self.workspace is Workspace.ONNXRUNTIME


@dataclass(frozen=True)
class Reading:
    """What a file says.

    Attributes:
        graph: with views resolved. Read from operators, its times are 0 until a cost model gives them. A forward graph
            from operators has one copy of the weights and constants as resident bytes, and `saves` and `grad_inputs`
            are not set.
        operators: by op name, for what describes operators (ONNX, PyTorch); empty otherwise.
        parameters: the trainable weights, each once.
        gradients: of a training step: the tensors that their gradients are, in the same order; empty where not known.
        optimizer: name of the optimizer whose state is among the graph's resident bytes; None where none is.
        notes: what the user should know about the reading (what was scaled, sorted, ignored), one line each.
        training_notes: what the user should know first where the graph is trained.
        estimated: names of ops whose sizes are estimates.
        guessed: why the sizes of results are guesses that may be too small, and what to do; None where none is.
        understated: why a run is known to take more memory than predicted, in a sentence without its full stop, and
            what to do; None where that is not known. It is among the notes, too.
        session: for which session of a runtime the predicted peaks hold, in a sentence; empty for every other graph.
    """

    graph: Graph
    operators: Mapping[str, Operator] = field(default_factory=dict)
    parameters: tuple[Operand, ...] = ()
    gradients: tuple[str, ...] = ()
    optimizer: str | None = None
    notes: tuple[str, ...] = ()
    training_notes: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    guessed: tuple[str, str] | None = None
    understated: tuple[str, str] | None = None
    session: str = ""
