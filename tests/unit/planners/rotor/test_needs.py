"""What rotor's recurrence knows of a training graph's layers."""

from __future__ import annotations

import pytest

from remat_cli.core.graph import Kind, Phase
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.linearisation import linearise
from tests.graphs import graph_of, op


@pytest.mark.parametrize(("backward_reads", "kept", "passing"), [("a g", 7, 0), ("g", 0, 7)])
def test_activation_is_kept_where_a_backward_op_reads_it_and_passes_where_none_does(
    backward_reads: str, kept: int, passing: int
) -> None:
    graph = graph_of(
        op("f1", "x", "a", time=2),
        op("f2", "a", "b", time=3),
        op("loss", "b", "g", phase=Phase.BACKWARD),
        op("b2", backward_reads, "ga", time=5, phase=Phase.BACKWARD, grad_of="f2"),
        op("b1", "x ga", "end", time=4, phase=Phase.BACKWARD, grad_of="f1"),
        sizes={"a": 7},
        kind=Kind.TRAINING,
    )
    needs = RotorNeeds.measured(linearise(graph, "a test", Cuts.EVERY, 100).gauge)
    assert (needs.kept[1, 1], needs.passing[1]) == (kept, passing)
    assert needs.no_grad_time[1:3].tolist() == [2, 3]
    assert needs.backward_time[1:3].tolist() == [4, 5]
