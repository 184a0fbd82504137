"""The options and the result of a reader."""

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
from remat_cli.splitting.cuts import Split, read_cuts

MODES = ("training", "inference")


# The name that gives a value to every dimension without its own.
ALL_OTHER_DIMS = "*"


class UnknownDim(UsageError):
    """A given dimension does not exist in the graph.

    Attributes:
        dim: name of the dimension.
    """

    def __init__(self, message: Wording, dim: str, *, hint: Wording = "") -> None:
        super().__init__(message, hint=hint)
        self.dim = dim


class Aliasing(StrEnum):
    """The ops that share storage with their input or overwrite it.

    The former are views, the latter work in place; both depend on the runtime.
    """

    TORCH = "torch"  # PyTorch: transposes, slices, splits and expands are views; nothing is in place unless asked
    ORT_CPU = "ort-cpu"  # onnxruntime's CPU provider, measured on version 1.31
    NONE = "none"  # every op writes its own storage


class Workspace(StrEnum):
    """The runtime whose kernels' workspace is counted.

    Workspace is memory that an op takes while it runs, besides inputs and outputs.
    """

    NONE = "none"
    ONNXRUNTIME = "onnxruntime"  # its CPU provider


def _entry(text: str) -> tuple[str, int]:
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value.isdecimal() or len(value) > 18:
        raise UsageError(f"{text!r} is not understood", hint="write it like batch=8")
    return name, int(value)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse a shape, such as x:1,3,8 or x:1x3x8 or x:[1,3,8]; `x:` is a scalar."""
    name, colon, shape = text.rpartition(":")
    sizes = shape.strip().removeprefix("[").removesuffix("]").replace("x", ",")
    parts = [part.strip() for part in sizes.split(",")] if sizes else []
    if not colon or not name or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise UsageError(f"{text!r} is not understood", hint="write it like x:1,3,224,224")
    return name, tuple(int(part) for part in parts)


def _lora(text: str) -> str:
    """Parse rank and modules of adapters, such as 16 or 16:q_proj,v_proj."""
    rank, colon, modules = text.partition(":")
    if not rank.isdecimal() or len(rank) > 6 or int(rank) == 0 or (colon and not all(modules.split(","))):
        raise UsageError(f"{text!r} is not understood", hint="write it like 16 or 16:q_proj,v_proj")
    return text


def _cut(text: str) -> tuple[str, str]:
    name, equals, cut = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not understood", hint="write it like mm=8")
    return name, str(Split.parse(cut))


@dataclass(frozen=True)
class ReadOptions(Settings):
    """The options for reading a file.

    Formats without symbolic shapes need none of them.

    Attributes:
        mode: "training" derives the training graph of a forward graph; "inference" plans the graph as it is. By default
            training for forward graphs and ONNX.
        dims: values of symbolic dimensions by name; under `ALL_OTHER_DIMS`, the value of all other dimensions.
        input_shapes: whole shapes of graph inputs by name.
        value_shapes: shapes of values that cannot be inferred (results of unknown ops), by name.
        values: values of inputs on which shapes or branches depend, by name; text is the name of a file.
        aliasing: rules for views and ops in place. By default those of PyTorch for training, of onnxruntime for
            inference.
        workspace: runtime whose kernels' workspace is counted. By default onnxruntime's if `storage` is as in
            onnxruntime.
        parts: number of parts of the region around an op of a PyTorch step, or of an ONNX model for inference, by the
            name of the op.
        fused: whether a PyTorch step is captured with the small ops that inductor fuses into kernels.
        dtype: element type of a model that is built from its config; by default the config's.
        lora: rank of the adapters that are trained instead of a config's model, and after a colon the modules that have
            one, by default those that peft takes.
        attention: implementation of a config's attention; by default the one that transformers takes.
        checkpointing: whether each block of a config's model runs again in the backward pass.
        strict: whether an estimate (an unknown op, a guessed size) is an error.
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
        dict, "Run the region around an op in parts. Repeatable.", metavar="OP=N", parse=_cut
    )
    fused: bool = setting(False, "Plan a PyTorch step for the kernels of torch.compile.")
    dtype: str | None = setting(
        None,
        "Element type of a model from its config. [default: the config's]",
        choices=("float32", "bfloat16", "float16"),
    )
    lora: str | int | None = setting(
        None, "Train LoRA adapters of this rank on a config's model.", metavar="R[:MODULES]", parse=_lora
    )
    attention: str | None = setting(None, "Implementation of attention in a config's model.", choices=("sdpa", "eager"))
    checkpointing: bool = setting(False, "Run each block of a config's model again in the backward pass.")
    strict: bool = setting(False, "Make every estimate an error.", changes_graph=False)

    @property
    def cuts(self) -> dict[str, Split]:
        """The cuts that `parts` stand for.

        Raises:
            UsageError: one is not understood.
        """
        return read_cuts(self.parts)

    @property
    def is_decomposed(self) -> bool:
        """Whether steps are captured as inductor decomposes them; parts are found among eager's ops."""
        return self.fused and not self.parts

    @property
    def storage(self) -> Aliasing:
        """The rules for shared storage: PyTorch's in training by default.

        In inference the default is onnxruntime's.
        """
        return self.aliasing or (Aliasing.ORT_CPU if self.mode == "inference" else Aliasing.TORCH)

    @property
    def counts_workspace(self) -> bool:
        """Whether the workspace of onnxruntime's kernels is counted."""
        if self.workspace is None:
            return self.storage is Aliasing.ORT_CPU
        return self.workspace is Workspace.ONNXRUNTIME


@dataclass(frozen=True)
class Reading:
    """The content of a file.

    Attributes:
        graph: the graph with views resolved. Read from operators, its times are 0 until a cost model gives them. A
            forward graph from operators has one copy of the weights and constants as resident bytes, and `saves` and
            `grad_inputs` are not set.
        operators: operators by op name, for formats that describe them (ONNX, PyTorch); empty otherwise.
        parameters: the trainable weights, each once.
        gradients: for a training step, the gradient tensors of `parameters`, in the same order; empty if unknown.
        frozen: for a training step, its parameters without a gradient.
        optimizer: name of the step's optimizer; None without one.
        counts_state: the optimizer's state is among the graph's resident bytes. Otherwise its name is one of
            `OPTIMIZERS`, and the state is counted when the reading is prepared.
        state_bytes: bytes of the state among the resident bytes.
        notes: remarks on the reading (on scaling, sorting, ignored fields), one line each.
        training_notes: remarks that come first if the graph is trained.
        exported_to_run: the file shows that it was exported for inference, as batch norms are folded.
        estimated: names of ops whose sizes are estimates.
        guessed: reason and remedy if sizes are guesses that may be too small; otherwise None.
        understated: reason (a sentence without its full stop) and remedy if a run is known to take more memory than
            predicted; otherwise None. The notes have it, too.
        session: the runtime's session for which predicted peaks hold, in a sentence; empty for other graphs.
    """

    graph: Graph
    operators: Mapping[str, Operator] = field(default_factory=dict)
    parameters: tuple[Operand, ...] = ()
    gradients: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    optimizer: str | None = None
    counts_state: bool = True
    state_bytes: int = 0
    notes: tuple[str, ...] = ()
    training_notes: tuple[str, ...] = ()
    exported_to_run: bool = False
    estimated: tuple[str, ...] = ()
    guessed: tuple[str, str] | None = None
    understated: tuple[str, str] | None = None
    session: str = ""
