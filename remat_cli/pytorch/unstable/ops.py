"""Ops of torch, and their declarations."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

__all__ = ["OpOverload"]


def schema_of(op: Any) -> Any:
    """Return an op's schema: its arguments and results, and which of them it writes."""
    return op._schema


def name_of(op: Any) -> str:
    """Return an op's name without namespace and overload; "" for what is no op."""
    return getattr(op, "_opname", "")
