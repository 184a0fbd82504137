"""The backward pass that runs, and its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

_current_node = torch._C._current_autograd_node
_current_pass: Callable[[], int] = torch._C._current_graph_task_id
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


def makers_of_gradients(results: Iterable[Any]) -> Iterator[tuple[Any, dict[int, torch.Tensor]]]:
    """Yield each node that makes gradients of leaves, with these leaves by their places among its gradients.

    Args:
        results: results of the graph to search; values that are no tensors are left out.
    """
    left = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    seen: set[Any] = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        after: list[Any] = [following for following, _ in node.next_functions]
        leaves = {place: each.variable for place, each in enumerate(after) if hasattr(each, "variable")}
        if leaves:
            yield node, leaves
        left.extend(after)


def current_pass() -> int | None:
    """Return the number of the running backward pass; None outside of backward passes."""
    number = _current_pass()
    return None if number == -1 else number


def after_backward(act: Callable[[], None]) -> None:
    """Call a function after the running backward pass, also if it ends with an error."""
    _queue(_AtEnd(act))


class _AtEnd:
    """A callback of autograd's engine that acts when dropped.

    When the engine calls it, the earlier dispatch modes are not restored yet.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def __call__(self) -> None:
        """Do nothing yet."""

    def __del__(self) -> None:
        self._act()


def is_profiling() -> bool:
    """Return whether a profiler of torch runs: two cannot run at one time."""
    return bool(torch.autograd.profiler._is_profiler_enabled)
