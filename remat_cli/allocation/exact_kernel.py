"""Depth-first search of offsets in integer arrays, for a compiler.

The search has three ways. In one, each step places a buffer at the lowest offset above placed buffers. Offsets never
fall from step to step, and equal offsets follow a given order: each arrangement is reached once. In the others, a step
fills a corner: it puts a buffer on the floor of a section, or leaves room empty there. The corner is the lowest
section, or of all edges of floors between higher floors the one that the fewest buffers can fill. Of equal buffers the
first is placed first. If the remaining buffers fall into groups without shared sections, each group is searched alone:
if one group has no solution, other solutions of the others are not tried. A group may be ranked anew, by the load that
is left above its sections.

Source: Moffitt, MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning, ASPLOS 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.machine.compiled import compiled

Ints = NDArray[np.int64]

NOWHERE = 2**62
FOUND, NONE, GOES_ON, LOST = range(4)
RAISE = -2
# Ways to search: by ascending offset, or by corners: the lowest one, or the one that the fewest buffers can fill.
BY_OFFSET, LOWEST, FEWEST = range(3)
# Rows of the tables of buffers, sections, frames and undo lists; places of single values.
LOWER, UPPER, SIZE, RANK, TWIN, OFFSET, LEAST, TIE = range(8)
FLOOR, LOAD, CROSSING, STAMP = range(4)
START, STOP, FIRST, LAST, BACK, WAITING, CHOSEN, SINCE, SINCE_RANK, TRIED, TRIED_RANK = range(11)
CEILING, OLD_LEAST, OLD_FLOOR, OLD_RANK, CORNER, SKIPS, ROWS_OF_FRAME = range(11, 18)
OF, VALUE = range(2)
LEAST_OF, SIZE_OF = range(2)
DEPTH, LEASTS, FLOORS, RANKS, GROUPS, IS_ENTERED, STAMPS, RULE, MOST_SKIPS, HAS_LEFT_OUT, IS_RANKED_ANEW, VALUES = (
    range(12)
)


class Neighbours(NamedTuple):
    """Pairs of buffers that share sections, and members of sections.

    Attributes:
        start: [N + 1] start of each buffer's part of `other`.
        other: buffers that share a section with a buffer.
        member_start: [S + 1] start of each section's part of `member`.
        member: buffers that are needed in a section.
    """

    start: Ints
    other: Ints
    member_start: Ints
    member: Ints


class State(NamedTuple):
    """The state of a resumable search.

    Attributes:
        values: depth, lengths of the three undo lists, number of waiting groups, whether the frame is entered, number
            of stamps used, the way to search, how many corners may stay empty, whether this limit was met, whether
            groups that fall apart are ranked anew.
        buffers: [8, N] first section, the one after the last, size, rank in the order, the previous buffer of the same
            life and size, offset (-1: not placed), the least offset above placed buffers, and the rank among buffers
            whose sections are as full.
        sections: [4, S + 1] floor below which nothing is left to fill, load of waiting buffers, number of waiting
            buffers that cross from the previous section, a stamp.
        order: [N] the buffers; those of a group stand together.
        frames: [18, D] of each step: its group in `order`, its sections, the step to return to if this step fails, the
            next waiting group (-1 for none), the buffer chosen, offset and rank of the step before, offset and rank
            tried last, the first offset too high to begin at, the earlier lengths of the undo lists, the section to
            fill, and the number of empty corners.
        leasts: [2, L] undo list: buffers, and their least offsets before a step.
        floors: [2, L] undo list: sections, and their floors before a step.
        ranks: [2, L] undo list: buffers, and their ranks before a step.
        groups: [6, N + 1] waiting groups: the first rows of frames, to `WAITING`.
        sorted: [2, N] scratch: offsets and sizes of waiting buffers in one section.
    """

    values: Ints
    buffers: Ints
    sections: Ints
    order: Ints
    frames: Ints
    leasts: Ints
    floors: Ints
    ranks: Ints
    groups: Ints
    sorted: Ints


@compiled
def go_on(near: Neighbours, s: State, capacity: int, steps: int) -> tuple[int, int]:
    """Search on until an end, or for a number of steps.

    Return the end (offsets found, none exist, or steps used up), and the number of steps.
    """
    taken = 0
    while True:
        depth = s.values[DEPTH]
        if not s.values[IS_ENTERED]:
            if s.frames[START, depth] == s.frames[STOP, depth]:
                if not _next_group(s, depth):
                    return FOUND, taken
                continue
            _enter(near, s, depth, capacity)
        if taken >= steps:
            return GOES_ON, taken
        if depth + 3 >= s.frames.shape[1]:
            return LOST, taken
        taken += 1
        if not _step(near, s, depth, capacity):
            return NONE, taken


@compiled
def _step(near: Neighbours, s: State, depth: int, capacity: int) -> bool:
    """Place the next buffer, leave a corner empty, or go back.

    False means that nothing is left to try.
    """
    buffer = _next(s, depth) if s.values[RULE] == BY_OFFSET else _next_at_corner(near, s, depth)
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
    if s.values[RULE] == BY_OFFSET:
        _enter_group(s, depth)
    elif s.values[RULE] == LOWEST:
        _enter_corner(s, depth)
    else:
        _enter_fewest(near, s, depth, capacity)
    s.values[IS_ENTERED] = 1


@compiled
def _enter_group(s: State, depth: int) -> None:
    """Set the ceiling of offsets in a step.

    From the least height at which a buffer could end, offsets leave room below for that buffer.
    """
    ceiling = NOWHERE
    for at in range(s.frames[START, depth], s.frames[STOP, depth]):
        buffer = s.order[at]
        ceiling = min(ceiling, s.buffers[LEAST, buffer] + s.buffers[SIZE, buffer])
    s.frames[CEILING, depth] = ceiling
    s.frames[TRIED, depth], s.frames[TRIED_RANK, depth] = s.frames[SINCE, depth], s.frames[SINCE_RANK, depth]


@compiled
def _next(s: State, depth: int) -> int:
    """Return the next buffer to try, by least offset, then rank.

    -1 means none.
    """
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
    # The chosen buffer stands first in its group.
    first = s.frames[START, depth]
    buffer = s.order[best]
    s.order[best] = s.order[first]
    s.order[first] = buffer
    s.frames[TRIED, depth], s.frames[TRIED_RANK, depth] = least, least_rank
    s.frames[CHOSEN, depth] = buffer
    return int(buffer)


@compiled
def _is_first_twin(s: State, buffer: int) -> bool:
    """Return whether all earlier buffers of the same life and size are placed."""
    twin = s.buffers[TWIN, buffer]
    return bool(twin < 0 or s.buffers[OFFSET, twin] >= 0)


@compiled
def _place(near: Neighbours, s: State, depth: int, buffer: int, capacity: int) -> bool:
    """Place a buffer at its least offset.

    Return whether the others may still fit.
    """
    offset = s.buffers[LEAST, buffer]
    top = offset + s.buffers[SIZE, buffer]
    _note_lengths(s, depth)
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
    least = 0 if s.values[RULE] == FEWEST else offset
    return fits and _fit_sections(near, s, depth, least, top, capacity, stamp)


@compiled
def _fit_sections(near: Neighbours, s: State, depth: int, offset: int, top: int, capacity: int, stamp: int) -> bool:
    """Raise each section's floor; return whether its waiting buffers still fit above.

    The floor rises to the least offset that a waiting buffer can have. Only sections with this stamp have changed.
    """
    for section in range(s.frames[FIRST, depth], s.frames[LAST, depth]):
        load = s.sections[LOAD, section]
        if load > 0:
            if s.sections[STAMP, section] == stamp:
                if s.values[RULE] == LOWEST:
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
    """Return the least offset of waiting buffers in a section.

    -1 if the buffers that begin above `top` cannot fit.
    """
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
    """Return the least offset of waiting buffers that may fit in a section.

    -1 if they cannot fit.

    Above any offset there must be room for all buffers that cannot begin below.
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
def _note_lengths(s: State, depth: int) -> None:
    """Note the lengths of the undo lists before a step."""
    s.frames[OLD_LEAST, depth], s.frames[OLD_FLOOR, depth] = s.values[LEASTS], s.values[FLOORS]
    s.frames[OLD_RANK, depth] = s.values[RANKS]


@compiled
def _raise_floor(s: State, section: int, floor: int) -> None:
    """Set a section's floor, and note the earlier value."""
    noted = s.values[FLOORS]
    s.floors[OF, noted], s.floors[VALUE, noted] = section, s.sections[FLOOR, section]
    s.values[FLOORS] += 1
    s.sections[FLOOR, section] = floor


@compiled
def _raise_least(s: State, buffer: int, least: int) -> None:
    """Set a buffer's least offset, and note the earlier value."""
    noted = s.values[LEASTS]
    s.leasts[OF, noted], s.leasts[VALUE, noted] = buffer, s.buffers[LEAST, buffer]
    s.values[LEASTS] += 1
    s.buffers[LEAST, buffer] = least


@compiled
def _undo(s: State, depth: int) -> None:
    """Undo the placement of a step, and later changes."""
    while s.values[FLOORS] > s.frames[OLD_FLOOR, depth]:
        s.values[FLOORS] -= 1
        s.sections[FLOOR, s.floors[OF, s.values[FLOORS]]] = s.floors[VALUE, s.values[FLOORS]]
    while s.values[LEASTS] > s.frames[OLD_LEAST, depth]:
        s.values[LEASTS] -= 1
        s.buffers[LEAST, s.leasts[OF, s.values[LEASTS]]] = s.leasts[VALUE, s.values[LEASTS]]
    while s.values[RANKS] > s.frames[OLD_RANK, depth]:
        s.values[RANKS] -= 1
        s.buffers[RANK, s.ranks[OF, s.values[RANKS]]] = s.ranks[VALUE, s.values[RANKS]]
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
    """Go on with the remaining group of a step.

    If the group has fallen apart, its first part comes next.
    """
    buffer = s.frames[CHOSEN, depth]
    start, stop = s.frames[START, depth] + 1, s.frames[STOP, depth]
    first, last = s.frames[FIRST, depth], s.frames[LAST, depth]
    waiting, is_parted = s.frames[WAITING, depth], False
    s.values[GROUPS] = max(waiting + 1, 0)
    for section in range(s.buffers[UPPER, buffer] - 1, s.buffers[LOWER, buffer], -1):
        if s.sections[CROSSING, section] == 0 and first < section < last:
            middle = _parted(s, start, stop, section)
            is_parted = True
            if middle < stop:
                if middle > start:
                    _rank_anew(s, middle, stop)
                    waiting = _wait(s, depth, middle, stop, section, last, waiting)
                else:
                    first = section
                    break
            last, stop = section, middle
    if is_parted:
        _rank_anew(s, start, stop)
    _frame(s, depth + 1, start, stop, first, last, depth, waiting, depth)
    if is_parted and s.values[IS_RANKED_ANEW]:
        s.frames[SINCE_RANK, depth + 1] = -NOWHERE  # buffers of the same offset have other ranks now


@compiled
def _rank_anew(s: State, start: int, stop: int) -> None:
    """Rank a group by what waits in its sections now: the fullest first.

    Source: MiniMalloc, which sorts each part of a problem that falls apart by its own loads.
    """
    if not s.values[IS_RANKED_ANEW] or s.values[RANKS] + stop - start > s.ranks.shape[1]:
        return
    count = s.buffers.shape[1]
    for at in range(start, stop):
        buffer, noted = s.order[at], s.values[RANKS]
        load = s.sections[LOAD, s.buffers[LOWER, buffer] : s.buffers[UPPER, buffer]].max()
        s.ranks[OF, noted], s.ranks[VALUE, noted] = buffer, s.buffers[RANK, buffer]
        s.values[RANKS] += 1
        s.buffers[RANK, buffer] = (NOWHERE // (2 * count) - load) * count + s.buffers[TIE, buffer]


@compiled
def _descend_empty(s: State, depth: int) -> None:
    """Go on with the same group and one corner left empty."""
    start, stop = s.frames[START, depth], s.frames[STOP, depth]
    _frame(
        s, depth + 1, start, stop, s.frames[FIRST, depth], s.frames[LAST, depth], depth, s.frames[WAITING, depth], depth
    )
    s.frames[SKIPS, depth + 1] += 1


@compiled
def _wait(s: State, depth: int, start: int, stop: int, first: int, last: int, waiting: int) -> int:
    """Put a group on the waiting list; return its number."""
    number = s.values[GROUPS]
    s.groups[START, number], s.groups[STOP, number] = start, stop
    s.groups[FIRST, number], s.groups[LAST, number] = first, last
    s.groups[BACK, number], s.groups[WAITING, number] = depth, waiting
    s.values[GROUPS] = number + 1
    return int(number)


@compiled
def _parted(s: State, start: int, stop: int, section: int) -> int:
    """Sort a group by a section; return the start of the second part.

    The first part has the buffers that end up to the section.
    """
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
    """Begin the next waiting group; return whether there was any."""
    number = s.frames[WAITING, depth]
    if number < 0:
        return False
    back = s.groups[BACK, number]
    start, stop = s.groups[START, number], s.groups[STOP, number]
    first, last, waiting = s.groups[FIRST, number], s.groups[LAST, number], s.groups[WAITING, number]
    _frame(s, depth + 1, start, stop, first, last, back, waiting, back)
    if s.values[IS_RANKED_ANEW]:
        s.frames[SINCE_RANK, depth + 1] = -NOWHERE
    return True


@compiled
def _frame(
    s: State, depth: int, start: int, stop: int, first: int, last: int, back: int, waiting: int, before: int
) -> None:
    """Begin a step for a group.

    If the step fails, the search returns to step `back`. Offsets go on from those of step `before`.
    """
    frames = s.frames[:, depth]
    frames[START], frames[STOP], frames[FIRST], frames[LAST] = start, stop, first, last
    frames[BACK], frames[WAITING] = back, waiting
    frames[SINCE], frames[SINCE_RANK] = s.frames[TRIED, before], s.frames[TRIED_RANK, before]
    frames[SKIPS] = s.frames[SKIPS, before]
    s.values[DEPTH], s.values[IS_ENTERED] = depth, 0


@compiled
def _enter_corner(s: State, depth: int) -> None:
    """Choose the section to fill next.

    It has the lowest floor, and of these the least slack.
    """
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
    """Return the next buffer to try on the corner's floor.

    RAISE means to leave the floor empty, -1 means none.
    """
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
    """Leave the corner's floor empty.

    The floor rises to the least offset of the next buffer.
    """
    corner = s.frames[CORNER, depth]
    floor = s.sections[FLOOR, corner]
    _note_lengths(s, depth)
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
    """Return the least top on which a buffer of the corner could lie.

    The buffer fits on the corner's floor; the tops are those of waiting buffers outside of the corner.
    """
    least = NOWHERE
    for at in range(near.member_start[corner], near.member_start[corner + 1]):
        buffer = near.member[at]
        if s.buffers[OFFSET, buffer] < 0 and s.buffers[LEAST, buffer] == floor:
            for place in range(near.start[buffer], near.start[buffer + 1]):
                other = near.other[place]
                is_outside = corner < s.buffers[LOWER, other] or s.buffers[UPPER, other] <= corner
                if is_outside and s.buffers[OFFSET, other] < 0:
                    least = min(least, s.buffers[LEAST, other] + s.buffers[SIZE, other])
    return int(least)
