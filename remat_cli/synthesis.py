"""Graphs from generators, of the wanted length, prepared for planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Kind
from remat_cli.errors import UsageError
from remat_cli.formats import Reading
from remat_cli.generate import Generator
from remat_cli.prepare import Prepared, prepare_reading

# The length from which the graph's growth is measured: every family can be this short.
_SHORT = 4


def synthesize(
    generator: Generator, options: GraphOptions | None = None, *, kind: Kind | None = None, ops: int | None = None
) -> Prepared:
    """Generate a graph with costs and, by default, its training graph.

    Args:
        generator: the generator with its options.
        options: cost model, device and optimizer; their mode is ignored.
        kind: forward, training or inference; None for training, or inference if the generator's family is for
            inference.
        ops: approximate number of ops; None for the length in the generator's options.

    Raises:
        UsageError: the options or the kind do not suit the generator.
    """
    options = options or GraphOptions()
    options.check()
    if ops is not None:
        generator = _with_length(generator, kind, ops)
    generated = generator.generate()
    if generated.graph.kind is Kind.INFERENCE and kind not in (None, Kind.INFERENCE):
        raise UsageError(
            f"{generated.graph.name} is made for inference: it has no backward",
            hint="ask for no other kind, or another family",
        )
    mode = Kind.INFERENCE if Kind.INFERENCE in (kind, generated.graph.kind) else Kind.TRAINING
    return prepare_reading(
        Reading(generated.graph, generated.operators, generated.parameters),
        generated.graph.name,
        replace(options, mode=mode),
        derive_training=kind is not Kind.FORWARD,
    )


def _with_length(generator: Generator, kind: Kind | None, ops: int) -> Generator:
    """Return the generator at the length closest to `ops` ops.

    The number of ops grows in proportion to the length.
    """

    def at(length: int) -> Generator:
        changed: dict[str, Any] = {generator.grows_by: length}
        return replace(generator, **changed)

    few, more = (len(synthesize(at(length), kind=kind).graph.ops) for length in (_SHORT, _SHORT + 1))
    return at(max(1, _SHORT + round((ops - few) / (more - few))))
