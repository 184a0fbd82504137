"""Whole commands, from start to end: on files that take long to read, and on a small one, where much is starting.

Each command runs three times, in a process of its own; what is shown is the least that it took.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from remat_cli.units import format_bytes
from tests.places import GRAPHS

RUNS = 3
FOLDABLE_NODES = 20_000
OPSET = 17


def commands(console: Console) -> None:
    """Print what whole commands take."""
    table = Table(title=f"Whole commands, the least of {RUNS} runs", title_justify="left")
    for column in ("command", "file", "size", "seconds", "CPU s"):
        table.add_column(column, justify="left" if column in ("command", "file") else "right")
    with TemporaryDirectory() as folder:
        for what, file, arguments in _rows(Path(folder)):
            seconds = [min(column) for column in zip(*(_seconds(arguments) for _ in range(RUNS)), strict=True)]
            table.add_row(arguments[0], what, format_bytes(file.stat().st_size), *(f"{one:.2f}" for one in seconds))
    console.print(table)


def _rows(folder: Path) -> Iterator[tuple[str, Path, Sequence[str]]]:
    """Yield what is read, its file, and the command."""
    for family, ops, command in (
        ("transformer", 100_000, ("inspect",)),
        ("layered", 100_000, ("inspect",)),
        ("transformer", 13_000, ("plan", "--budget", "60%")),
    ):
        path = folder / "graph.json"
        _seconds(("generate", family, "--ops", str(ops), "-o", str(path)))
        yield f"{family}, {ops:,} ops", path, (*command, str(path))
    for name, model in _foldable_models(FOLDABLE_NODES):
        path = folder / "model.onnx"
        onnx.save(model, path)
        yield f"{name}, {FOLDABLE_NODES:,} foldable nodes", path, ("inspect", "--mode", "inference", str(path))
    unet = GRAPHS / "unet.onnx"
    for command in (("inspect",), ("plan", "--budget", "60%")):
        yield "unet.onnx, 139 ops", unet, (*command, "--dim", "batch=8", str(unet))


def _seconds(arguments: Sequence[str]) -> tuple[float, float]:
    """Run remat and return the seconds that it took: on the clock, and of the CPU."""
    start = perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "remat_cli", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return perf_counter() - start, used.ru_utime + used.ru_stime


def _foldable_models(nodes: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models of shape arithmetic: at the top, in the branches of an If, and in a function."""
    yield "ONNX", _model(_scaled("x", "y", nodes))
    half = [helper.make_graph(_scaled("x", name, nodes // 2), name, [], [_floats(name)]) for name in ("then", "else")]
    condition = [_node("ReduceMax", "x", "most", keepdims=0), _node("Cast", "most", "is", to=TensorProto.BOOL)]
    yield "ONNX, in an If", _model([*condition, _node("If", "is", "y", then_branch=half[0], else_branch=half[1])])
    opset = helper.make_opsetid("", OPSET)
    function = helper.make_function("local", "Scale", ["in"], ["out"], _scaled("in", "out", nodes // 100), [opset])
    calls = [_node("Scale", f"x{i}" if i else "x", f"x{i + 1}", domain="local") for i in range(100)]
    calls[-1].output[0] = "y"
    yield "ONNX, in a function", _model(calls, [function])


def _scaled(source: str, result: str, nodes: int) -> list[onnx.NodeProto]:
    """Return nodes that multiply `source` by a number, which nodes that can all be folded make of its shape."""
    made: list[onnx.NodeProto] = []
    last = f"{result}.first"
    made.append(_constant(last, [1]))
    for number in range(nodes // 8):
        name = f"{result}.{number}"
        made += [
            _node("Shape", source, f"{name}.shape"),
            _constant(f"{name}.axis", number % 4),
            _node("Gather", f"{name}.shape {name}.axis", f"{name}.size", axis=0),
            _node("Add", f"{name}.size {name}.size", f"{name}.sum"),
            _constant(f"{name}.axes", [0]),
            _node("Unsqueeze", f"{name}.sum {name}.axes", f"{name}.row"),
            _node("Concat", f"{name}.row {last}", f"{name}.pair", axis=0),
            _node("ReduceMax", f"{name}.pair", f"{name}.most", axes=[0]),
        ]
        last = f"{name}.most"
    return [
        *made,
        _node("Cast", last, f"{result}.scale", to=TensorProto.FLOAT),
        _node("Mul", f"{source} {result}.scale", result),
    ]


def _node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def _constant(name: str, value: object) -> onnx.NodeProto:
    return _node("Constant", "", name, value=numpy_helper.from_array(np.array(value, dtype=np.int64)))


def _floats(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _model(nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 3, 32, 32])
    graph = helper.make_graph(nodes, "foldable", [x], [_floats("y")])
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(one.domain, 1) for one in functions[:1])]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
