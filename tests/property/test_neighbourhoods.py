"""What holds on any graph of tapes, of cuts, and of the search that changes them."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.graph import Graph
from remat_cli.planners.cp_sat import SolverLimits
from remat_cli.planners.neighbourhoods.cut import Moment
from remat_cli.planners.neighbourhoods.options import SearchLimits
from remat_cli.planners.neighbourhoods.search import improve
from remat_cli.planners.neighbourhoods.tape import GraphReads, Tape
from remat_cli.planners.neighbourhoods.window import Window
from remat_cli.problem import Budget, Observer, Problem, Status
from remat_cli.schedule import with_frees
from remat_cli.simulate import Trace, simulate
from tests.graphs import compute_sequences, small_graphs, training_graphs

GRAPHS = training_graphs(max_forward_ops=6) | small_graphs()
FEW_MOVES = SearchLimits(seconds=60, work=0.05)


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """A valid sequence of runs with some recomputations, of any graph."""
    graph = draw(GRAPHS)
    return tape_of(graph, draw(compute_sequences(graph)))


def tape_of(graph: Graph, computes: tuple[str, ...]) -> Tape:
    index = graph.arrays.op_index
    return Tape(GraphReads.of(graph), np.array([index[name] for name in computes]))


def judged(tape: Tape) -> Trace:
    graph = tape.reads.graph
    return simulate(graph, with_frees(graph, (graph.ops[op].name for op in tape.ops.tolist())))


@given(tape=tapes())
def test_tape_measures_what_the_judge_measures(tape: Tape) -> None:
    trace = judged(tape)
    assert tape.time == trace.time
    # The judge also looks between runs, where there is never more than while one is carried out, and at the start.
    assert trace.peak_bytes == max(tape.peak, trace.memory_bytes[0])


@given(tape=tapes())
def test_leaving_out_useless_reruns_costs_nothing(tape: Tape) -> None:
    left = tape.without_useless_reruns()
    judged(left)
    assert left.peak <= tape.peak
    assert left.time <= tape.time
    assert set(left.ops.tolist()) == set(tape.ops.tolist())


def closures(moment: Moment) -> list[tuple[np.ndarray, int, int]]:
    """Every choice at a moment, one by one: what runs again, bytes kept, and time."""
    tape, at = moment.tape, moment.at
    made_at, read_at, instance = tape.made[0], *tape.read
    here = set(tape.inputs[at].tolist())
    wanted_later = {i for i, where in zip(instance.tolist(), read_at.tolist(), strict=True) if where > at}
    wanted_later = {i for i in wanted_later if made_at[i] < at}
    may = [bool(tape.reads.recomputable[op]) for op in tape.ops[:at]]
    found = []
    for again in product(*((False, True) if able else (False,) for able in may)):
        needed = wanted_later | {i for run in range(at) if again[run] for i in tape.inputs[run].tolist()}
        kept = [i for i in needed if not again[made_at[i]] and i not in here]
        time = sum(int(tape.run_time[run]) for run in range(at) if again[run])
        found.append((np.array(again, dtype=np.bool_), int(tape.bytes[kept].sum()) if kept else 0, time))
    return found


@given(tape=tapes(), data=st.data())
def test_cut_is_the_best_choice_at_its_price(tape: Tape, data: st.DataObject) -> None:
    moment = Moment(tape, data.draw(st.integers(0, min(len(tape) - 1, 7))))
    price = data.draw(st.floats(0.01, 20))
    weighted = tape.bytes[: int(np.searchsorted(tape.made[0], moment.at))].astype(np.float64)
    choice, _ = moment.choose(price, weighted)
    every = closures(moment)
    assert (choice.bytes, choice.time) in {(size, time) for _, size, time in every}
    least = min(time + price * size for _, size, time in every)
    assert choice.time + price * choice.bytes <= least * (1 + 1e-6)


@given(tape=tapes(), data=st.data())
def test_window_of_everything_is_the_best_choice_that_fits(tape: Tape, data: st.DataObject) -> None:
    moment = Moment(tape, data.draw(st.integers(0, min(len(tape) - 1, 7))))
    every = closures(moment)
    room = data.draw(st.integers(0, max(size for _, size, _ in every)))
    none = np.zeros(moment.at, dtype=np.bool_)
    outcome = Window(moment, none, ~none).solve(room, SolverLimits(time_limit=60))
    fitting = [time for _, size, time in every if size <= room]
    assert outcome.objective == min(fitting, default=None)
    assert (outcome.status is Status.INFEASIBLE) == (not fitting)


@given(tape=tapes(), data=st.data())
def test_window_leaves_other_runs_as_they_were(tape: Tape, data: st.DataObject) -> None:
    moment = Moment(tape, data.draw(st.integers(0, min(len(tape) - 1, 7))))
    again, size, time = data.draw(st.sampled_from(closures(moment)))
    is_free = np.array(data.draw(st.lists(st.booleans(), min_size=moment.at, max_size=moment.at)), dtype=np.bool_)
    weights = np.ones(len(tape.reads.graph.tensors))
    outcome = Window(moment, again, is_free).solve(size, SolverLimits(time_limit=60), weights)
    assert outcome.values is not None
    chosen = outcome.values[: moment.at].astype(np.bool_)
    assert (chosen == again)[~is_free].all()
    assert int(tape.run_time[: moment.at][chosen].sum()) <= time * 1.002


@given(tape=tapes(), data=st.data())
def test_bound_of_a_moment_is_below_every_choice_that_fits(tape: Tape, data: st.DataObject) -> None:
    moment = Moment(tape, data.draw(st.integers(0, min(len(tape) - 1, 7))))
    every = closures(moment)
    room = data.draw(st.integers(0, max(size for _, size, _ in every)))
    fitting = [time for _, size, time in every if size <= room]
    if fitting:
        assert moment.bound(room) <= min(fitting)


@given(tape=tapes(), data=st.data())
def test_running_again_after_a_moment_leaves_what_was_chosen_in_memory(tape: Tape, data: st.DataObject) -> None:
    moment = Moment(tape, data.draw(st.integers(0, len(tape) - 1)))
    choice = moment.cheapest(data.draw(st.integers(0, 20)), np.ones(len(tape.reads.graph.tensors)))
    if choice is None:
        return
    changed = tape.with_reruns(moment.at, choice.again)
    judged(changed)
    assert int(changed.memory[moment.at]) <= moment.own_bytes + choice.bytes + int(tape.shared_bytes[moment.at])


@given(tape=tapes(), data=st.data())
def test_search_is_never_worse_than_its_start_and_repeatable(tape: Tape, data: st.DataObject) -> None:
    graph = tape.reads.graph
    start = with_frees(graph, [graph.ops[op].name for op in tape.ops.tolist()])
    before = simulate(graph, start)
    problem = Problem(graph, Budget(before.peak_bytes + data.draw(st.integers(0, 3))))
    better = improve(problem, start, FEW_MOVES, Observer())
    after = simulate(graph, better)
    assert after.time <= before.time
    assert after.peak_bytes <= problem.budget.device_bytes
    assert list(dict.fromkeys(better.computes)) == list(dict.fromkeys(start.computes))
    assert improve(problem, start, FEW_MOVES, Observer()) == better
