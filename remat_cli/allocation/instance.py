"""Buffers as arrays: sizes in units, times in sections.

A section is a span of time in which the same buffers are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.buffers import Buffer

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Instance:
    """Buffers with times in sections and sizes in units.

    Attributes:
        sizes: [buffers] size in units.
        lower: [buffers] first section of each buffer.
        upper: [buffers] first section after each buffer.
        durations: [buffers] number of moments of each buffer.
        sections: number of sections.
    """

    sizes: Ints
    lower: Ints
    upper: Ints
    durations: Ints
    sections: int

    @classmethod
    def of(cls, buffers: Sequence[Buffer], unit: int) -> Instance:
        """Number the sections of buffers.

        A section begins where a buffer begins after another has ended. All buffers that are needed at a moment share a
        section.

        Args:
            buffers: at least one.
            unit: bytes of a unit; sizes are rounded up.
        """
        lower = np.array([buffer.lower for buffer in buffers], np.int64)
        upper = np.array([buffer.upper for buffer in buffers], np.int64)
        sizes = np.array([-(-buffer.size // unit) for buffer in buffers], np.int64)
        starts, ends = np.unique(lower), np.unique(upper)
        # Of the starts between two ends, the last has all buffers that live at the others.
        last = starts[np.unique(np.searchsorted(starts, ends, side="left")) - 1]
        first_section = np.searchsorted(last, lower, side="left")
        return cls(sizes, first_section, np.searchsorted(last, upper, side="left"), upper - lower, len(last))

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def loads(self) -> Ints:
        """The [sections] sums of sizes of the buffers in each section."""
        changes = np.zeros(self.sections + 1, np.int64)
        np.add.at(changes, self.lower, self.sizes)
        np.add.at(changes, self.upper, -self.sizes)
        return np.cumsum(changes)[:-1]

    @cached_property
    def tightest(self) -> Ints:
        """The [buffers] largest load of each buffer's sections."""
        powers = [self.loads]  # the largest load of 1, 2, 4 ... sections, from each section on
        while 2 ** len(powers) <= self.sections:
            half = 2 ** (len(powers) - 1)
            powers.append(np.maximum(powers[-1][:-half], powers[-1][half:]))
        most = np.zeros(len(self), np.int64)
        power = np.log2(self.upper - self.lower).astype(np.int64)
        for index, largest in enumerate(powers):
            chosen = np.flatnonzero(power == index)
            most[chosen] = np.maximum(largest[self.lower[chosen]], largest[self.upper[chosen] - 2**index])
        return most

    @property
    def load(self) -> int:
        """The largest load of a section, the least size of an arena."""
        return int(self.loads.max())

    @cached_property
    def members(self) -> Bools:
        """The [buffers, sections] membership of buffers in sections."""
        sections = np.arange(self.sections)
        return (self.lower[:, None] <= sections) & (sections < self.upper[:, None])

    @cached_property
    def overlaps(self) -> Bools:
        """The [buffers, buffers] pairs that share a section.

        Each buffer shares sections with itself.
        """
        return (self.lower[:, None] < self.upper) & (self.lower < self.upper[:, None])

    def backwards(self) -> Instance:
        """Return the instance with time running backwards."""
        lower, upper = self.sections - self.upper, self.sections - self.lower
        return Instance(self.sizes, lower, upper, self.durations, self.sections)

    def parts(self) -> list[Ints]:
        """Return groups of buffers that share no section."""
        crossing = np.zeros(self.sections + 1, np.int64)
        np.add.at(crossing, self.lower + 1, 1)
        np.add.at(crossing, self.upper, -1)
        # A part begins at a section that no buffer enters from the previous section.
        part = np.cumsum(np.cumsum(crossing)[:-1] == 0)[self.lower]
        order = np.argsort(part, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(part[order])) + 1)

    def chosen(self, buffers: Ints) -> Instance:
        """Return an instance of these buffers alone."""
        lower, upper = self.lower[buffers], self.upper[buffers]
        first = int(lower.min())
        sizes, durations = self.sizes[buffers], self.durations[buffers]
        return Instance(sizes, lower - first, upper - first, durations, int(upper.max()) - first)
