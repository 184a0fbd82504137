"""The options with which onnxruntime follows a file that `remat apply` wrote.

Each of them is needed. By default onnxruntime merges every repeat with its original (common-subexpression elimination),
runs the nodes in an order of its own, and keeps dead buffers for later tensors of the same size. glibc, for its part,
keeps memory that was freed; so the process is told not to.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

from remat_cli.errors import UsageError

if TYPE_CHECKING:
    import onnxruntime

# From malloc.h. Memory from the threshold on goes back to the system as soon as it is freed; by itself, glibc would
# raise the threshold to the size of the largest tensor that was freed. Each further arena would keep memory of its own.
_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 2**16
_M_ARENA_MAX, _ARENAS = -8, 1


def import_onnxruntime() -> Any:
    """Return the module `onnxruntime`.

    Raises:
        UsageError: it is not installed, or cannot be imported.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f"this needs onnxruntime, which cannot be imported: {error}", hint="pip install 'remat[run]'"
        ) from None
    return onnxruntime


def session_options() -> onnxruntime.SessionOptions:
    """Return options for `onnxruntime.InferenceSession` with which it runs a rewritten model as it was planned.

    Change what does not bear on order or memory (threads, logging, profiling) as you like. No optimisation may be
    switched on: optimise the model first (`SessionOptions.optimized_model_filepath`), then plan the file that this
    gives.

    On Linux with glibc, this also tells the memory allocator of this process to give freed tensors back at once, with
    `mallopt`. Without that, the process would go on holding them, and the plan would save little. It holds for the
    whole process and for good, and costs time: memory that was given back has to be fetched again. Elsewhere nothing
    is told, and what the process holds depends on its allocator.

    Raises:
        UsageError: onnxruntime is not installed.
    """
    runtime = import_onnxruntime()
    _give_freed_memory_back()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    # By default, DequantizeLinear nodes are copied to each reader.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def _give_freed_memory_back() -> None:
    """Make malloc give memory back that was freed, where it is glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)
