"""What memory costs a pipeline at least, held against plans."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from remat_cli.config import Request
from remat_cli.core.graph import Graph
from remat_cli.pipelines import PipelineRequest, StageCuts, cut_graph, plan_pipeline
from remat_cli.pipelines.bound import makespan_bound
from remat_cli.pipelines.chunks import JobKind, Residents
from remat_cli.pipelines.curve import curve
from remat_cli.pipelines.jobs import Room
from remat_cli.pipelines.memory_bound import ChunkBound, fewest_rounds, least_extra
from remat_cli.pipelines.request import parse_rank_budgets
from tests.graphs import layered_step
from tests.plans import prepared

NOBODY = Residents({}, {})


def random_step(seed: int, layers: int = 4) -> Graph:
    """A step of unequal layers."""
    random = Random(seed)
    graph = layered_step(layers)
    ops = tuple(op if op.name == "loss" else op.edited(time=random.randint(1, 9)) for op in graph.ops)
    tensors = {name: replace(tensor, bytes=random.randint(1, 4)) for name, tensor in graph.tensors.items()}
    return graph.edited(ops=ops, tensors=tensors).checked()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_a_chunk_has_fewer_extra_runs(seed: int, split: bool) -> None:
    graph = random_step(seed)
    for chunk in cut_graph(graph, StageCuts(("f3",), split), NOBODY):
        bound = ChunkBound(chunk)
        points = curve(chunk, prepared(graph), Request(), ())
        assert len(points) > 1
        for point in points:
            extra = sum(point.time(kind) for kind in chunk.kinds) - chunk.graph.total_time
            assert bound.extra(point.kept_bytes) <= extra
            before = sum(point.time(kind) for kind in chunk.kinds if kind is not JobKind.WEIGHTS)
            once = bound.time_of(bound.forward) + bound.time_of(bound.sending)
            assert bound.extra(point.kept_bytes, sending_only=split) <= before - once
            assert point.kept_bytes >= bound.floor_bytes
            assert max(point.peak_bytes(kind) for kind in chunk.kinds) >= bound.running_bytes


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_pipeline_ends_sooner(seed: int, split: bool) -> None:
    share = ("70%", "85%", "95%")[seed % 3]
    order = {"chunks": 2, "cuts": ("f2", "f3", "f4")} if seed % 2 else {"cuts": ("f3",)}
    request = PipelineRequest(2, 3, parse_rank_budgets(share), split_backward=split, **order)
    planning = plan_pipeline(prepared(random_step(seed)), NOBODY, request, Request())
    assert planning.replay is None or planning.bound <= planning.replay.makespan


def test_least_memory_makes_each_microbatch_wait_for_the_one_before() -> None:
    first, last = cut_graph(layered_step(2, times=(3, 4, 2)), StageCuts(("f2",)), NOBODY)
    bound = ChunkBound(first)
    assert (bound.floor_bytes, bound.running_bytes) == (1, 3)
    assert [fewest_rounds(bound, 4, limit) for limit in (3, 4, 6)] == [4, 2, 1]
    room = Room((3, 100), (0, 0))
    # F of the first stage, F and B of the last one, and B of the first one, which makes no gradient of an input.
    rounds = 4 * (3 + 3 + 6 + 6)
    assert makespan_bound((first, last), (0, 1), 4, [[0, 0], [0, 0]], room) == rounds


def test_what_saves_most_time_for_its_bytes_is_kept_first() -> None:
    assert least_extra([(10, 5), (10, 1)], 1) == 10
    assert least_extra([(10, 5), (10, 1)], 2) == 8
    assert least_extra([(3, 0)], 0) == 0
