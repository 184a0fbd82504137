"""ONNX files: read without their weights, every value sized.

The symbolic dimensions of the inputs are bound with `ReadOptions.dims` (`--dim batch=8`) or `input_shapes`. The steps,
one module each: `load` (parse, never touching external data; inline local functions), `dims` (bind), `structure`
(check, sort), `shapes` (infer and fold, node by node), `convert` (to a `Graph`, views by `aliasing`).
"""

from __future__ import annotations

from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.formats.source import Source

__all__ = ["portable_bytes", "read"]


def read(source: Source, options: ReadOptions) -> Reading:
    """Read an ONNX model as a forward graph; its weights need not be there.

    Args:
        source: a `.onnx` file.
        options: sizes of symbolic dimensions, the aliasing profile, and whether estimates are accepted.

    Returns:
        the graph (kind forward, all times 0, time unit "flop"), with one `Operator` an op.

    Raises:
        UsageError: dimensions without a value, or given ones that do not fit the model.
        GraphError: the file is no valid model, a size cannot be known, or an estimate was needed and
            `options.strict` forbids it.
    """
    # onnx and numpy take 0.1 s to import.
    from remat_cli.formats.onnx.reader import read_model

    return read_model(source, options)


def portable_bytes(source: Source) -> bytes:
    """Return a model file that reads as `source` does, without its weights.

    Raises:
        GraphError: the file is no model.
    """
    from remat_cli.formats.onnx.load import without_weights

    return without_weights(source)
