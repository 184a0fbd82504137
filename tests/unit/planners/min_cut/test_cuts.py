"""What holds on any graph of sequences, of cuts, and of the search that changes them."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remat_cli.core.problem import Basis, Budget, Observer, Problem, Status
from remat_cli.planners.min_cut.exact_choice import ChoiceWindow
from remat_cli.planners.min_cut.priced_cut import CutPoint, scaled_down, worth_of_flow
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import small_graphs, training_graphs
from tests.plans import judged, sequences

GRAPHS = training_graphs(max_forward_ops=6) | small_graphs()


@given(sequence=sequences(GRAPHS))
def test_leaving_out_useless_reruns_costs_nothing(sequence: RematSequence) -> None:
    left = sequence.without_useless_reruns()
    judged(left)
    assert left.peak <= sequence.peak
    assert left.time <= sequence.time
    assert set(left.ops.tolist()) == set(sequence.ops.tolist())


def closures(cut_point: CutPoint) -> list[tuple[np.ndarray, int, int]]:
    """Every choice at a moment, one by one: what runs again, bytes kept, and time."""
    sequence, at = cut_point.sequence, cut_point.at
    produced_at, read_at, instance = sequence.instances[0], *sequence.read
    here = set(sequence.inputs[at].tolist())
    wanted_later = {i for i, where in zip(instance.tolist(), read_at.tolist(), strict=True) if where > at}
    wanted_later = {i for i in wanted_later if produced_at[i] < at}
    may = [bool(sequence.reads.recomputable[op]) for op in sequence.ops[:at]]
    found = []
    for again in product(*((False, True) if able else (False,) for able in may)):
        needed = wanted_later | {i for run in range(at) if again[run] for i in sequence.inputs[run].tolist()}
        kept = [i for i in needed if not again[produced_at[i]] and i not in here]
        time = sum(int(sequence.run_time[run]) for run in range(at) if again[run])
        found.append((np.array(again, dtype=np.bool_), int(sequence.bytes[kept].sum()) if kept else 0, time))
    return found


@given(sequence=sequences(GRAPHS), data=st.data())
def test_cut_is_the_best_choice_at_its_price(sequence: RematSequence, data: st.DataObject) -> None:
    cut_point = CutPoint(sequence, data.draw(st.integers(0, min(len(sequence) - 1, 7))))
    price = data.draw(st.floats(0.01, 20))
    weighted = sequence.bytes[: int(np.searchsorted(sequence.instances[0], cut_point.at))].astype(np.float64)
    choice, _ = cut_point.choose(price, weighted)
    every = closures(cut_point)
    assert (choice.bytes, choice.time) in {(size, time) for _, size, time in every}
    least = min(time + price * size for _, size, time in every)
    assert choice.time + price * choice.bytes <= least * (1 + 1e-6)


@given(sequence=sequences(GRAPHS), data=st.data())
def test_window_of_everything_is_the_best_choice_that_fits(sequence: RematSequence, data: st.DataObject) -> None:
    cut_point = CutPoint(sequence, data.draw(st.integers(0, min(len(sequence) - 1, 7))))
    every = closures(cut_point)
    room = data.draw(st.integers(0, max(size for _, size, _ in every)))
    none = np.zeros(cut_point.at, dtype=np.bool_)
    outcome = ChoiceWindow(cut_point, none, ~none).prove(room, Limits.of(60.0), known=0)
    fitting = [time for _, size, time in every if size <= room]
    assert outcome.bound == min(fitting, default=None)
    assert outcome.basis is Basis.TWO_SOLVERS or outcome.bound == 0
    assert (outcome.status is Status.INFEASIBLE) == (not fitting)


@given(sequence=sequences(GRAPHS), data=st.data())
def test_window_leaves_other_runs_as_they_were(sequence: RematSequence, data: st.DataObject) -> None:
    cut_point = CutPoint(sequence, data.draw(st.integers(0, min(len(sequence) - 1, 7))))
    again, size, time = data.draw(st.sampled_from(closures(cut_point)))
    is_free = np.array(data.draw(st.lists(st.booleans(), min_size=cut_point.at, max_size=cut_point.at)), dtype=np.bool_)
    weights = np.ones(len(sequence.reads.graph.tensors))
    outcome = ChoiceWindow(cut_point, again, is_free).solve(size, Limits.of(60.0), weights)
    assert outcome.values is not None
    chosen = outcome.values[: cut_point.at].astype(np.bool_)
    assert (chosen == again)[~is_free].all()
    assert int(sequence.run_time[: cut_point.at][chosen].sum()) <= time * 1.002


@given(sequence=sequences(GRAPHS), data=st.data())
def test_bound_of_a_moment_is_below_every_choice_that_fits(sequence: RematSequence, data: st.DataObject) -> None:
    cut_point = CutPoint(sequence, data.draw(st.integers(0, min(len(sequence) - 1, 7))))
    every = closures(cut_point)
    room = data.draw(st.integers(0, max(size for _, size, _ in every)))
    fitting = [time for _, size, time in every if size <= room]
    if fitting:
        assert cut_point.bound(room) <= min(fitting)


@given(sequence=sequences(GRAPHS), data=st.data())
def test_running_again_after_a_moment_leaves_what_was_chosen_in_memory(
    sequence: RematSequence, data: st.DataObject
) -> None:
    cut_point = CutPoint(sequence, data.draw(st.integers(0, len(sequence) - 1)))
    room, weights = data.draw(st.integers(0, 20)), np.ones(len(sequence.reads.graph.tensors))
    choice = cut_point.cheapest(room, weights, Limits())
    if choice is None:
        return
    changed = sequence.with_reruns(cut_point.at, choice.again)
    judged(changed)
    assert int(changed.memory[cut_point.at]) <= cut_point.own_bytes + choice.bytes + int(
        sequence.shared_bytes[cut_point.at]
    )


@given(sequence=sequences(GRAPHS), data=st.data())
def test_search_is_never_worse_than_its_start_and_repeatable(sequence: RematSequence, data: st.DataObject) -> None:
    problem = Problem(sequence.graph, Budget(sequence.peak + data.draw(st.integers(0, 3))))
    better, again = (searched_from(problem, sequence) for _ in range(2))
    assert better.time <= sequence.time
    assert better.peak <= problem.budget.device_bytes
    assert better.first_runs.tolist() == sequence.first_runs.tolist()
    assert better.names == again.names


def searched_from(problem: Problem, start: RematSequence) -> RematSequence:
    search = MinCutSearch(Incumbent(problem, Observer()), Limits.of(60.0, 50_000), start=start)
    search.run()
    assert search.current is not None
    return search.current


@given(sequence=sequences(GRAPHS), data=st.data())
def test_what_a_price_proves_is_below_every_choice_that_fits(sequence: RematSequence, data: st.DataObject) -> None:
    cut_point = CutPoint(sequence, data.draw(st.integers(0, min(len(sequence) - 1, 7))))
    every = closures(cut_point)
    room = data.draw(st.integers(0, max(size for _, size, _ in every)))
    price = data.draw(st.floats(1e-6, 1e6))
    fitting = [time for _, size, time in every if size <= room]
    if fitting:
        assert cut_point.counted_bound(room, price) <= min(fitting)


@given(
    values=st.lists(st.integers(0, 2**60), min_size=1, max_size=5),
    odd=st.integers(1, 2**31 - 1),
    exponent=st.integers(-60, 60),
)
@example(values=[274_877_906_945], odd=8_388_609, exponent=-18)
def test_values_arescaled_down_by_less_than_two_units(values: list[int], odd: int, exponent: int) -> None:
    factor = Fraction(odd) * Fraction(2) ** exponent
    if max(values) * factor >= 2**44:
        return
    scaled = scaled_down(np.array(values), factor).tolist()
    assert all(0 <= value * factor - less < 2 for value, less in zip(values, scaled, strict=True))


def test_a_flow_that_is_none_proves_nothing() -> None:
    tails, heads, capacities = (np.array(values) for values in ([0, 2], [2, 1], [5, 3]))
    assert worth_of_flow(tails, heads, capacities, np.array([3, 3])) == 3
    for flows in ([4, 4], [4, 3], [-1, -1]):
        with pytest.raises(AssertionError, match="the solver's flow"):
            worth_of_flow(tails, heads, capacities, np.array(flows))
