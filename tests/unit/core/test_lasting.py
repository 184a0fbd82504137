"""Tensors that nobody reads and that the plain run keeps to the end, as onnxruntime does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.schedule import Free, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.formats.native import from_document, graph_bytes
from remat_cli.planners import PLANNERS
from tests.graphs import graph_of, op


def with_unread(lasts: bool = True) -> Graph:
    """Three ops in a row, and one whose result of 10 bytes nobody reads."""
    graph = graph_of(
        op("u", "x", "unread"),
        op("a", "x", "t1"),
        op("b", "t1", "t2"),
        op("c", "t2", "t3"),
        sizes={"x": 0, "unread": 10, "t1": 4, "t2": 8, "t3": 1},
        outputs=("t3",),
    )
    tensors = {**graph.tensors, "unread": replace(graph.tensors["unread"], lasts=lasts)}
    return graph.edited(tensors=tensors).checked()


def test_the_plain_run_keeps_it_to_the_end() -> None:
    graph = with_unread()
    assert Free("unread") not in plain_run(graph).steps
    assert baseline_of(graph).peak_bytes == 22
    assert baseline_of(with_unread(lasts=False)).peak_bytes == 12


def test_what_an_op_reads_does_not_last() -> None:
    graph = with_unread()
    tensors = {**graph.tensors, "t1": replace(graph.tensors["t1"], lasts=True)}
    assert Free("t1") in plain_run(graph.edited(tensors=tensors).checked()).steps


@pytest.mark.parametrize("planner", ["keep_all", "auto", "dtr"])
def test_plans_let_go_of_it(planner: str) -> None:
    graph = with_unread()
    solution = solve(Problem(graph, Budget(12)), PLANNERS[planner](), Observer())
    assert solution.trace is not None
    assert solution.trace.peak_bytes == simulate(graph, with_frees(graph, "uabc")).peak_bytes == 12


def test_files_keep_it() -> None:
    graph = with_unread()
    again = from_document(json.loads(graph_bytes(graph)), "graph").graph
    assert again.tensors["unread"].lasts
    assert graph_bytes(again.checked()) == graph_bytes(graph)
