"""The moves of annealing, over flat integer arrays, for a compiler.

Moves give runs other places, add runs and drop runs. Every instance of a tensor has a producing run and reading runs,
and moves keep these ties; so a run has places like an op in a sequence without recomputation. Laying out the sequence
again gives each reader the latest instance before it, and drops useless runs. Savings from working in place are those
of the first layout; new runs save none.

Bytes are whole numbers, and probabilities come from a table: compiled or plain, the moves are the same, byte for byte.

Readers of an instance, and instances of a tensor, are linked lists. Each read of a run is a node of such a list.

Tables have rows by number, as `runs[OP, run]`, because fields cost speed. The same sweeps take 1.5 times as long with
structured arrays, whose columns are interleaved, and 2.7 times as long with a named tuple of arrays for each table:
compiled functions then hand on some 50 arrays at each call.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.machine.compiled import compiled
from remat_cli.planners.shared.numbering import Ints

Floats = NDArray[np.float64]

# The largest number of places that a move passes, which bounds its work in long orders.
REACH = 1000
# The depth of recursive reruns, and the number of tensors with a price.
DEPTH, MOST_PRICED = 8, 200
# Keep the tensor if its reruns seem to cost this many times their gain. The estimate counts work twice that two reruns
# share.
MOST_COST = 1.2
# Steps of the table of probabilities for each unit of its argument, and the last step.
STEPS, LAST_STEP = 64.0, 2560
# Kinds of moves, and rows of a table of moves. The subject is a run, or the instance to make again between two others.
MOVE, LEAVE_OUT, MAKE_AGAIN = range(3)
KIND, SUBJECT, AFTER, BEFORE = range(4)
# Rows of the tables of a graph.
READS_START, MAKES_START = range(2)
TIME, OWN_BYTES, CAN_RERUN, INPLACE, SAVED = range(5)
PRODUCER, SIZE, IS_OUTPUT = range(3)
# Rows of the tables of a sequence.
RUNS, INSTANCES, NODES, LENGTH, MARK, PRICED = range(6)
OP, OWN, THERE, FIRST_NODE, FIRST_INSTANCE, POSITION, GONE, PATH = range(8)
ORDER, EXCESS, BETWEEN, CHANGE, RELIEF = range(5)
READER, READS, LATER, EARLIER = range(4)
MAKER, TENSOR, KEPT, HEAD, TAIL, NEXT, PREVIOUS = range(7)
NEWEST, AGAIN, PRICED_AT, MADE_AT, LATE_AT, SOURCE, LAST_USE = range(7)
COPIES, CHOSEN_AT, NEW, LEVEL, DURING = range(5)
WANTED, READ = range(2)
KEEP, REMAKE, MOST = range(3)


class GraphTables(NamedTuple):
    """The tables of a graph; reads of graph inputs are left out.

    Tensors of 0 bytes are included.

    Attributes:
        start: [2, N + 1] start of each op's tensors in `reads` and in `makes`.
        reads: tensors that ops read.
        makes: tensors that ops produce.
        ops: [5, N] time, bytes of outputs and workspace, whether the op may run again, the tensor whose storage it can
            take over (-1 for none), and the bytes saved in that way.
        tensors: [3, T] producing op (-1 for graph inputs), bytes, whether the tensor is an output of the graph.
    """

    start: Ints
    reads: Ints
    makes: Ints
    ops: Ints
    tensors: Ints


class Tables(NamedTuple):
    """The tables of a sequence that moves change.

    -1 ends a list, and means none.

    A *mark* is the number of the last move for which something was noted.

    Attributes:
        counts: numbers of runs, of instances, of nodes, of runs in order, of marks given out, and of tensors priced.
        runs: for each run: op, own bytes, whether it is still in the sequence, its first read (the others follow), its
            first instance (the others follow), position, a mark; and space for a path.
        line: at each position: the run, memory minus the room during the run and before it; and space for two changes.
        weight: cumulated probabilities of places.
        nodes: for each read: the run, the instance, and the next and previous reads of that instance.
        instances: for each instance: producing run, tensor, whether it is needed at the end, the head of its reads, the
            tail of its reads in a fresh layout, and the next and previous instances of the tensor.
        tensors: for each tensor: its newest instance, whether it is recomputed for a pause, marks of when it was
            priced, produced, and kept for new runs only, the instance that new runs read, and the last new run that
            reads it.
        price: cost of each tensor at the end of a pause.
        ops: for each op: number of runs, a mark; for each new run: op, memory minus the room before it and during it.
        open: stack of the tensors being priced: tensor, next read of its producing op.
        costs: the same stack: cost of keeping the tensor, cost of recomputing it so far, and the limit on that cost.
    """

    counts: Ints
    runs: Ints
    line: Ints
    weight: Floats
    nodes: Ints
    instances: Ints
    tensors: Ints
    price: Floats
    ops: Ints
    open: Ints
    costs: Floats


# Look-ups


@compiled
def _read_by(g: GraphTables, op: int) -> Ints:
    """Return the tensors that an op reads."""
    return g.reads[g.start[READS_START, op] : g.start[READS_START, op + 1]]


@compiled
def _outputs_of(g: GraphTables, op: int) -> Ints:
    """Return the tensors that an op produces."""
    return g.makes[g.start[MAKES_START, op] : g.start[MAKES_START, op + 1]]


@compiled
def _nodes(g: GraphTables, s: Tables, run: int) -> range:
    """Return the reads of a run."""
    op, first = s.runs[OP, run], s.runs[FIRST_NODE, run]
    return range(first, first + g.start[READS_START, op + 1] - g.start[READS_START, op])


@compiled
def _instances(g: GraphTables, s: Tables, run: int) -> range:
    """Return the instances that a run produces."""
    op, first = s.runs[OP, run], s.runs[FIRST_INSTANCE, run]
    return range(first, first + g.start[MAKES_START, op + 1] - g.start[MAKES_START, op])


# Laying out a sequence


@compiled
def lay_out(g: GraphTables, s: Tables, ops: Ints, room: int) -> None:
    """Lay out a sequence in tables that are long enough."""
    count = s.counts
    count[RUNS] = count[INSTANCES] = count[NODES] = 0
    s.tensors[NEWEST, :] = -1
    s.ops[COPIES, :] = 0
    for at in range(len(ops)):
        _add_run(g, s, ops[at], True)
        s.line[ORDER, at] = at
        s.runs[POSITION, at] = at
    length = count[LENGTH] = len(ops)
    for tensor in range(s.tensors.shape[1]):
        if s.tensors[NEWEST, tensor] >= 0:
            s.instances[KEPT, s.tensors[NEWEST, tensor]] = g.tensors[IS_OUTPUT, tensor]
    s.line[BETWEEN, : length + 2] = 0
    for instance in range(count[INSTANCES]):
        size = g.tensors[SIZE, s.instances[TENSOR, instance]]
        s.line[BETWEEN, s.instances[MAKER, instance] + 1] += size
        s.line[BETWEEN, _last_read(s, instance) + 1] -= size
    level = -room
    for at in range(length + 1):
        level += s.line[BETWEEN, at]
        s.line[BETWEEN, at] = level
    for at in range(length):
        op = ops[at]
        own = g.ops[OWN_BYTES, op]
        if g.ops[SAVED, op]:
            for node in _nodes(g, s, at):
                instance = s.nodes[READS, node]
                if s.instances[TENSOR, instance] == g.ops[INPLACE, op] and _last_read(s, instance) == at:
                    own -= g.ops[SAVED, op]
        s.runs[OWN, at] = own
        s.line[EXCESS, at] = s.line[BETWEEN, at] + own


@compiled
def _add_run(g: GraphTables, s: Tables, op: int, is_first_layout: bool) -> int:
    """Add a run, and return its number.

    In the first layout the run reads the newest instances, later those in `source`.
    """
    count = s.counts
    run: int = count[RUNS]
    count[RUNS] += 1
    s.runs[OP, run], s.runs[OWN, run], s.runs[THERE, run] = op, g.ops[OWN_BYTES, op], True
    s.runs[FIRST_NODE, run], s.runs[FIRST_INSTANCE, run] = count[NODES], count[INSTANCES]
    s.runs[GONE, run] = 0
    s.ops[COPIES, op] += 1
    for tensor in _read_by(g, op):
        node = count[NODES]
        count[NODES] += 1
        s.nodes[READER, node] = run
        _read(s, node, s.tensors[NEWEST, tensor] if is_first_layout else s.tensors[SOURCE, tensor])
    for tensor in _outputs_of(g, op):
        instance = count[INSTANCES]
        count[INSTANCES] += 1
        s.instances[MAKER, instance], s.instances[TENSOR, instance], s.instances[KEPT, instance] = run, tensor, False
        s.instances[HEAD, instance] = s.instances[TAIL, instance] = -1
        before = s.tensors[NEWEST, tensor]
        s.instances[NEXT, instance], s.instances[PREVIOUS, instance] = before, -1
        if before >= 0:
            s.instances[PREVIOUS, before] = instance
        s.tensors[NEWEST, tensor] = instance
        s.tensors[SOURCE, tensor] = instance
    return run


@compiled
def _read(s: Tables, node: int, instance: int) -> None:
    """Let a node read an instance."""
    head = s.instances[HEAD, instance]
    s.nodes[READS, node], s.nodes[LATER, node], s.nodes[EARLIER, node] = instance, head, -1
    if head >= 0:
        s.nodes[EARLIER, head] = node
    else:
        s.instances[TAIL, instance] = node
    s.instances[HEAD, instance] = node


@compiled
def _release(s: Tables, node: int) -> None:
    """Remove a node from its instance's list."""
    later, earlier = s.nodes[LATER, node], s.nodes[EARLIER, node]
    if later >= 0:
        s.nodes[EARLIER, later] = earlier
    if earlier >= 0:
        s.nodes[LATER, earlier] = later
    else:
        s.instances[HEAD, s.nodes[READS, node]] = later


@compiled
def _last_read(s: Tables, instance: int) -> int:
    """Return the position of an instance's last read.

    This is the end for a kept instance, and its producer's position for one without readers.
    """
    last: int = s.counts[LENGTH]
    if s.instances[KEPT, instance]:
        return last
    node = s.instances[HEAD, instance]
    last = s.runs[POSITION, s.instances[MAKER, instance]] if node < 0 else -1
    while node >= 0:
        last = max(last, s.runs[POSITION, s.nodes[READER, node]])
        node = s.nodes[LATER, node]
    return last


@compiled
def _latest(s: Tables, tensor: int, before: int) -> int:
    """Return a tensor's latest instance before a position, or -1."""
    last, latest, instance = -1, -1, s.tensors[NEWEST, tensor]
    while instance >= 0:
        at = s.runs[POSITION, s.instances[MAKER, instance]]
        if last < at < before:
            last, latest = at, instance
        instance = s.instances[NEXT, instance]
    return latest


@compiled
def list_moves(g: GraphTables, s: Tables, moves: Ints) -> int:
    """Write every useful move of a fresh layout; return their number.

    Args:
        g: the graph.
        s: the sequence.
        moves: [4, M] kind, and the run, or the instance and the runs around its pause (-1 for the end).
    """
    length = s.counts[LENGTH]
    lacking = s.line[CHANGE]  # for each position, the positions before that lack memory
    lacking[0] = 0
    for at in range(length):
        lacking[at + 1] = lacking[at] + (s.line[EXCESS, at] > 0)
    number = start = _list_restless(g, s, moves, lacking)
    for run in range(length):
        if s.ops[COPIES, s.runs[OP, run]] > 1:
            moves[KIND, number], moves[SUBJECT, number] = LEAVE_OUT, run
            number += 1
    _sort_by_op(s, moves, start, number)
    for instance in range(s.counts[INSTANCES]):
        size, op = g.tensors[SIZE, s.instances[TENSOR, instance]], s.runs[OP, s.instances[MAKER, instance]]
        if size and g.ops[CAN_RERUN, op]:
            number = _list_pauses(s, moves, lacking, instance, number)
    return number


@compiled
def _list_restless(g: GraphTables, s: Tables, moves: Ints, lacking: Ints) -> int:
    """Write the runs that can move across a stage lacking memory."""
    number = 0
    for run in range(s.counts[LENGTH]):
        first, last = 0, s.counts[LENGTH] - 1
        for node in _nodes(g, s, run):
            first = max(first, s.instances[MAKER, s.nodes[READS, node]] + 1)
        for instance in _instances(g, s, run):
            if s.instances[TAIL, instance] >= 0:
                last = min(last, s.nodes[READER, s.instances[TAIL, instance]] - 1)
        if first < last and lacking[last + 1] > lacking[first]:
            moves[KIND, number], moves[SUBJECT, number] = MOVE, run
            number += 1
    return number


@compiled
def _list_pauses(s: Tables, moves: Ints, lacking: Ints, instance: int, number: int) -> int:
    """Write the pauses of an instance during which memory is lacking."""
    after, node = s.instances[MAKER, instance], s.instances[TAIL, instance]
    while node >= 0:
        before = s.nodes[READER, node]
        if lacking[before] > lacking[after + 1]:
            moves[KIND, number], moves[SUBJECT, number] = MAKE_AGAIN, instance
            moves[AFTER, number], moves[BEFORE, number] = after, before
            number += 1
        after, node = before, s.nodes[EARLIER, node]
    if s.instances[KEPT, instance] and lacking[s.counts[LENGTH]] > lacking[after + 1]:
        moves[KIND, number], moves[SUBJECT, number] = MAKE_AGAIN, instance
        moves[AFTER, number], moves[BEFORE, number] = after, -1
        number += 1
    return number


@compiled
def _sort_by_op(s: Tables, moves: Ints, start: int, stop: int) -> None:
    """Sort the moves' runs by op, and by number within an op."""
    runs = moves[SUBJECT, start:stop].copy()
    ops = np.empty(stop - start, dtype=np.int64)
    for at in range(stop - start):
        ops[at] = s.runs[OP, runs[at]] * s.counts[RUNS] + runs[at]
    moves[SUBJECT, start:stop] = runs[np.argsort(ops)]


# Trying moves


@compiled
def try_moves(
    g: GraphTables,
    s: Tables,
    moves: Ints,
    turns: Ints,
    draws: Floats,
    start: int,
    stop: int,
    price: float,
    temperature: float,
    loss: float,
    shares: Floats,
) -> int:
    """Try moves in turn; return the first that was not tried.

    That move needs longer tables.

    Args:
        g: the graph.
        s: the sequence.
        moves: moves from `list_moves`.
        turns: the order in which moves are tried.
        draws: a random number for each turn.
        start: first turn.
        stop: the turn after the last.
        price: price of a byte above the room during one run, in time.
        temperature: in the graph's time unit.
        loss: time by which the cost of a rerun may exceed its gain.
        shares: table of exp(-x).
    """
    for turn in range(start, stop):
        at = turns[turn]
        kind, what = moves[KIND, at], moves[SUBJECT, at]
        if kind == MOVE:
            if s.runs[THERE, what]:
                _move(g, s, what, price / temperature, draws[turn], shares)
        elif kind == LEAVE_OUT:
            if s.runs[THERE, what] and s.ops[COPIES, s.runs[OP, what]] > 1:
                _leave_out(g, s, what, price, temperature, draws[turn], shares)
        elif not _make_again(
            g, s, what, moves[AFTER, at], moves[BEFORE, at], price, temperature, loss, draws[turn], shares
        ):
            return turn
    return stop


@compiled
def _accepts(cost: float, temperature: float, draw: float, shares: Floats) -> bool:
    """Accept every gain, and losses with falling probability."""
    return cost <= 0 or draw < shares[int(min(cost / temperature * STEPS, float(LAST_STEP)))]


@compiled
def _move(g: GraphTables, s: Tables, run: int, price: float, draw: float, shares: Floats) -> None:
    """Draw a new place for a run; the price is in temperatures."""
    first, last = 0, s.counts[LENGTH] - 1
    for node in _nodes(g, s, run):
        first = max(first, s.runs[POSITION, s.instances[MAKER, s.nodes[READS, node]]] + 1)
    for instance in _instances(g, s, run):
        reader = s.instances[HEAD, instance]
        while reader >= 0:
            last = min(last, s.runs[POSITION, s.nodes[READER, reader]] - 1)
            reader = s.nodes[LATER, reader]
    if first == last:
        return
    stage, own = s.runs[POSITION, run], s.runs[OWN, run]
    first, last = max(first, stage - REACH), min(last, stage + REACH)
    now, count = stage - first, last - first + 1
    _raise(g, s, run, first, count)
    least = _cost_of_places(s, first, now, count, own)
    total = 0.0
    for place in range(count):
        total += shares[int(min((s.line[CHANGE, place] - least) * price * STEPS, float(LAST_STEP)))]
        s.weight[place] = total
    limit, place = draw * total, 0
    while place < count - 1 and s.weight[place] <= limit:
        place += 1
    if place != now:
        _place(s, run, first, now, place, own)


@compiled
def _raise(g: GraphTables, s: Tables, run: int, first: int, count: int) -> None:
    """Write the bytes that a run adds before each place.

    These are its outputs minus the inputs that end with the run, in row `RELIEF` of `line`.
    """
    rise, level = s.line[RELIEF], 0
    rise[: count + 2] = 0
    for node in _nodes(g, s, run):
        instance = s.nodes[READS, node]
        if not s.instances[KEPT, instance]:
            rise[min(max(_last_other(s, node) + 1 - first, 0), count + 1)] -= g.tensors[
                SIZE, s.instances[TENSOR, instance]
            ]
    for instance in _instances(g, s, run):
        if s.instances[HEAD, instance] >= 0 or s.instances[KEPT, instance]:
            level += g.tensors[SIZE, s.instances[TENSOR, instance]]
    for place in range(count + 1):
        level += rise[place]
        rise[place] = level


@compiled
def _cost_of_places(s: Tables, first: int, now: int, count: int, own: int) -> int:
    """Write the cost of each place for a run; return the least.

    The cost is in bytes above the room, up to a constant, in row `CHANGE` of `line`.
    """
    rise, cost, passed = s.line[RELIEF], s.line[CHANGE], 0
    excess, between = s.line[EXCESS], s.line[BETWEEN]
    for place in range(now):
        cost[place] = max(between[first + place] + own, 0) + passed
        passed += max(excess[first + place], 0) - max(excess[first + place] + rise[place], 0)
    cost[now] = max(between[first + now] + own, 0) + passed
    for place in range(now + 1, count):
        passed += max(excess[first + place] - rise[place], 0) - max(excess[first + place], 0)
        cost[place] = max(between[first + place + 1] - rise[place + 1] + own, 0) + passed
    least: int = cost[0]
    for place in range(1, count):
        least = min(least, cost[place])
    return least


@compiled
def _place(s: Tables, run: int, first: int, now: int, place: int, own: int) -> None:
    """Move a run to another place.

    Row `RELIEF` of `line` has the bytes that it adds before each place.
    """
    rise, order, excess = s.line[RELIEF], s.line[ORDER], s.line[EXCESS]
    between, position = s.line[BETWEEN], s.runs[POSITION]
    if place > now:
        for at in range(now + 1, place + 1):
            other = order[first + at]
            order[first + at - 1] = other
            position[other] = first + at - 1
            excess[first + at - 1] = excess[first + at] - rise[at]
            between[first + at] = between[first + at + 1] - rise[at + 1]
    else:
        for at in range(now - 1, place - 1, -1):
            other = order[first + at]
            order[first + at + 1] = other
            position[other] = first + at + 1
            excess[first + at + 1] = excess[first + at] + rise[at]
            between[first + at + 1] = between[first + at] + rise[at]
    order[first + place] = run
    position[run] = first + place
    excess[first + place] = between[first + place] + own


# Dropping runs


@compiled
def _leave_out(
    g: GraphTables, s: Tables, run: int, price: float, temperature: float, draw: float, shares: Floats
) -> None:
    """Drop a run if its readers have other instances and chance agrees."""
    start, stop = _span_without(g, s, run)
    if start < 0:
        return
    _change_without(g, s, run, start, stop)
    lacking = _lacking_without(s, s.runs[POSITION, run], start, stop)
    if not _accepts(price * lacking - _time_without(g, s, run), temperature, draw, shares):
        return
    for instance in _instances(g, s, run):
        if s.instances[HEAD, instance] >= 0 or s.instances[KEPT, instance]:
            _hand_over(s, instance, s.tensors[SOURCE, s.instances[TENSOR, instance]], 0)
        before, after = s.instances[PREVIOUS, instance], s.instances[NEXT, instance]
        if before >= 0:
            s.instances[NEXT, before] = after
        else:
            s.tensors[NEWEST, s.instances[TENSOR, instance]] = after
        if after >= 0:
            s.instances[PREVIOUS, after] = before
    for node in _nodes(g, s, run):
        _release(s, node)
    s.ops[COPIES, s.runs[OP, run]] -= 1
    s.runs[THERE, run] = False
    _close(s, s.runs[POSITION, run], start, stop)


@compiled
def _span_without(g: GraphTables, s: Tables, run: int) -> tuple[int, int]:
    """Return the first and last position where memory changes without a run.

    Both are -1 if its readers have no other instance. Replacing instances are noted as `source` of their tensors.
    """
    at = s.runs[POSITION, run]
    start = stop = at
    for instance in _instances(g, s, run):
        if s.instances[HEAD, instance] >= 0 or s.instances[KEPT, instance]:
            other = _latest(s, s.instances[TENSOR, instance], at)
            if other < 0:
                return -1, -1
            s.tensors[SOURCE, s.instances[TENSOR, instance]] = other
            end = _last_read(s, other)
            start = min(start, end + 1)
            stop = max(stop, min(end, _last_read(s, instance)))
    for node in _nodes(g, s, run):
        if _last_read(s, s.nodes[READS, node]) == at:
            start = min(start, _last_other(s, node) + 1)
    return start, stop


@compiled
def _change_without(g: GraphTables, s: Tables, run: int, start: int, stop: int) -> None:
    """Write the bytes that change when a run is dropped.

    Row `CHANGE` of `line` has those added up to the run, row `RELIEF` those saved after the run.
    """
    at, change, relief = s.runs[POSITION, run], s.line[CHANGE], s.line[RELIEF]
    change[start : at + 1] = 0
    relief[at + 1 : stop + 2] = 0
    for instance in _instances(g, s, run):
        if s.instances[HEAD, instance] >= 0 or s.instances[KEPT, instance]:
            tensor = s.instances[TENSOR, instance]
            size, end = g.tensors[SIZE, tensor], _last_read(s, s.tensors[SOURCE, tensor])
            if end + 1 <= at:
                change[end + 1] += size
            end = min(end, _last_read(s, instance))
            if end > at:
                relief[at + 1] += size
                relief[end + 1] -= size
    for node in _nodes(g, s, run):
        if _last_read(s, s.nodes[READS, node]) == at:
            change[_last_other(s, node) + 1] -= g.tensors[SIZE, s.instances[TENSOR, s.nodes[READS, node]]]
    for stage in range(start + 1, at + 1):
        change[stage] += change[stage - 1]
    for stage in range(at + 2, stop + 1):
        relief[stage] += relief[stage - 1]


@compiled
def _lacking_without(s: Tables, at: int, start: int, stop: int) -> int:
    """Return the growth of the bytes above the room without the run."""
    excess = s.line[EXCESS]
    lacking: int = -max(excess[at], 0)
    for stage in range(start, at):
        lacking += max(excess[stage] + s.line[CHANGE, stage], 0) - max(excess[stage], 0)
    for stage in range(at + 1, min(stop + 1, s.counts[LENGTH])):
        lacking += max(excess[stage] - s.line[RELIEF, stage], 0) - max(excess[stage], 0)
    return lacking


@compiled
def _close(s: Tables, at: int, start: int, stop: int) -> None:
    """Close the gap of a dropped run, and update memory."""
    length, change, relief = s.counts[LENGTH], s.line[CHANGE], s.line[RELIEF]
    excess, between = s.line[EXCESS], s.line[BETWEEN]
    relief[stop + 1 : length + 1] = 0
    for stage in range(start, at):
        excess[stage] += change[stage]
        between[stage] += change[stage]
    between[at] += change[at]
    for stage in range(at + 1, length):
        other = s.line[ORDER, stage]
        s.line[ORDER, stage - 1] = other
        s.runs[POSITION, other] = stage - 1
        excess[stage - 1] = excess[stage] - relief[stage]
    for stage in range(at + 2, length + 1):
        between[stage - 1] = between[stage] - relief[stage]
    s.counts[LENGTH] = length - 1


@compiled
def _last_other(s: Tables, node: int) -> int:
    """Return the position of another run's last read of the node's instance.

    Without another reader, this is the position of the instance's producer.
    """
    instance, run = s.nodes[READS, node], s.nodes[READER, node]
    last, reader = -1, s.instances[HEAD, instance]
    while reader >= 0:
        if s.nodes[READER, reader] != run:
            last = max(last, s.runs[POSITION, s.nodes[READER, reader]])
        reader = s.nodes[LATER, reader]
    return last if last >= 0 else s.runs[POSITION, s.instances[MAKER, instance]]


@compiled
def _hand_over(s: Tables, instance: int, to: int, start: int) -> None:
    """Let readers from position `start` on read another instance.

    That instance of the same tensor is kept at the end if the old one was.
    """
    node = s.instances[HEAD, instance]
    while node >= 0:
        later = s.nodes[LATER, node]
        if s.runs[POSITION, s.nodes[READER, node]] >= start:
            _release(s, node)
            _read(s, node, to)
        node = later
    s.instances[KEPT, to] = s.instances[KEPT, to] or s.instances[KEPT, instance]
    s.instances[KEPT, instance] = False


@compiled
def _time_without(g: GraphTables, s: Tables, run: int) -> int:
    """Return the time of a run and of all runs that only it needs."""
    s.counts[MARK] += 1
    mark = s.counts[MARK]
    s.runs[GONE, run] = mark
    s.runs[PATH, 0] = run
    waiting = 1
    time: int = g.ops[TIME, s.runs[OP, run]]
    while waiting:
        waiting -= 1
        reader = s.runs[PATH, waiting]
        for node in _nodes(g, s, reader):
            maker = s.instances[MAKER, s.nodes[READS, node]]
            if s.runs[GONE, maker] != mark and s.ops[COPIES, s.runs[OP, maker]] > 1 and _serves_only(g, s, maker, mark):
                s.runs[GONE, maker] = mark
                time += g.ops[TIME, s.runs[OP, maker]]
                s.runs[PATH, waiting] = maker
                waiting += 1
    return time


@compiled
def _serves_only(g: GraphTables, s: Tables, run: int, mark: int) -> bool:
    for instance in _instances(g, s, run):
        if s.instances[KEPT, instance]:
            return False
        node = s.instances[HEAD, instance]
        while node >= 0:
            if s.runs[GONE, s.nodes[READER, node]] != mark:
                return False
            node = s.nodes[LATER, node]
    return True


# Adding runs


@compiled
def _make_again(
    g: GraphTables,
    s: Tables,
    instance: int,
    after: int,
    before: int,
    price: float,
    temperature: float,
    loss: float,
    draw: float,
    shares: Floats,
) -> bool:
    """Recompute a tensor at the end of a pause if chance agrees.

    False: the tables are too short.
    """
    begin, end = _span(s, instance, after, before)
    number = _choose(g, s, instance, begin, end, price, loss) if begin >= 0 else -1
    if number < 0:
        return True
    start = _change_with(g, s, instance, begin, end, number)
    lacking = 0
    for stage in range(start + 1, end):
        excess = s.line[EXCESS, stage]
        lacking += max(excess + s.line[CHANGE, stage - 1], 0) - max(excess, 0)
    level = s.line[BETWEEN, end] + s.line[CHANGE, end - 1]
    time = _levels(g, s, s.instances[TENSOR, instance], number, level)
    for at in range(number):
        lacking += max(s.ops[DURING, at], 0)
    if not _accepts(price * lacking + time, temperature, draw, shares):
        return True
    if not _has_room(g, s, number):
        return False
    _add(g, s, instance, start, end, number)
    return True


@compiled
def _span(s: Tables, instance: int, after: int, before: int) -> tuple[int, int]:
    """Return the positions around a pause; -1 if moves have ended the pause."""
    maker = s.instances[MAKER, instance]
    begin = s.runs[POSITION, after]
    end = s.counts[LENGTH] if before < 0 else s.runs[POSITION, before]
    is_after, is_before = after == maker, before < 0 and s.instances[KEPT, instance] > 0
    is_pause, node = s.runs[THERE, maker] > 0 and end - begin > 1, s.instances[HEAD, instance]
    while node >= 0:
        run = s.nodes[READER, node]
        is_after = is_after or run == after
        is_before = is_before or run == before
        is_pause = is_pause and not begin < s.runs[POSITION, run] < end
        node = s.nodes[LATER, node]
    if is_after and is_before and is_pause:
        return begin, end
    return -1, -1


@compiled
def _change_with(g: GraphTables, s: Tables, instance: int, begin: int, end: int, number: int) -> int:
    """Write the bytes that reruns add after each position.

    Returns the first such position; the bytes are in row `CHANGE` of `line`.
    """
    mark, start, change = s.counts[MARK], begin, s.line[CHANGE]
    for at in range(number):
        for output in _outputs_of(g, s.ops[NEW, at]):
            s.tensors[LAST_USE, output] = -1
    for at in range(number):
        for read in _read_by(g, s.ops[NEW, at]):
            s.tensors[LAST_USE, read] = at
            if s.tensors[LATE_AT, read] == mark:
                start = min(start, _last_read(s, s.tensors[SOURCE, read]))
    change[start:end] = 0
    change[begin] -= g.tensors[SIZE, s.instances[TENSOR, instance]]
    for at in range(number):
        for read in _read_by(g, s.ops[NEW, at]):
            if s.tensors[LATE_AT, read] == mark and s.tensors[LAST_USE, read] == at:
                change[_last_read(s, s.tensors[SOURCE, read])] += g.tensors[SIZE, read]
    for stage in range(start + 1, end):
        change[stage] += change[stage - 1]
    return start


@compiled
def _has_room(g: GraphTables, s: Tables, number: int) -> bool:
    """Tell whether the tables have space for new runs."""
    reads = makes = 0
    for at in range(number):
        reads += len(_read_by(g, s.ops[NEW, at]))
        makes += len(_outputs_of(g, s.ops[NEW, at]))
    # Memory is also noted before the first run and after the last.
    is_short = s.counts[RUNS] + number > s.runs.shape[1] or s.counts[LENGTH] + number + 3 > s.line.shape[1]
    return not (
        is_short or s.counts[NODES] + reads > s.nodes.shape[1] or s.counts[INSTANCES] + makes > s.instances.shape[1]
    )


@compiled
def _add(g: GraphTables, s: Tables, instance: int, start: int, end: int, number: int) -> None:
    """Add the reruns in `ops` before a position."""
    length = s.counts[LENGTH]
    first = s.counts[RUNS]
    for at in range(number):
        _add_run(g, s, s.ops[NEW, at], False)
    for stage in range(start + 1, end):
        s.line[BETWEEN, stage] += s.line[CHANGE, stage - 1]
        s.line[EXCESS, stage] += s.line[CHANGE, stage - 1]
    _hand_over(s, instance, s.tensors[SOURCE, s.instances[TENSOR, instance]], end)
    for stage in range(length, end - 1, -1):
        s.line[BETWEEN, stage + number] = s.line[BETWEEN, stage]
    for stage in range(length - 1, end - 1, -1):
        other = s.line[ORDER, stage]
        s.line[ORDER, stage + number] = other
        s.runs[POSITION, other] = stage + number
        s.line[EXCESS, stage + number] = s.line[EXCESS, stage]
    for at in range(number):
        s.line[ORDER, end + at] = first + at
        s.runs[POSITION, first + at] = end + at
        s.line[BETWEEN, end + at] = s.ops[LEVEL, at]
        s.line[EXCESS, end + at] = s.ops[DURING, at]
    s.counts[LENGTH] = length + number


@compiled
def _choose(g: GraphTables, s: Tables, instance: int, begin: int, end: int, price: float, loss: float) -> int:
    """Choose the ops to run at the end of a pause; return their number.

    The result is -1 if they cannot pay. Row `NEW` of `ops` has the ops.

    `LATE_AT` marks the tensors that are kept for these ops only, and `SOURCE` has the instances that they read.
    """
    tensor = s.instances[TENSOR, instance]
    s.counts[MARK] += 1
    s.counts[PRICED] = 0
    mark = s.counts[MARK]
    size = g.tensors[SIZE, tensor]
    most = MOST_COST * price * _growth(s, begin + 1, end, size, size) + loss
    op = g.tensors[PRODUCER, tensor]
    cost = float(g.ops[TIME, op])
    for read in _read_by(g, op):
        if cost > most:
            return -1
        cost += _cost(g, s, instance, begin, end, price, read, most - cost)
    if cost > most:
        return -1
    number = _list_ops(g, s, op, mark)
    for at in range(number):
        again = s.ops[NEW, at]
        for other in _read_by(g, again):
            if s.tensors[MADE_AT, other] != mark:
                latest = _latest(s, other, end)
                if latest < 0 or latest == instance:
                    return -1
                s.tensors[SOURCE, other] = latest
                if _last_read(s, latest) < end:
                    s.tensors[LATE_AT, other] = mark
        for output in _outputs_of(g, again):
            s.tensors[MADE_AT, output] = mark
    return number


@compiled
def _growth(s: Tables, start: int, stop: int, without: int, size: int) -> int:
    """Return the growth of the bytes above the room from `size` more bytes.

    Each position counts as `without` bytes lower before.
    """
    growth = size * (stop - start)
    for excess in s.line[EXCESS, start:stop]:
        growth += max(min(excess - without, 0), -size)
    return growth


@compiled
def _cost(
    g: GraphTables, s: Tables, instance: int, begin: int, end: int, price: float, wanted: int, most: float
) -> float:
    """Return the cost of an input at the end of the pause.

    Also note whether keeping or recomputing the tensor is cheaper. Costs above `most` are not computed. The stack is
    explicit because recursive compiled functions cannot be kept on disk.
    """
    mark, top, value, is_known = s.counts[MARK], 0, 0.0, False
    while True:
        if s.tensors[PRICED_AT, wanted] == mark:
            value, is_known = s.price[wanted], True
        else:
            op = g.tensors[PRODUCER, wanted]
            keep = _cost_of_keeping(g, s, instance, begin, end, price, wanted)
            again = float(g.ops[TIME, op]) if g.ops[CAN_RERUN, op] and top < DEPTH else inf
            s.costs[MOST, top] = min(most, keep)
            is_open = again < s.costs[MOST, top] and s.counts[PRICED] < MOST_PRICED
            s.open[WANTED, top], s.costs[KEEP, top], s.costs[REMAKE, top] = wanted, keep, again
            s.open[READ, top] = g.start[READS_START, op] if is_open else g.start[READS_START, op + 1]
            top += 1
        while top:
            frame = top - 1
            tensor = s.open[WANTED, frame]
            end_of_reads = g.start[READS_START, g.tensors[PRODUCER, tensor] + 1]
            if is_known:
                is_known = False
                s.costs[REMAKE, frame] += value
                if s.costs[REMAKE, frame] >= s.costs[MOST, frame]:
                    s.open[READ, frame] = end_of_reads
            if s.open[READ, frame] < end_of_reads:
                wanted, most = g.reads[s.open[READ, frame]], s.costs[MOST, frame] - s.costs[REMAKE, frame]
                s.open[READ, frame] += 1
                break
            again = s.costs[REMAKE, frame] if s.costs[REMAKE, frame] < s.costs[MOST, frame] else inf
            s.tensors[PRICED_AT, tensor] = mark
            s.counts[PRICED] += 1
            value, is_known = min(s.costs[KEEP, frame], again), True
            s.price[tensor], s.tensors[AGAIN, tensor] = value, again < s.costs[KEEP, frame]
            top -= 1
        if not top:
            return value


@compiled
def _cost_of_keeping(
    g: GraphTables, s: Tables, instance: int, begin: int, end: int, price: float, tensor: int
) -> float:
    latest = _latest(s, tensor, end)
    if latest < 0 or latest == instance:
        return inf
    last = _last_read(s, latest)
    without = g.tensors[SIZE, s.instances[TENSOR, instance]] if last >= begin else 0
    return price * _growth(s, last + 1, end, without, g.tensors[SIZE, tensor]) if last + 1 < end else 0.0


@compiled
def _list_ops(g: GraphTables, s: Tables, op: int, mark: int) -> int:
    """Write `op` after the ops that recompute its inputs; return their number.

    Row `NEW` of `ops` has them in order.
    """
    s.runs[PATH, 0] = op
    depth, number = 1, 0
    while depth:
        due = -1
        last = s.runs[PATH, depth - 1]
        for tensor in _read_by(g, last):
            is_again = s.tensors[PRICED_AT, tensor] == mark and s.tensors[AGAIN, tensor]
            if is_again and s.ops[CHOSEN_AT, g.tensors[PRODUCER, tensor]] != mark:
                due = g.tensors[PRODUCER, tensor]
                break
        if due < 0:
            depth -= 1
            s.ops[NEW, number] = last
            s.ops[CHOSEN_AT, last] = mark
            number += 1
        else:
            s.runs[PATH, depth] = due
            depth += 1
    return number


@compiled
def _levels(g: GraphTables, s: Tables, tensor: int, number: int, level: int) -> int:
    """Write memory minus the room around each new run; return their time.

    Args:
        g: the graph.
        s: the sequence.
        tensor: the tensor produced for use after the new runs.
        number: number of new runs.
        level: memory minus the room before the first new run.
    """
    mark, time = s.counts[MARK], 0
    s.tensors[LAST_USE, tensor] = number
    for at in range(number):
        op = s.ops[NEW, at]
        time += g.ops[TIME, op]
        s.ops[LEVEL, at], s.ops[DURING, at] = level, level + g.ops[OWN_BYTES, op]
        for other in _outputs_of(g, op):
            if s.tensors[LAST_USE, other] > at:
                s.tensors[LATE_AT, other] = mark
            if s.tensors[LATE_AT, other] == mark:
                level += g.tensors[SIZE, other]
        for other in _read_by(g, op):
            if s.tensors[LAST_USE, other] == at and s.tensors[LATE_AT, other] == mark:
                level -= g.tensors[SIZE, other]
                s.tensors[LATE_AT, other] = 0
    return time


# The result


@compiled
def useful(g: GraphTables, s: Tables) -> Ints:
    """Return the ops of the current runs, without useless runs.

    A run is useless if none of its outputs is read before the next run of its op, as in
    `RematSequence.without_useless_runs`.
    """
    length = s.counts[LENGTH]
    needed = g.tensors[IS_OUTPUT].copy()
    has_run = np.zeros(g.ops.shape[1], dtype=np.bool_)
    is_first = np.zeros(length, dtype=np.bool_)
    ops = np.empty(length, dtype=np.int64)
    for at in range(length):
        op = s.runs[OP, s.line[ORDER, at]]
        ops[at] = op
        is_first[at] = not has_run[op]
        has_run[op] = True
    has_run[:] = False
    start = length
    for at in range(length - 1, -1, -1):
        op = ops[at]
        is_useful = is_first[at] and not has_run[op]
        for output in _outputs_of(g, op):
            is_useful = is_useful or needed[output]
        if is_useful:
            start -= 1
            ops[start] = op
            has_run[op] = True
            for output in _outputs_of(g, op):
                needed[output] = False
            for read in _read_by(g, op):
                needed[read] = True
    return ops[start:].copy()
