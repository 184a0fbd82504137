"""The options with which onnxruntime follows a file that `remat apply` wrote.

Each of them is needed. By default onnxruntime merges every repeat with its original (common-subexpression elimination),
runs the nodes in an order of its own, and keeps dead buffers for later tensors of the same size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remat_cli.errors import UsageError

if TYPE_CHECKING:
    import onnxruntime


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

    Raises:
        UsageError: onnxruntime is not installed.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    return options
