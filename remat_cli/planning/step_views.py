"""Views of a whole training step for planners, which know nothing of updates in place and of residents on the host.

A view has the ops and tensors of the step, so its schedules are those of the step but for the moves of residents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from remat_cli.core.graph import Graph, Op, Phase
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Inplace, Schedule, Step, changes, with_frees


def movable_residents(graph: Graph) -> tuple[str, ...]:
    """Return the residents that may wait on the host: optimizer state, frozen parameters, and trained ones.

    State is read once a step. A frozen parameter is never written, so it only needs to be fetched.
    """
    written = {name for op in graph.ops for name in op.writes}
    kept = {*graph.outputs, *(name for name, tensor in graph.tensors.items() if tensor.held or not tensor.bytes)}
    movable = (name for name in graph.residents if name not in kept)
    return tuple(sorted(movable, key=lambda name: (len(graph.consumers[name]) > 1, name in written)))


def with_early_updates(graph: Graph, link: Link | None = None) -> Graph:
    """Return the step with each update as early as it may run, as a backward op that writes nothing.

    An update needs its inputs, and follows every op that reads what it writes.

    Args:
        graph: the step.
        link: link to the host over which the state comes; an update then lets as much other work go first.
    """
    updates = [op.edited(writes=(), phase=Phase.BACKWARD) for op in graph.ops if op.phase is Phase.UPDATE]
    if not updates:
        return graph
    awaited = {op.name: _before(graph, graph.op[op.name]) for op in updates}
    followers: dict[str, list[Op]] = {}
    for op in updates:
        for name in awaited[op.name]:
            followers.setdefault(name, []).append(op)
    others = (op for op in graph.ops if op.phase is not Phase.UPDATE)
    states = {op.name: sum(graph.tensors[name].bytes for name in graph.op[op.name].writes[1:]) for op in updates}
    delays = {name: 0 if link is None else link.transfer_time(size) for name, size in states.items()}
    ready = [(delays[op.name], op) for op in updates if not awaited[op.name]]
    return replace(graph, ops=tuple(_in_turn(others, ready, awaited, followers, delays)))


def _before(graph: Graph, update: Op) -> set[str]:
    """Return the names of the ops that an update follows."""
    producers = {graph.producer[name].name for name in update.inputs if name in graph.producer}
    readers = {op.name for name in update.writes for op in graph.consumers[name]}
    return (producers | readers) - {update.name}


def _in_turn(
    others: Iterator[Op],
    waiting: list[tuple[int, Op]],
    awaited: Mapping[str, set[str]],
    followers: Mapping[str, list[Op]],
    delays: Mapping[str, int],
) -> Iterator[Op]:
    """Yield the ops in their order, each update when nothing is awaited, and its delay is over."""
    now = 0
    while True:
        due = next((place for place, (time, _) in enumerate(waiting) if time <= now), None)
        op = next(others, None) if due is None else waiting.pop(due)[1]
        if op is None and waiting:
            op = waiting.pop(0)[1]
        if op is None:
            return
        yield op
        now += op.time
        for update in followers.get(op.name, ()):
            awaited[update.name].discard(op.name)
            if not awaited[update.name]:
                waiting.append((now + delays[update.name], update))


def without_residents(graph: Graph, away: Collection[str], *, as_workspace: bool = True) -> Graph:
    """Return the step without residents that are on the host.

    Args:
        graph: the step.
        away: names of the residents.
        as_workspace: whether they count as workspace of the ops that read them.
    """
    if not away:
        return graph
    gone = set(away)
    tensors = {
        name: replace(tensor, view_of=None) if tensor.view_of in gone else tensor
        for name, tensor in graph.tensors.items()
        if name not in gone
    }
    sizes = {name: graph.tensors[name].bytes if as_workspace else 0 for name in gone}
    ops = tuple(op if gone.isdisjoint(op.inputs) else _reading_less(op, sizes) for op in graph.ops)
    return replace(graph, tensors=tensors, ops=ops)


def _reading_less(op: Op, sizes: dict[str, int]) -> Op:
    taken = sum(sizes[name] for name in op.inputs if name in sizes)
    return op.edited(
        inputs=tuple(name for name in op.inputs if name not in sizes),
        writes=tuple(name for name in op.writes if name not in sizes),
        inplace=None if op.inplace in sizes else op.inplace,
        workspace_bytes=op.workspace_bytes + taken,
    )


def with_late_updates(graph: Graph, schedule: Schedule) -> Schedule | None:
    """Return the schedule with each update after the last run of every op that reads what it writes.

    A planner may run such an op again after the update, when the old value is gone. None if the schedule moves what
    the update reads meanwhile.
    """
    computes = list(schedule.computes)
    last = {name: place for place, name in enumerate(computes)}
    late = {
        op.name: place
        for op in graph.ops
        if op.writes
        and op.name in last
        and (place := max((last.get(name, -1) for name in _before(graph, op)), default=-1)) > last[op.name]
    }
    if not late:
        return schedule
    if schedule.has_transfers:
        return _postponed(graph, schedule, late)
    follows: dict[int, list[str]] = {}
    for name, place in late.items():
        follows.setdefault(place, []).append(name)
    moved: list[str] = []
    for place, name in enumerate(computes):
        moved += [name] if name not in late else []
        moved += follows.get(place, ())
    return with_frees(graph, moved)


def _postponed(graph: Graph, schedule: Schedule, late: Mapping[str, int]) -> Schedule | None:
    """Return a schedule with transfers whose updates run right after these runs, which free what they read."""
    runs = runs_of(schedule)
    steps: list[list[Step]] = [[step] for step in schedule.steps]
    for name, place in late.items():
        begin = next(index for index in runs if schedule.steps[index] == Compute(name))
        end = runs[place]
        read = {tensor for tensor in graph.op[name].inputs if tensor in graph.producer}
        between = [
            index for index in range(begin + 1, end + 1) if not read.isdisjoint(_touched(graph, schedule.steps[index]))
        ]
        freed = [schedule.steps[index] for index in between]
        if not all(isinstance(step, Free) for step in freed):
            return None
        for index in (begin, *between):
            steps[index].clear()
        steps[end] += (Compute(name), *freed)
    return Schedule(tuple(step for group in steps for step in group), schedule.on_host)


def _touched(graph: Graph, step: Step) -> tuple[str, ...]:
    """Return the tensors that a step makes, frees or moves."""
    if isinstance(step, Compute | Inplace):
        made, taken = changes(graph, step)
        return (*made, *taken)
    return (step.tensor,)


def runs_of(schedule: Schedule) -> list[int]:
    """Return the indices of the steps that run an op."""
    return [index for index, step in enumerate(schedule.steps) if isinstance(step, Compute | Inplace)]
