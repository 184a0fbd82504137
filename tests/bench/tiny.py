"""Networks of small devices for inference: the arena that a greedy planner takes, and the one that a plan takes.

The three networks are those of the benchmark MLPerf Tiny (Banbury et al., 2021), by its descriptions, in 32-bit floats:
keyword spotting (DS-CNN), person detection (MobileNetV1, width 0.25, 96 x 96) and the autoencoder for sounds. `greedy`
places the plain run's buffers by size, the largest first, as TensorFlow Lite Micro's planner does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import TensorProto
from rich.console import Console
from rich.table import Table

from remat_cli.allocation.greedy import first_fit, largest_first
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.lifetimes import needed_by
from remat_cli.allocation.of_schedule import arena_of
from remat_cli.allocation.portfolio import Allocation, limits_of
from remat_cli.config import GraphOptions, PlannerChoice, Request
from remat_cli.core.arena import USUAL_ALIGNMENT
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import plain_run
from remat_cli.planning import plan
from remat_cli.prepare import prepare
from remat_cli.units import format_bytes, format_share, parse_budget
from tests.places import GRAPHS

sys.path.insert(0, str(GRAPHS))

from onnx_builder import ModelBuilder

SECONDS = 20.0


def keyword_spotting() -> onnx.ModelProto:
    """DS-CNN: one convolution and four separable ones on 49 x 10 features."""
    build = ModelBuilder("keyword_spotting")
    now = _conv(
        build, "first", build.input("features", TensorProto.FLOAT, [1, 1, 49, 10]), 1, 64, (10, 4), 2, (4, 1, 5, 1)
    )
    for number in range(1, 5):
        now = _separable(build, f"block{number}", now, 64, 64, 1)
    return _classified(build, now, 64, 12)


def person_detection() -> onnx.ModelProto:
    """MobileNetV1 of width 0.25 on grey pictures of 96 x 96."""
    build = ModelBuilder("person_detection")
    now = _conv(
        build, "first", build.input("picture", TensorProto.FLOAT, [1, 1, 96, 96]), 1, 8, (3, 3), 2, (0, 0, 1, 1)
    )
    channels = 8
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    for number, (wider, stride) in enumerate(zip((16, 32, 32, 64, 64, *6 * (128,), 256, 256), strides, strict=True)):
        now = _separable(build, f"block{number}", now, channels, wider, stride)
        channels = wider
    return _classified(build, now, channels, 2)


def autoencoder() -> onnx.ModelProto:
    """Ten fully connected layers: 640 numbers through 8 and back."""
    build = ModelBuilder("autoencoder")
    now, width = build.input("sound", TensorProto.FLOAT, [1, 640]), 640
    for number, next_width in enumerate((*4 * (128,), 8, *4 * (128,), 640)):
        weights = build.weight(f"weight{number}", width, next_width), build.weight(f"bias{number}", next_width)
        now, width = build.node("Gemm", f"layer{number}", [now, *weights]), next_width
        if number < 9:
            now = build.node("Relu", f"relu{number}", [now])
    return build.model(now, TensorProto.FLOAT, [1, 640])


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "keyword spotting": keyword_spotting,
    "person detection": person_detection,
    "autoencoder": autoencoder,
}


def tiny(console: Console) -> None:
    """Print the table."""
    table = Table(title="Inference on small devices: arenas, alignment 64", title_justify="left")
    table.add_column("network")
    for column in ("ops", "weights", "greedy", "arena", "bound", "status", "smallest", "more time"):
        table.add_column(column, justify="right")
    with TemporaryDirectory() as folder:
        for name, make in MODELS.items():
            path = Path(folder, "model.onnx")
            onnx.save(make(), path)
            prepared = prepare(path, GraphOptions(mode="inference"))
            graph = prepared.graph
            request = Request(parse_budget("min"), PlannerChoice("auto", {"time_limit": SECONDS}), arena=True)
            smallest = plan(prepared, request).solution
            found, greedy = of_plain_run(graph)
            assert found.bytes is not None
            assert smallest.arena is not None
            table.add_row(
                name,
                f"{len(graph.ops)}",
                format_bytes(graph.resident_bytes),
                *map(format_bytes, (greedy, found.bytes, found.bound_bytes)),
                found.status.value,
                format_bytes(smallest.arena.bytes),
                format_share(smallest.overhead or 0),
            )
    console.print(table)


def of_plain_run(graph: Graph) -> tuple[Allocation, int]:
    """Return what is found for the plain run, and the bytes of the greedy arena."""
    needed = needed_by(graph, plain_run(graph))
    instance = Instance.of(needed.buffers, USUAL_ALIGNMENT)
    greedy = int((first_fit(instance, largest_first(instance)) + instance.sizes).max()) * USUAL_ALIGNMENT
    return arena_of(graph, plain_run(graph), limits_of(SECONDS))[0], greedy


def _conv(
    build: ModelBuilder,
    name: str,
    reads: str,
    channels: int,
    makes: int,
    kernel: tuple[int, int],
    stride: int,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    group: int = 1,
) -> str:
    weights = build.weight(f"{name}.weight", makes, channels // group, *kernel), build.weight(f"{name}.bias", makes)
    made = build.node(
        "Conv", name, [reads, *weights], kernel_shape=kernel, strides=(stride, stride), pads=pads, group=group
    )
    return build.node("Relu", f"{name}.relu", [made])


def _separable(build: ModelBuilder, name: str, reads: str, channels: int, makes: int, stride: int) -> str:
    deep = _conv(build, f"{name}.depthwise", reads, channels, channels, (3, 3), stride, group=channels)
    return _conv(build, f"{name}.pointwise", deep, channels, makes, (1, 1), 1, (0, 0, 0, 0))


def _classified(build: ModelBuilder, reads: str, channels: int, classes: int) -> onnx.ModelProto:
    pooled = build.node("Flatten", "flat", [build.node("GlobalAveragePool", "pool", [reads])])
    weights = build.weight("classes.weight", channels, classes), build.weight("classes.bias", classes)
    scores = build.node("Gemm", "classes", [pooled, *weights])
    return build.model(build.node("Softmax", "softmax", [scores], axis=1), TensorProto.FLOAT, [1, classes])
