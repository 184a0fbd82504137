"""Measured times of an ONNX model's ops in onnxruntime.

Workspace is measured if no rule gives it.
"""

from __future__ import annotations

import platform
from pathlib import Path
from statistics import median

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import plain_run
from remat_cli.costs import Measurements
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.workspace import WITHOUT_RULE
from remat_cli.runtime.onnx.apply import read_for
from remat_cli.runtime.onnx.execution import kernels_of, times_of
from remat_cli.runtime.onnx.rewrite import rewrite

# The first run does not count: it loads the weights.
_RUNS = 6


def measure_model(
    path: Path, options: GraphOptions, graph: Graph, *, time_limit: float = 600, observe: Observer | None = None
) -> Measurements:
    """Measure the median times of a model's ops in onnxruntime.

    The plain schedule runs several times, with one thread.

    An op that onnxruntime runs as several nodes under its own names is left out. The workspace of a kernel is measured
    only if no rule gives it: the op then runs alone.

    Args:
        path: the model.
        options: options of reading the model; the mode is inference.
        graph: the inference graph of the model.
        time_limit: time limit in seconds.
        observe: is told the progress.

    Raises:
        RematError: as in `runtime.onnx.execution.times_of`.
    """
    if observe is not None:
        observe.phase("running the model")
    schedule = plain_run(graph)
    rewritten = rewrite(read_for(path, options, keep_data=True), graph, schedule.computes)
    version, taken = times_of(
        path, read_for(path, options, keep_data=False), rewritten, runs=_RUNS, time_limit=time_limit
    )
    computes = schedule.computes
    times: dict[str, int] = {}
    for node, position in zip(rewritten.proto.graph.node, rewritten.positions, strict=True):
        if position is not None and node.name in taken:
            times[computes[position]] = int(median(taken[node.name][1:]))
    sized = read_for(path, options, keep_data=True)
    unknown = [one.node for one in sized.graph.nodes if full_type(one.node.proto) in WITHOUT_RULE]
    kernels = kernels_of(path, sized, unknown, time_limit=time_limit) if unknown else {}
    return Measurements(times, kernels, machine=f"onnxruntime {version} on {platform.machine()} CPU, 1 thread")
