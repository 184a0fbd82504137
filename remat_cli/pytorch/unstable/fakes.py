"""Tensors without data, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    is_fake,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
]

# What tensors without data raise when they are asked for their values.
NO_DATA = (DataDependentOutputException, DynamicOutputShapeException)


def has_data(value: torch.Tensor) -> bool:
    """Return whether a tensor has data."""
    return not (value.is_meta or is_fake(value))


def mode_of(values: Sequence[Any]) -> Any:
    """Return the mode that made fake tensors, not that of a capture under way; None where there are none."""
    modes = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    return next(modes, None) or detect_fake_mode(list(values))


def symbols_of_data(value: Any) -> set[Any]:
    """Return the symbols in a value that stand for sizes by data."""
    return set(free_unbacked_symbols(value))


def is_object(value: object) -> bool:
    """Return whether a value stands for an opaque object of a graph.

    The mesh of a DTensor is such an object.
    """
    return isinstance(value, FakeScriptObject)
