"""The forward part of a training graph, and what planners check of their options and their orders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Phase
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.planners.shared.option_checks import check_least
from tests.graphs import chain, graph_of, op, training_unet


def test_vertices_are_forward_ops_with_all_that_they_make() -> None:
    graph = training_unet(2)
    forward = ForwardPart.of(graph, "a test")
    names = [graph.ops[number].name for number in forward.ops]
    assert names == ["down1", "down2", "bottom", "up2", "up1"]
    assert forward.bytes.tolist() == [graph.tensors[graph.op[name].outputs[0]].bytes for name in names]
    assert forward.time.tolist() == [1] * 5
    # Each reads the one before it, and ups what downs made.
    assert forward.edges.tolist() == [[0, 1], [0, 4], [1, 2], [1, 3], [2, 3], [3, 4]]
    assert len(forward) == 5


@pytest.mark.parametrize(
    ("graph", "lacks"),
    [
        (chain(1, 1), "backward ops"),
        (graph_of(op("b", "", "g", phase=Phase.BACKWARD)), "forward ops"),
        (
            graph_of(op("f", "", "a"), op("b", "a", "g", phase=Phase.BACKWARD), op("late", "g", "c")),
            "forward part of its own",
        ),
    ],
)
def test_what_is_no_training_graph_is_refused_by_the_planners_name(graph: object, lacks: str) -> None:
    with pytest.raises(PlannerRefuses, match=f"^a test plans training graphs.*has no {lacks}"):
        ForwardPart.of(graph, "a test")  # type: ignore[arg-type]


@dataclass
class Options:
    cores: int = 0
    slots: int = 5


@given(cores=st.integers(-3, 3), slots=st.integers(-3, 9))
def test_options_below_the_least_are_named(cores: int, slots: int) -> None:
    options = Options(cores, slots)
    if cores >= 0 and slots >= 1:
        check_least(options, cores=0, slots=1)
        return
    name, least = ("cores", 0) if cores < 0 else ("slots", 1)
    with pytest.raises(UsageError, match=f"^{name} is -?[0-9]+$") as refused:
        check_least(options, cores=0, slots=1)
    assert refused.value.hint == f"give {least} or more"


def test_sizes_stay_whole_numbers() -> None:
    graph = graph_of(
        op("f", "", "a b"), op("g", "a b", "d", phase=Phase.BACKWARD), sizes={"a": 2**53, "b": 1, "d": 2**53 + 1}
    )
    forward = ForwardPart.of(graph, "a test")
    assert forward.bytes.dtype == np.int64
    assert forward.bytes.tolist() == [2**53 + 1]
