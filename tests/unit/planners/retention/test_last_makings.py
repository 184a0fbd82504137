"""Proofs that nothing fits: true whatever is recomputed, and found where no op alone takes more than the room."""

from __future__ import annotations

from math import inf

from hypothesis import given

from remat_cli.core.graph import Graph
from remat_cli.planners.retention.any_order_bound import any_order_bound
from remat_cli.planners.retention.cover_bound import RerunBound
from remat_cli.planners.retention.last_makings import nothing_fits
from remat_cli.planners.shared.limits import Limits
from tests.graphs import graph_of, op, small_graphs, training_graphs
from tests.oracle import least_peak

# Three small tensors are summed, each made of a large one: while the last is made, the other two are there.
SUMMED = graph_of(
    *(op(f"make_{name}", "", name) for name in "ABC"),
    *(op(f"shrink_{name}", name, name.lower()) for name in "ABC"),
    op("add", "a b c", "sum"),
    sizes=dict.fromkeys("ABC", 10) | dict.fromkeys("abc", 4),
    outputs=["sum"],
)


@given(small_graphs() | training_graphs())
def test_what_fits_is_never_refuted(graph: Graph) -> None:
    assert not nothing_fits(graph, least_peak(graph).peak_bytes - graph.fixed_bytes, Limits())


def test_the_last_making_needs_more_than_any_op() -> None:
    assert least_peak(SUMMED).peak_bytes == 22
    assert not nothing_fits(SUMMED, 22, Limits())
    assert nothing_fits(SUMMED, 21, Limits())
    assert any_order_bound(SUMMED, 21, Limits()) == RerunBound(None)


def test_nothing_is_said_when_the_time_is_up() -> None:
    assert not nothing_fits(SUMMED, 21, Limits(deadline=-inf))
