"""A model at many values of one of its dimensions, read as seldom as its sizes allow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.formats import Reading
from remat_cli.formats.other_sizes import SizeCurves
from remat_cli.prepare import Prepared, prepare_reading, read

# Readings from which others are told: as many as tell a parabola, and the first, which is often unlike the others.
_MOST_KEPT = 5


@dataclass
class ModelBySize:
    """A model with a dimension that can be given.

    Attributes:
        path: file, or function.
        options: how it is read, but for that dimension.
        dim: name of the dimension.
    """

    path: Path
    options: GraphOptions
    dim: str
    _read: dict[int, Reading] = field(default_factory=dict)  # the first ones
    _curves: SizeCurves | None = None  # through these

    def at(self, value: int) -> Prepared:
        """Read the model at a value, and prepare it.

        Raises:
            GraphError: it cannot be read so.
            UsageError: it has no such dimension, or the options contradict each other or the file.
        """
        options = self._options(value)
        reading = read(self.path, options)
        if len(self._read) < _MOST_KEPT:
            self._read[value] = reading
            self._curves = SizeCurves.through(self._read)
        return prepare_reading(reading, str(self.path), options)

    def told_at(self, value: int) -> Prepared | None:
        """Return what the model most likely is at a value, told from what was read at others; None if they do not tell.

        Raises:
            GraphError: at that value no graph is told, for example as sizes are too large.
        """
        told = None if self._curves is None or value in self._read else self._curves.at(value)
        if told is None:
            return None
        return prepare_reading(told, str(self.path), self._options(value))

    def _options(self, value: int) -> GraphOptions:
        return replace(self.options, dims={**self.options.dims, self.dim: value})
