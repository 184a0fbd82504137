"""The options for onnxruntime to follow a file of `remat apply`.

Each option is needed. By default onnxruntime merges every repeat with its original (common-subexpression elimination),
runs the nodes in an order of its own, and keeps dead buffers for later tensors of the same size. glibc keeps freed
memory; an option of its own stops that.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

from remat_cli.errors import UsageError

if TYPE_CHECKING:
    import onnxruntime

# From malloc.h. Freed memory from the threshold on, a page, is released at once. With 64 KiB, smaller tensors left
# holes, 2.6 of 15.5 MB in a DenseNet in parts. glibc by itself would raise the threshold to the size of the largest
# freed tensor. Each further arena would keep memory of its own.
_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 2**12
_M_ARENA_MAX, _ARENAS = -8, 1


def import_onnxruntime() -> Any:
    """Return the module `onnxruntime`.

    Raises:
        UsageError: onnxruntime is not installed, or cannot be imported.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f"this needs onnxruntime, which cannot be imported: {error}", hint="pip install 'remat[run]'"
        ) from None
    return onnxruntime


def session_options() -> onnxruntime.SessionOptions:
    """Return session options that run a rewritten model as planned.

    They are for `onnxruntime.InferenceSession`.

    You may change options that do not affect order or memory (threads, logging, profiling). Do not switch on
    optimisation: optimise the model first (`SessionOptions.optimized_model_filepath`), then plan the new file.

    On Linux with glibc, this function also sets the memory allocator of this process, with `mallopt`, to release freed
    tensors at once. Otherwise the process would keep them, and the plan would save little. The setting is permanent for
    the whole process, and costs time: released memory has to be allocated again. On other systems the allocator is not
    set, and the memory of the process depends on it.

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
    """Let glibc's malloc release freed memory at once."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)
