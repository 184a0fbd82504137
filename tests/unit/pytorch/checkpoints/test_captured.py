"""Modules that run again before their backward pass, as a schedule."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.core.graph import Kind, Phase
from remat_cli.core.schedule import with_frees
from remat_cli.pytorch.checkpoints.captured import captured_schedule
from tests.graphs import graph_of, op


def test_of_a_module_only_what_its_backward_pass_needs_runs_again() -> None:
    ops = [
        op("f1", "x", "t1"),
        op("f2", "t1", "t2"),
        op("f3", "t2", "t3"),
        op("loss", "t3", "l"),
        op("b", "t1 l", "g", phase=Phase.BACKWARD),
    ]
    within = [replace(each, module="block.0" if each.name in ("f1", "f2", "f3") else "") for each in ops]
    graph = graph_of(*within, outputs=("g",), kind=Kind.TRAINING)
    assert captured_schedule(graph, ("block",)) == with_frees(graph, ["f1", "f2", "f3", "loss", "f1", "b"])
