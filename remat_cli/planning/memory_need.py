"""The memory that planning itself takes, estimated in advance."""

from __future__ import annotations

from remat_cli.core.graph import Graph
from remat_cli.machine.system_limits import memory_left
from remat_cli.units import format_bytes

# The largest memory for each op: `auto` took 9 to 17 kB on layered graphs of 80,000 to 300,000 ops.
_BYTES_EACH = 17_000
# Planning that takes less memory gets no note, if that much is left.
_LITTLE = 1_000_000_000


def notes_on_memory(graph: Graph) -> list[str]:
    """Return a note on the memory that planning a graph takes.

    The list is empty if that memory is small and available.
    """
    need, left = len(graph.ops) * _BYTES_EACH, memory_left()
    is_too_much = left is not None and need > left
    if need < _LITTLE and not is_too_much:
        return []
    note = f"planning {len(graph.ops):,} ops may take {format_bytes(need)} of memory"
    if is_too_much and left is not None:
        note += f", and {format_bytes(left)} are left; the planner dtr takes less"
    return [note]
