"""Buffers as arrays: sizes in units, and the sections of time in which the same ones are needed."""

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
    """Buffers whose time is counted in sections, and whose sizes are counted in units.

    Attributes:
        sizes: [buffers] in units.
        lower: [buffers] the first section in which each is needed.
        upper: [buffers] the first one after it in which it is not.
        durations: [buffers] moments for which each is needed.
        sections: how many there are.
    """

    sizes: Ints
    lower: Ints
    upper: Ints
    durations: Ints
    sections: int

    @classmethod
    def of(cls, buffers: Sequence[Buffer], unit: int) -> Instance:
        """Number the sections of buffers.

        A section begins where a buffer begins after another one has ended: what is needed at any moment is needed
        together in some section.

        Args:
            buffers: at least one.
            unit: bytes; sizes are rounded up to it.
        """
        lower = np.array([buffer.lower for buffer in buffers], np.int64)
        upper = np.array([buffer.upper for buffer in buffers], np.int64)
        sizes = np.array([-(-buffer.size // unit) for buffer in buffers], np.int64)
        starts, ends = np.unique(lower), np.unique(upper)
        # Of the starts between two ends the last has all that lives at the others.
        last = starts[np.unique(np.searchsorted(starts, ends, side="left")) - 1]
        first_section = np.searchsorted(last, lower, side="left")
        return cls(sizes, first_section, np.searchsorted(last, upper, side="left"), upper - lower, len(last))

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def loads(self) -> Ints:
        """[sections] the sizes of the buffers that are needed together."""
        changes = np.zeros(self.sections + 1, np.int64)
        np.add.at(changes, self.lower, self.sizes)
        np.add.at(changes, self.upper, -self.sizes)
        return np.cumsum(changes)[:-1]

    @cached_property
    def tightest(self) -> Ints:
        """[buffers] the largest load of the sections in which each is needed."""
        powers = [self.loads]  # each of the largest of 1, 2, 4 ... sections, from each section on
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
        """The largest load of a section: no arena is smaller."""
        return int(self.loads.max())

    @cached_property
    def members(self) -> Bools:
        """[buffers, sections] whether a buffer is needed in a section."""
        sections = np.arange(self.sections)
        return (self.lower[:, None] <= sections) & (sections < self.upper[:, None])

    @cached_property
    def overlaps(self) -> Bools:
        """[buffers, buffers] whether both are needed in some section; each with itself, too."""
        return (self.lower[:, None] < self.upper) & (self.lower < self.upper[:, None])

    def backwards(self) -> Instance:
        """Return the same with time running backwards."""
        lower, upper = self.sections - self.upper, self.sections - self.lower
        return Instance(self.sizes, lower, upper, self.durations, self.sections)

    def parts(self) -> list[Ints]:
        """Return the buffers in groups that share no section with each other."""
        crossing = np.zeros(self.sections + 1, np.int64)
        np.add.at(crossing, self.lower + 1, 1)
        np.add.at(crossing, self.upper, -1)
        # A section that no buffer enters from the one before begins a part.
        part = np.cumsum(np.cumsum(crossing)[:-1] == 0)[self.lower]
        order = np.argsort(part, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(part[order])) + 1)

    def chosen(self, buffers: Ints) -> Instance:
        """Return an instance of these buffers alone."""
        lower, upper = self.lower[buffers], self.upper[buffers]
        first = int(lower.min())
        sizes, durations = self.sizes[buffers], self.durations[buffers]
        return Instance(sizes, lower - first, upper - first, durations, int(upper.max()) - first)
