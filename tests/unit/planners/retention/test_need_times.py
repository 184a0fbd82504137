"""Stages, need times and what the retention model makes of them, on graphs small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.core.graph import Graph
from remat_cli.planners.retention.model import RetentionModel
from remat_cli.planners.retention.need_times import NeedTimes
from remat_cli.planners.shared.numbering import Ragged
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages
from tests.graphs import graph_of, in_place, op, training_chain


def skip() -> Graph:
    """x is read by b and, four ops later, by e; a makes it from the input."""
    return graph_of(
        op("a", "in", "x"),
        op("b", "x", "y"),
        op("c", "y", "z"),
        op("d", "z", "w"),
        op("e", "w x", "out"),
        sizes={"in": 1, "x": 5, "y": 1, "z": 7, "w": 1, "out": 1},
    )


def test_stages_number_tensors_in_the_order_in_which_they_are_made() -> None:
    stages = Stages.of(skip())
    assert stages.bytes.tolist() == [5, 1, 7, 1, 1]
    assert stages.produced_at.tolist() == [0, 1, 2, 3, 4]
    reads = list(zip(stages.read_tensor.tolist(), stages.read_stage.tolist(), strict=True))
    assert reads == [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert stages.last_read.tolist() == [4, 2, 3, 4, 5]
    assert stages.plain_bytes.tolist() == [5, 6, 13, 13, 7]


def test_stages_in_another_order_are_of_that_order() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), op("c", "x y", "z"), sizes={"x": 1, "y": 2, "z": 4})
    stages = Stages.of(graph, np.array([1, 0, 2]))
    assert stages.bytes.tolist() == [2, 1, 4]
    assert [stages.graph.arrays.tensor_names[t] for t in stages.tensor.tolist()] == ["y", "x", "z"]


def test_an_op_that_works_in_place_needs_less() -> None:
    graph = in_place()
    stages = Stages.of(graph)
    saved = int(stages.shared_bytes[stages.shared_input >= 0].sum())
    assert saved > 0
    assert int(stages.plain_bytes.max()) < int(stages.own_bytes.max()) + saved


def test_ragged_lists_are_summed_and_expanded() -> None:
    lists = Ragged.of(np.array([0, 0, 2]), np.array([3, 1, 2]), 3)
    assert [values.tolist() for values in (lists[0], lists[1], lists[2])] == [[3, 1], [], [2]]
    assert lists.sums(np.array([10, 20, 30, 40])).tolist() == [60, 0, 30]
    which, values = lists.expand(np.array([2, 0]))
    assert (which.tolist(), values.tolist()) == ([0, 1, 1], [2, 3, 1])


def test_at_depth_1_an_op_may_be_recomputed_at_the_end_of_a_gap_over_a_tight_stage() -> None:
    stages = Stages.of(skip())
    needs = NeedTimes.of(stages, stages.plain_bytes > 9, depth=1)
    # Only x lives across c and d; w's, y's and z's gaps contain no stage.
    assert list(zip(needs.rerun_stage_of_op.tolist(), needs.rerun_stage.tolist(), strict=True)) == [(0, 4)]
    assert needs.is_read.all()
    assert (NeedTimes.of(stages, stages.plain_bytes > 13, depth=1).rerun < 0).all()


def test_deeper_recomputation_needs_inputs_when_they_are_gone() -> None:
    graph = training_chain(4)
    stages = Stages.of(graph)
    shallow, deep = (NeedTimes.of(stages, stages.plain_bytes > 3, depth) for depth in (1, 3))
    assert len(deep) > len(shallow)
    assert len(deep.rerun_stage) > len(shallow.rerun_stage)
    assert deep.is_read.sum() == shallow.is_read.sum() == len(stages.read_stage)


def test_what_need_not_be_decided_has_no_variable() -> None:
    stages = Stages.of(skip())
    needs = NeedTimes.of(stages, stages.plain_bytes > 9, depth=1)
    model = RetentionModel(needs, room=9)
    # Held or made again: x until e. The other gaps have no alternative.
    assert np.flatnonzero(~model.always_held).tolist() == [1]
    assert len(model.build().proto.variables) == 2


def test_a_plan_is_read_off_the_chances_taken() -> None:
    stages = Stages.of(skip())
    model = RetentionModel(NeedTimes.of(stages, stages.plain_bytes > 9, depth=1), room=9)
    assert model.sequence(np.array([1, 0])).names == ("a", "b", "c", "d", "a", "e")
    assert model.sequence(np.array([0, 1])).names == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize("computes", ["abcde", "abcdae"])
def test_a_hint_says_what_its_plan_does(computes: str) -> None:
    stages = Stages.of(skip())
    retention = RetentionModel(NeedTimes.of(stages, stages.plain_bytes > 9, depth=1), room=9)
    model = retention.build()
    retention.hint(model, RematSequence.of_names(stages.graph, computes))
    hint = model.proto.solution_hint
    values = np.zeros(len(model.proto.variables), dtype=np.int64)
    values[list(hint.vars)] = list(hint.values)
    assert len(hint.vars) == len(values)
    assert "".join(retention.sequence(values).names) == computes
    assert values[1] == int(computes == "abcde")
