"""Readers: one file and one line in READERS for each format.

The content of a file decides on its format, not its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats import native, node_link, onnx
from remat_cli.formats.functions import names_function
from remat_cli.formats.garbage import no_search_for_garbage
from remat_cli.formats.model_config import names_step, refuse_options_of_configs
from remat_cli.formats.reader import ALL_OTHER_DIMS, Aliasing, Reading, ReadOptions
from remat_cli.formats.source import Source
from remat_cli.settings import Setting

__all__ = [
    "READERS",
    "Aliasing",
    "ReadOptions",
    "Reader",
    "Reading",
    "can_split",
    "has_fixed_sizes",
    "portable_bytes",
    "read_graph",
    "reader_in_parts",
]


@dataclass(frozen=True, slots=True)
class Reader:
    """A format that graphs are read from.

    Attributes:
        recognises: tells whether a file's content is of this format.
        read: reads the file.
    """

    recognises: Callable[[Source], bool]
    read: Callable[[Source, ReadOptions], Reading]


# Checked in this order: every file that is not JSON goes to the reader of ONNX, which refuses other files.
READERS: Mapping[str, Reader] = {
    "native JSON": Reader(native.recognises, native.read),
    "node-link JSON": Reader(node_link.recognises, node_link.read),
    "ONNX": Reader(lambda source: not source.is_json, lambda source, options: onnx.read(source, options)),
}


@no_search_for_garbage()
def read_graph(path: Path, options: ReadOptions | None = None) -> Reading:
    """Read the graph in the file at `path`, of any format.

    Raises:
        GraphError: the file or the graph in it is bad.
        UsageError: the options do not suit the file (dimensions left open, unknown names).
    """
    if path.suffix.rstrip(":") == ".py":
        raise UsageError(f"{path} names no function", hint=f"write {str(path).rstrip(':')}:NAME, NAME being one in it")
    if options is not None:
        _refuse_options_of_steps(path, options)
    source = Source(path)
    for reader in READERS.values():
        if reader.recognises(source):
            if options is not None and options.parts and not can_split(source, options):
                raise _unsplittable(source, options)
            reading = reader.read(source, options or ReadOptions())
            return _with_idle_dims(reading, options) if options and source.is_json else reading
    if str(source.document.get("format", "")).startswith("remat.schedule/"):
        raise GraphError(f"{path} is a schedule, not a graph", hint="name the graph that it was made for")
    raise GraphError(
        f"{path}: the JSON in it is no graph",
        hint=f'remat reads {", ".join(READERS)}; a native graph begins with {{"format": "{native.FORMAT}", ...}}, '
        'and the config of a model has a "model_type"',
    )


def reader_in_parts(path: Path, options: ReadOptions) -> Callable[[ReadOptions], Reading]:
    """Return a function that reads the ONNX model at `path` in parts; the file is parsed once.

    Errors are those of `read_graph`, for parts those of the function.
    """
    _refuse_options_of_steps(path, options)
    return no_search_for_garbage()(onnx.reader_in_parts(Source(path), options))


def _refuse_options_of_steps(path: Path, options: ReadOptions) -> None:
    """Refuse options that have a meaning for PyTorch steps alone.

    Raises:
        UsageError: one is given.
    """
    if options.fused:
        raise UsageError(
            (Setting("fused"), f" has no meaning for {path}: kernels are fused of PyTorch steps"),
            hint="name a function, such as train.py:step",
        )
    refuse_options_of_configs(path, options)


def can_split(source: Source, options: ReadOptions) -> bool:
    """Tell whether regions of a file's graph can run in parts.

    JSON has no ops to cut, and an ONNX model's training step is derived from the whole.
    """
    return options.mode == "inference" and not source.is_json


def _unsplittable(source: Source, options: ReadOptions) -> UsageError:
    """Return the error for parts of a graph that `can_split` refuses."""
    parts = Setting("parts", options.parts)
    if source.is_json:
        return UsageError(
            (parts, f" has no meaning for {source.path}: PyTorch steps and ONNX models run in parts"),
            hint="name a function, such as train.py:step, or a model",
        )
    return UsageError(
        (parts, " goes with inference where the model is ONNX"),
        hint=("add ", Setting("mode", "inference"), ", or name a PyTorch step, such as train.py:step"),
    )


def _with_idle_dims(reading: Reading, options: ReadOptions) -> Reading:
    """Add a note to a reading of fixed sizes if sizes were given in vain."""
    idle = [*(name for name in options.dims if name != ALL_OTHER_DIMS), *options.input_shapes, *options.values]
    if not idle:
        return reading
    note = f"all sizes in a JSON graph are fixed: those given for {', '.join(idle)} make no difference"
    return replace(reading, notes=(*reading.notes, note))


def has_fixed_sizes(path: Path) -> bool:
    """Tell whether all sizes of the graph at `path` are fixed.

    Then no dimension can be given or searched.

    Raises:
        GraphError: the file cannot be read.
    """
    return not names_step(path) and Source(path).is_json


def portable_bytes(path: Path) -> bytes:
    """Return a file without weights that gives the same graph.

    It can be sent to another machine.

    Raises:
        GraphError: the file cannot be read.
        UsageError: the path is a function, which may need more than its file.
    """
    if names_function(path):
        raise UsageError(f"{path} is Python, which is not sent elsewhere", hint="remat convert it, and name the result")
    source = Source(path)
    return source.content if source.is_json else onnx.portable_bytes(source)
