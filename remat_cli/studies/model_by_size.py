"""A model at many values of a dimension.

A few values are read; the others are predicted from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.formats import Reading
from remat_cli.formats.other_sizes import SizeCurves
from remat_cli.prepare import GraphOrigin, Prepared, prepare_reading, read

# Models that are read before others are predicted: as many as fix a parabola, and the first, which often differs from
# the others.
_MOST_KEPT = 5


@dataclass
class ModelBySize:
    """A model with one variable dimension.

    Attributes:
        path: file or function of the model.
        options: options of reading the model, without that dimension.
        dim: name of the dimension.
        split: regions are going to run in parts: a step that is captured is not captured for them again.
    """

    path: Path
    options: GraphOptions
    dim: str
    split: bool = False
    _read: dict[int, Reading] = field(default_factory=dict)  # the first models read, by value
    _curves: SizeCurves | None = None  # curves through the sizes of these models

    def at(self, value: int) -> Prepared:
        """Read and prepare the model at a value.

        Raises:
            GraphError: the model cannot be read at this value.
            UsageError: the model has no such dimension, or the options contradict each other or the file.
        """
        origin = GraphOrigin(self.path, self.options_at(value))
        reading = origin.whole_reading if self.split else read(self.path, origin.options)
        if len(self._read) < _MOST_KEPT:
            self._read[value] = reading
            self._curves = SizeCurves.through(self._read)
        return self._prepared(reading, origin)

    def predict_at(self, value: int) -> Prepared | None:
        """Predict the model at a value; return None if impossible.

        The prediction comes from models that were read at other values.

        Raises:
            GraphError: no graph exists at this value, for example because sizes are too large.
        """
        predicted = None if self._curves is None or value in self._read else self._curves.at(value)
        if predicted is None:
            return None
        return self._prepared(predicted, GraphOrigin(self.path, self.options_at(value)))

    def _prepared(self, reading: Reading, origin: GraphOrigin) -> Prepared:
        return replace(prepare_reading(reading, str(self.path), origin.options), origin=origin)

    def options_at(self, value: int) -> GraphOptions:
        """Return the options of reading the model at a value."""
        return replace(self.options, dims={**self.options.dims, self.dim: value})
