"""ONNX files, read without their weights, with every value sized.

The symbolic dimensions of the inputs are bound with `ReadOptions.dims` (`--dim batch=8`) or `input_shapes`. The steps,
one module each: `load` (parse, never touching external data; inline local functions), `dims` (bind), `structure`
(check, sort), `shapes` (infer and fold, node by node), `convert` (to a `Graph`, views by `aliasing`).
"""

from __future__ import annotations

from collections.abc import Callable

from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.formats.source import Source

__all__ = ["portable_bytes", "read", "reader_in_parts"]


def read(source: Source, options: ReadOptions) -> Reading:
    """Read an ONNX model as a forward graph, even without its weights.

    Args:
        source: a `.onnx` file.
        options: sizes of symbolic dimensions, the aliasing profile, and whether estimates are accepted.

    Returns:
        the graph (kind forward, all times 0, time unit "flop"), with one `Operator` per op.

    Raises:
        UsageError: a dimension has no value, or given values do not suit the model.
        GraphError: the file is no valid model, a size is unknowable, or an estimate was needed but forbidden by
            `options.strict`.
    """
    # onnx and numpy take 0.1 s to import.
    from remat_cli.formats.onnx.reader import read_model

    return read_model(source, options)


def reader_in_parts(source: Source, options: ReadOptions) -> Callable[[ReadOptions], Reading]:
    """Return a function that reads a model in parts, which is parsed once; see `read`."""
    from remat_cli.formats.onnx import reader

    return reader.reader_in_parts(source, options)


def portable_bytes(source: Source) -> bytes:
    """Return a model file without weights that reads like `source`.

    Raises:
        GraphError: the file is not a model.
    """
    from remat_cli.formats.onnx.load import without_weights

    return without_weights(source)
