"""The backward pass that runs, and its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_current_node = torch._C._current_autograd_node
_next_number = torch._C._autograd._get_sequence_nr
_queue = torch.autograd.Variable._execution_engine.queue_callback


def current_node() -> Any:
    """Return the node whose backward function runs; None outside of backward passes."""
    return _current_node()


def next_number() -> int:
    """Return the number of the node that this thread makes next."""
    return _next_number()


def number_of(node: Any) -> int:
    """Return a node's number: later nodes have larger ones."""
    number: int = node._sequence_nr()
    return number


def keep_in(node: Any, key: str, value: object) -> None:
    """Let a node own a value: it is freed with the node, which may outlive its Python object."""
    node.metadata[key] = value


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Have a function called at the end of the backward pass that runs."""
    _queue(call)


def is_profiling() -> bool:
    """Return whether a profiler of torch runs: two cannot run at one time."""
    return bool(torch.autograd.profiler._is_profiler_enabled)
