"""What a reader is asked and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from remat_cli.graph import Graph
from remat_cli.operators import Operand, Operator


class Aliasing(StrEnum):
    """Which ops share storage with their input (views) or overwrite it (in place), by runtime."""

    TORCH = "torch"  # PyTorch: transposes, slices, splits and expands are views; nothing is in place unless asked
    ORT_CPU = "ort-cpu"  # onnxruntime's CPU provider, measured on version 1.31
    NONE = "none"  # every op writes storage of its own


@dataclass(frozen=True)
class ReadOptions:
    """How a file is read; formats without symbolic shapes need none of it.

    Attributes:
        dims: values of symbolic dimensions by name.
        input_shapes: whole shapes of graph inputs by name.
        value_shapes: shapes of values that cannot be inferred (results of unknown ops), by name.
        aliasing: which ops are views or work in place.
        strict: an estimate (an op that is not known, a size that had to be guessed) is an error.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    value_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    aliasing: Aliasing = Aliasing.TORCH
    strict: bool = False


@dataclass(frozen=True)
class Reading:
    """What a file says.

    Attributes:
        graph: with views resolved. Read from operators, its times are 0 until a cost model gives them. A forward graph
            from operators has one copy of the weights and constants as resident bytes, and `saves` and `grad_inputs`
            are not set.
        operators: by op name, for what describes operators (ONNX, PyTorch); empty otherwise.
        parameters: the trainable weights, each once.
        optimizer: name of the optimizer whose state is among the graph's resident bytes; None where none is.
        notes: what the user should know about the reading (what was scaled, sorted, ignored), one line each.
        estimated: names of ops whose sizes are estimates.
    """

    graph: Graph
    operators: Mapping[str, Operator] = field(default_factory=dict)
    parameters: tuple[Operand, ...] = ()
    optimizer: str | None = None
    notes: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
