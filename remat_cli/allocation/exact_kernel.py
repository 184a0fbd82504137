"""Depth-first search of offsets over flat arrays of whole numbers, for a compiler.

Each step places one buffer at the lowest offset that the placed ones leave it. Offsets never fall from step to step,
and equal ones follow an order given beforehand: each arrangement is reached once. Or a step fills a corner: it puts a
buffer on the floor of a section, or leaves room empty there. That is the lowest section, or of all edges of floors
between higher ones the one that the fewest buffers can fill. Of equal buffers the first one is placed first.
Where the buffers that are left fall into groups that share no section, each group is searched alone: if one has no
solution, the others' other solutions are not tried.

Source: Moffitt, MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning, ASPLOS 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.compiled import compiled

Ints = NDArray[np.int64]

NOWHERE = 2**62
FOUND, NONE, GOES_ON, LOST = range(4)
RAISE = -2
# Ways to search: by ascending offset, or by corners: the lowest one, or the one that the fewest buffers can fill.
BY_OFFSET, LOWEST, FEWEST = range(3)
# Rows of the tables of buffers, sections, frames, and what is noted to be undone; single values.
LOWER, UPPER, SIZE, RANK, TWIN, OFFSET, LEAST = range(7)
FLOOR, LOAD, CROSSING, STAMP = range(4)
START, STOP, FIRST, LAST, BACK, WAITING, CHOSEN, SINCE, SINCE_RANK, TRIED, TRIED_RANK = range(11)
CEILING, OLD_LEAST, OLD_FLOOR, CORNER, SKIPS, ROWS_OF_FRAME = range(11, 17)
OF, VALUE = range(2)
LEAST_OF, SIZE_OF = range(2)
DEPTH, LEASTS, FLOORS, GROUPS, IS_ENTERED, STAMPS, WAY, MOST_SKIPS, HAS_LEFT_OUT, VALUES = range(10)


class Neighbours(NamedTuple):
    """Who shares sections with whom.

    Attributes:
        start: [N + 1] where in `other` those of each buffer start.
        other: buffers that share a section with a buffer.
        member_start: [S + 1] where in `member` those of each section start.
        member: buffers that are needed in a section.
    """

    start: Ints
    other: Ints
    member_start: Ints
    member: Ints


class State(NamedTuple):
    """A search that can be left and gone on with.

    Attributes:
        values: depth, lengths of the two lists and of the waiting groups, whether the frame was entered, stamps used,
            the way to search, how many corners of them may stay empty, whether more could have.
        buffers: [7, N] first section, the one after the last, size, rank in the order, the next earlier one of the same
            life and size, offset (-1: not placed), and the least offset that the placed ones leave.
        sections: [4, S + 1] floor below which nothing is left to fill, load of what is not placed, how many buffers
            not placed cross into the section from the one before, a stamp.
        order: [N] the buffers; those of a group stand together.
        frames: [16, D] of each step: its group in `order`, its sections, the step to return to where it fails, the
            next waiting group (-1 for none), the buffer chosen, offset and rank of the step before, offset and rank
            tried last, the offset that is too high to begin at, the lengths of the lists before it, the section that
            is filled, and how many corners stayed empty.
        leasts: [2, L] buffers, and their least offsets before a step changed them.
        floors: [2, L] the same of sections' floors.
        groups: [6, N + 1] groups that wait: as in frames, to `WAITING`.
        sorted: [2, N] offsets and sizes of what is left in one section: scratch.
    """

    values: Ints
    buffers: Ints
    sections: Ints
    order: Ints
    frames: Ints
    leasts: Ints
    floors: Ints
    groups: Ints
    sorted: Ints


@compiled
def go_on(near: Neighbours, s: State, capacity: int, steps: int) -> tuple[int, int]:
    """Search on until offsets are found, there are none, or so many steps were made; return which, and the steps."""
    made = 0
    while True:
        depth = s.values[DEPTH]
        if not s.values[IS_ENTERED]:
            if s.frames[START, depth] == s.frames[STOP, depth]:
                if not _next_group(s, depth):
                    return FOUND, made
                continue
            _enter(near, s, depth, capacity)
        if made >= steps:
            return GOES_ON, made
        if depth + 3 >= s.frames.shape[1]:
            return LOST, made
        made += 1
        if not _step(near, s, depth, capacity):
            return NONE, made


@compiled
def _step(near: Neighbours, s: State, depth: int, capacity: int) -> bool:
    """Place the next buffer, or leave a corner empty, or go back where neither is left; False: nothing is left."""
    buffer = _next(s, depth) if s.values[WAY] == BY_OFFSET else _next_at_corner(near, s, depth)
    if buffer == -1:
        back = s.frames[BACK, depth]
        if back < 0:
            return False
        s.values[DEPTH] = back
        _undo(s, back)
    elif buffer == RAISE:
        if _raise(near, s, depth, capacity):
            _descend_empty(s, depth)
        else:
            _undo(s, depth)
    elif _place(near, s, depth, buffer, capacity):
        _descend(s, depth)
    else:
        _undo(s, depth)
    return True


@compiled
def _enter(near: Neighbours, s: State, depth: int, capacity: int) -> None:
    """Begin a step."""
    if s.values[WAY] == BY_OFFSET:
        _enter_group(s, depth)
    elif s.values[WAY] == LOWEST:
        _enter_corner(s, depth)
    else:
        _enter_fewest(near, s, depth, capacity)
    s.values[IS_ENTERED] = 1


@compiled
def _enter_group(s: State, depth: int) -> None:
    """Set the ceiling: offsets from the least height on at which a buffer could end leave room below for that one."""
    ceiling = NOWHERE
    for at in range(s.frames[START, depth], s.frames[STOP, depth]):
        buffer = s.order[at]
        ceiling = min(ceiling, s.buffers[LEAST, buffer] + s.buffers[SIZE, buffer])
    s.frames[CEILING, depth] = ceiling
    s.frames[TRIED, depth], s.frames[TRIED_RANK, depth] = s.frames[SINCE, depth], s.frames[SINCE_RANK, depth]


@compiled
def _next(s: State, depth: int) -> int:
    """Return the buffer to try next, by least offset and then by rank; -1 for none."""
    tried, tried_rank = s.frames[TRIED, depth], s.frames[TRIED_RANK, depth]
    best, least, least_rank = -1, s.frames[CEILING, depth], -1
    for at in range(s.frames[START, depth], s.frames[STOP, depth]):
        buffer = s.order[at]
        offset = s.buffers[LEAST, buffer]
        if tried <= offset <= least:
            rank = s.buffers[RANK, buffer]
            is_next = (offset < least or rank < least_rank) and (offset > tried or rank > tried_rank)
            if is_next and _is_first_twin(s, buffer):
                best, least, least_rank = at, offset, rank
    if best < 0:
        return -1
    # The chosen one stands first in its group.
    first = s.frames[START, depth]
    buffer = s.order[best]
    s.order[best] = s.order[first]
    s.order[first] = buffer
    s.frames[TRIED, depth], s.frames[TRIED_RANK, depth] = least, least_rank
    s.frames[CHOSEN, depth] = buffer
    return int(buffer)


@compiled
def _is_first_twin(s: State, buffer: int) -> bool:
    """Tell whether every buffer of the same life and size that comes earlier in the order is placed."""
    twin = s.buffers[TWIN, buffer]
    return bool(twin < 0 or s.buffers[OFFSET, twin] >= 0)


@compiled
def _place(near: Neighbours, s: State, depth: int, buffer: int, capacity: int) -> bool:
    """Place a buffer at its least offset; tell whether the others may still fit."""
    offset = s.buffers[LEAST, buffer]
    top = offset + s.buffers[SIZE, buffer]
    s.frames[OLD_LEAST, depth], s.frames[OLD_FLOOR, depth] = s.values[LEASTS], s.values[FLOORS]
    s.buffers[OFFSET, buffer] = offset
    first, last = s.buffers[LOWER, buffer], s.buffers[UPPER, buffer]
    for section in range(first, last):
        _raise_floor(s, section, top)
        s.sections[LOAD, section] -= s.buffers[SIZE, buffer]
        s.sections[CROSSING, section] -= section > first
    s.values[STAMPS] += 1
    stamp = s.values[STAMPS]
    fits = True
    for at in range(near.start[buffer], near.start[buffer + 1]):
        other = near.other[at]
        if s.buffers[OFFSET, other] < 0 and s.buffers[LEAST, other] < top:
            fits = fits and top + s.buffers[SIZE, other] <= capacity
            _raise_least(s, other, top)
            s.sections[STAMP, s.buffers[LOWER, other] : s.buffers[UPPER, other]] = stamp
    # The fewest come first at any height: of later offsets nothing is known.
    least = 0 if s.values[WAY] == FEWEST else offset
    return fits and _fit_sections(near, s, depth, least, top, capacity, stamp)


@compiled
def _fit_sections(near: Neighbours, s: State, depth: int, offset: int, top: int, capacity: int, stamp: int) -> bool:
    """Raise floors to where the next buffer can begin; tell whether loads still fit above them."""
    for section in range(s.frames[FIRST, depth], s.frames[LAST, depth]):
        load = s.sections[LOAD, section]
        if load > 0:
            if s.sections[STAMP, section] == stamp:
                if s.values[WAY] == LOWEST:
                    least = _least_left(near, s, section, offset, capacity)
                else:
                    least = _least_above(near, s, section, top, capacity)
                if least < 0:
                    return False
                if least > s.sections[FLOOR, section]:
                    _raise_floor(s, section, least)
            if max(s.sections[FLOOR, section], offset) + load > capacity:
                return False
    return True


@compiled
def _least_above(near: Neighbours, s: State, section: int, top: int, capacity: int) -> int:
    """Return the least offset of what is not placed in a section; -1 where what begins above a top cannot fit."""
    least, above = NOWHERE, 0
    for at in range(near.member_start[section], near.member_start[section + 1]):
        other = near.member[at]
        if s.buffers[OFFSET, other] < 0:
            least = min(least, s.buffers[LEAST, other])
            if s.buffers[LEAST, other] >= top:
                above += s.buffers[SIZE, other]
    return -1 if top + above > capacity else int(least)


@compiled
def _least_left(near: Neighbours, s: State, section: int, offset: int, capacity: int) -> int:
    """Return the least offset of what is not placed in a section; -1 where that cannot fit.

    From any offset upwards there has to be room for all that cannot begin below.
    """
    count = 0
    for at in range(near.member_start[section], near.member_start[section + 1]):
        buffer = near.member[at]
        if s.buffers[OFFSET, buffer] < 0:
            least, size, place = s.buffers[LEAST, buffer], s.buffers[SIZE, buffer], count
            while place > 0 and s.sorted[LEAST_OF, place - 1] < least:
                s.sorted[LEAST_OF, place] = s.sorted[LEAST_OF, place - 1]
                s.sorted[SIZE_OF, place] = s.sorted[SIZE_OF, place - 1]
                place -= 1
            s.sorted[LEAST_OF, place], s.sorted[SIZE_OF, place] = least, size
            count += 1
    above, least = 0, 0
    for place in range(count):
        least = s.sorted[LEAST_OF, place]
        above += s.sorted[SIZE_OF, place]
        if max(least, offset) + above > capacity:
            return -1
    return int(least)


@compiled
def _raise_floor(s: State, section: int, floor: int) -> None:
    """Set a section's floor, and note what it was."""
    noted = s.values[FLOORS]
    s.floors[OF, noted], s.floors[VALUE, noted] = section, s.sections[FLOOR, section]
    s.values[FLOORS] += 1
    s.sections[FLOOR, section] = floor


@compiled
def _raise_least(s: State, buffer: int, least: int) -> None:
    """Set a buffer's least offset, and note what it was."""
    noted = s.values[LEASTS]
    s.leasts[OF, noted], s.leasts[VALUE, noted] = buffer, s.buffers[LEAST, buffer]
    s.values[LEASTS] += 1
    s.buffers[LEAST, buffer] = least


@compiled
def _undo(s: State, depth: int) -> None:
    """Take back the placement of a step and of all that came after it."""
    while s.values[FLOORS] > s.frames[OLD_FLOOR, depth]:
        s.values[FLOORS] -= 1
        s.sections[FLOOR, s.floors[OF, s.values[FLOORS]]] = s.floors[VALUE, s.values[FLOORS]]
    while s.values[LEASTS] > s.frames[OLD_LEAST, depth]:
        s.values[LEASTS] -= 1
        s.buffers[LEAST, s.leasts[OF, s.values[LEASTS]]] = s.leasts[VALUE, s.values[LEASTS]]
    for at in range(s.frames[START, depth], s.frames[STOP, depth]):
        buffer = s.order[at]
        if s.buffers[OFFSET, buffer] >= 0:
            s.buffers[OFFSET, buffer] = -1
            first, last = s.buffers[LOWER, buffer], s.buffers[UPPER, buffer]
            for section in range(first, last):
                s.sections[LOAD, section] += s.buffers[SIZE, buffer]
                s.sections[CROSSING, section] += section > first
    s.values[IS_ENTERED] = 1


@compiled
def _descend(s: State, depth: int) -> None:
    """Go on with what is left of a step's group; where it has fallen apart, with its first part."""
    buffer = s.frames[CHOSEN, depth]
    start, stop = s.frames[START, depth] + 1, s.frames[STOP, depth]
    first, last = s.frames[FIRST, depth], s.frames[LAST, depth]
    waiting = s.frames[WAITING, depth]
    s.values[GROUPS] = max(waiting + 1, 0)
    for section in range(s.buffers[UPPER, buffer] - 1, s.buffers[LOWER, buffer], -1):
        if s.sections[CROSSING, section] == 0 and first < section < last:
            middle = _parted(s, start, stop, section)
            if middle < stop:
                if middle > start:
                    waiting = _wait(s, depth, middle, stop, section, last, waiting)
                else:
                    first = section
                    break
            last, stop = section, middle
    _frame(s, depth + 1, start, stop, first, last, depth, waiting, depth)


@compiled
def _descend_empty(s: State, depth: int) -> None:
    """Go on with the same group, one corner of which stays empty."""
    start, stop = s.frames[START, depth], s.frames[STOP, depth]
    _frame(
        s, depth + 1, start, stop, s.frames[FIRST, depth], s.frames[LAST, depth], depth, s.frames[WAITING, depth], depth
    )
    s.frames[SKIPS, depth + 1] += 1


@compiled
def _wait(s: State, depth: int, start: int, stop: int, first: int, last: int, waiting: int) -> int:
    """Let a group wait until the ones before it are placed; return its number."""
    number = s.values[GROUPS]
    s.groups[START, number], s.groups[STOP, number] = start, stop
    s.groups[FIRST, number], s.groups[LAST, number] = first, last
    s.groups[BACK, number], s.groups[WAITING, number] = depth, waiting
    s.values[GROUPS] = number + 1
    return int(number)


@compiled
def _parted(s: State, start: int, stop: int, section: int) -> int:
    """Sort a group: those that end up to a section first; return where the others begin."""
    while start < stop:
        buffer = s.order[start]
        if s.buffers[LOWER, buffer] < section:
            start += 1
        else:
            stop -= 1
            s.order[start] = s.order[stop]
            s.order[stop] = buffer
    return start


@compiled
def _next_group(s: State, depth: int) -> bool:
    """Take up the next group that waits; tell whether there is one."""
    number = s.frames[WAITING, depth]
    if number < 0:
        return False
    back = s.groups[BACK, number]
    start, stop = s.groups[START, number], s.groups[STOP, number]
    first, last, waiting = s.groups[FIRST, number], s.groups[LAST, number], s.groups[WAITING, number]
    _frame(s, depth + 1, start, stop, first, last, back, waiting, back)
    return True


@compiled
def _frame(
    s: State, depth: int, start: int, stop: int, first: int, last: int, back: int, waiting: int, before: int
) -> None:
    """Begin a step for a group; failing, it returns to step `back`. Offsets go on from those of step `before`."""
    frames = s.frames[:, depth]
    frames[START], frames[STOP], frames[FIRST], frames[LAST] = start, stop, first, last
    frames[BACK], frames[WAITING] = back, waiting
    frames[SINCE], frames[SINCE_RANK] = s.frames[TRIED, before], s.frames[TRIED_RANK, before]
    frames[SKIPS] = s.frames[SKIPS, before]
    s.values[DEPTH], s.values[IS_ENTERED] = depth, 0


@compiled
def _enter_corner(s: State, depth: int) -> None:
    """Choose the section to fill next: one of the lowest floor, with the least slack."""
    floor, best, load = NOWHERE, -1, 0
    for section in range(s.frames[FIRST, depth], s.frames[LAST, depth]):
        if s.sections[LOAD, section] > 0:
            f = s.sections[FLOOR, section]
            if f < floor or (f == floor and s.sections[LOAD, section] > load):
                floor, best, load = f, section, s.sections[LOAD, section]
    s.frames[CORNER, depth] = best
    s.frames[TRIED_RANK, depth] = -1


@compiled
def _enter_fewest(near: Neighbours, s: State, depth: int, capacity: int) -> None:
    """Choose the section to fill next: at an edge of a floor between higher ones, where the fewest buffers can lie."""
    best, fewest, lowest = -1, NOWHERE, NOWHERE
    section, stop, wall = s.frames[FIRST, depth], s.frames[LAST, depth], NOWHERE
    while section < stop:
        first, floor = section, _open_floor(s, section, stop)
        while section < stop and _open_floor(s, section, stop) == floor:
            section += 1
        if wall > floor and _open_floor(s, section, stop) > floor:
            for edge in (first, section - 1):
                count = _count_choices(near, s, edge, floor, capacity)
                if count < fewest or (count == fewest and floor < lowest):
                    best, fewest, lowest = edge, count, floor
        wall = floor
    s.frames[CORNER, depth] = best
    s.frames[TRIED_RANK, depth] = -1


@compiled
def _open_floor(s: State, section: int, stop: int) -> int:
    """Return the floor of a section; one that is full, or after the last one, is a wall."""
    if section == stop or s.sections[LOAD, section] == 0:
        return NOWHERE
    return int(s.sections[FLOOR, section])


@compiled
def _count_choices(near: Neighbours, s: State, section: int, floor: int, capacity: int) -> int:
    """Count the buffers that can lie on the floor of a section; one more where room may stay empty."""
    count = int(floor + s.sections[LOAD, section] < capacity)
    for at in range(near.member_start[section], near.member_start[section + 1]):
        buffer = near.member[at]
        count += s.buffers[OFFSET, buffer] < 0 and s.buffers[LEAST, buffer] == floor
    return count


@compiled
def _next_at_corner(near: Neighbours, s: State, depth: int) -> int:
    """Return the buffer to try next on the floor of the corner; RAISE to leave it empty, -1 for none."""
    corner = s.frames[CORNER, depth]
    floor, tried = s.sections[FLOOR, corner], s.frames[TRIED_RANK, depth]
    if tried == NOWHERE:
        return -1
    best, rank = RAISE, NOWHERE
    for at in range(near.member_start[corner], near.member_start[corner + 1]):
        buffer = near.member[at]
        can_lie = s.buffers[OFFSET, buffer] < 0 and s.buffers[LEAST, buffer] == floor
        if can_lie and tried < s.buffers[RANK, buffer] < rank and _is_first_twin(s, buffer):
            best, rank = buffer, s.buffers[RANK, buffer]
    s.frames[TRIED_RANK, depth] = rank
    s.frames[CHOSEN, depth] = best
    if best >= 0:
        first = s.frames[START, depth]
        at = first
        while s.order[at] != best:
            at += 1
        s.order[at] = s.order[first]
        s.order[first] = best
    return best


@compiled
def _raise(near: Neighbours, s: State, depth: int, capacity: int) -> bool:
    """Leave the floor of the corner empty: raise it to where the next buffer can begin."""
    corner = s.frames[CORNER, depth]
    floor = s.sections[FLOOR, corner]
    s.frames[OLD_LEAST, depth], s.frames[OLD_FLOOR, depth] = s.values[LEASTS], s.values[FLOORS]
    raised, fits = NOWHERE, False
    for at in range(near.member_start[corner], near.member_start[corner + 1]):
        buffer = near.member[at]
        if s.buffers[OFFSET, buffer] < 0:
            if s.buffers[LEAST, buffer] == floor:
                fits = True
            else:
                raised = min(raised, s.buffers[LEAST, buffer])
    if fits:
        if s.frames[SKIPS, depth] >= s.values[MOST_SKIPS]:
            s.values[HAS_LEFT_OUT] = 1
            return False
        raised = min(raised, _least_rest(near, s, corner, floor))
    if raised + s.sections[LOAD, corner] > capacity:
        return False
    _raise_floor(s, corner, int(raised))
    for at in range(near.member_start[corner], near.member_start[corner + 1]):
        other = near.member[at]
        if s.buffers[OFFSET, other] < 0 and s.buffers[LEAST, other] < raised:
            if raised + s.buffers[SIZE, other] > capacity:
                return False
            _raise_least(s, other, int(raised))
    return True


@compiled
def _least_rest(near: Neighbours, s: State, corner: int, floor: int) -> int:
    """Return the least height at which one that fits on the corner's floor can lie on what is not placed yet."""
    least = NOWHERE
    for at in range(near.member_start[corner], near.member_start[corner + 1]):
        buffer = near.member[at]
        if s.buffers[OFFSET, buffer] < 0 and s.buffers[LEAST, buffer] == floor:
            for beside in range(near.start[buffer], near.start[buffer + 1]):
                other = near.other[beside]
                is_outside = corner < s.buffers[LOWER, other] or s.buffers[UPPER, other] <= corner
                if is_outside and s.buffers[OFFSET, other] < 0:
                    least = min(least, s.buffers[LEAST, other] + s.buffers[SIZE, other])
    return int(least)
