"""Gradients of weights apart from those of inputs: chunks, the judge's rules, published orders, and plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remat_cli.config import Request
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Status
from remat_cli.core.schedule import plain_run
from remat_cli.errors import InvalidSchedule
from remat_cli.pipelines.bound import makespan_bound
from remat_cli.pipelines.chunks import Chunk, JobKind, Residents, StageCuts, cut_graph
from remat_cli.pipelines.curve import ChunkPoint, with_sending
from remat_cli.pipelines.jobs import Pipeline, RankJob
from remat_cli.pipelines.judge import replay_pipeline
from remat_cli.pipelines.orders import Order, interleaved, one_f_one_b, with_weights_apart
from remat_cli.pipelines.planner import PipelinePlanning, plan_pipeline
from remat_cli.pipelines.request import ChunkOrder, PipelineRequest, parse_rank_budgets
from tests.graphs import layered_step, training_chain
from tests.plans import prepared

NOBODY = Residents({}, {})


def split(graph: Graph, cuts: tuple[str, ...]) -> tuple[Chunk, ...]:
    return cut_graph(graph, StageCuts(cuts, split_backward=True), NOBODY)


def plain(chunks: tuple[Chunk, ...], order: Order, microbatches: int) -> Pipeline:
    runs = {chunk.index: plain_run(chunk.graph) for chunk in chunks}
    schedules = {(chunk.index, i): runs[chunk.index] for chunk in chunks for i in range(microbatches)}
    rank_of = tuple(chunk.index % len(order) for chunk in chunks)
    return Pipeline(chunks, rank_of, microbatches, order, schedules)


def planned(graph: Graph, stages: int, microbatches: int, budget: str, **more: object) -> PipelinePlanning:
    request = PipelineRequest(stages, microbatches, parse_rank_budgets(budget), **more)  # type: ignore[arg-type]
    return plan_pipeline(prepared(graph), NOBODY, request, Request())


def test_ops_without_part_in_sent_gradients_come_after_sending() -> None:
    first, last = split(layered_step(4), ("f3",))
    names = [op.name for op in last.graph.ops]
    assert names == ["f3", "f4", "turn", "loss", "b4", "b3", "sent", "w4", "w3"]
    assert [op.name for op in first.graph.ops if op.name.startswith(("b", "w", "s"))] == [
        "sent",
        "b2",
        "w2",
        "b1",
        "w1",
    ]
    assert first.graph.op["sent"].inputs == ("turn",)


def test_pass_of_weights_keeps_what_it_reads_until_it_runs() -> None:
    last = split(layered_step(4), ("f3",))[1]
    passes = ChunkPoint.of(last, plain_run(last.graph)).passes
    # x3 and x4, s3 and s4 of 2 bytes; x2, which arrives, is a receive buffer. Later x3, g4 and g3; g2 is sent.
    assert passes[JobKind.FORWARD].left_bytes == 6
    assert passes[JobKind.INPUTS].left_bytes == 3
    assert [passes[kind].time for kind in JobKind if kind in passes] == [2, 2, 2]


def test_whole_backward_is_a_plan_that_leaves_nothing_for_the_weights() -> None:
    cuts = StageCuts(("f3",))
    whole, apart = (cut_graph(layered_step(4), replace(cuts, split_backward=apart), NOBODY) for apart in (False, True))
    for one, other in zip(whole, apart, strict=True):
        point = ChunkPoint.of(one, plain_run(one.graph))
        again = with_sending(other, point)
        assert again.left_bytes(JobKind.INPUTS) == 0
        assert again.time(JobKind.WEIGHTS) == 0
        assert again.time(JobKind.INPUTS) == point.time(JobKind.BACKWARD)
        assert again.peak_bytes(JobKind.INPUTS) == point.peak_bytes(JobKind.BACKWARD)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 4)])
def test_zb_h1_is_idle_for_a_third_of_1f1b(ranks: int, microbatches: int) -> None:
    # Qi et al. 2024: (p - 1) (F + I - W) beside (p - 1) (F + I + W). Here the first rank's pass of inputs is part of
    # its pass of weights.
    cuts = tuple(f"f{i}" for i in range(2, ranks + 1))
    order = one_f_one_b(ranks, microbatches)
    apart = split(layered_step(ranks), cuts)
    replay = replay_pipeline(plain(apart, with_weights_apart(order, range(ranks)), microbatches))
    together = replay_pipeline(plain(cut_graph(layered_step(ranks), StageCuts(cuts), NOBODY), order, microbatches))
    assert together.makespan == 3 * (microbatches + ranks - 1)
    assert replay.makespan == 3 * microbatches + ranks - 1
    assert replay.makespan == makespan_bound(apart, range(ranks), microbatches, [[0] * ranks] * ranks)


def test_interleaved_1f1b_is_idle_for_less_the_more_chunks_a_rank_has() -> None:
    # Narayanan et al. 2021: with v chunks a rank, a v-th of 1F1B's idle time.
    idle = []
    for chunks in (1, 2, 4):
        cuts = tuple(f"f{1 + index * 8 // (2 * chunks)}" for index in range(1, 2 * chunks))
        pipeline = plain(cut_graph(layered_step(8), StageCuts(cuts), NOBODY), interleaved(2, chunks, 4), 4)
        replay = replay_pipeline(pipeline)
        idle.append(replay.makespan - replay.busy[0])
    assert idle == [12, 6, 3]


def test_weights_before_their_inputs_are_refused() -> None:
    chunks = split(layered_step(4), ("f3",))
    order = with_weights_apart(one_f_one_b(2, 2), [0, 0])
    swapped = tuple(job for job in order[1] if job.kind is not JobKind.WEIGHTS)
    early = (RankJob(1, 0, JobKind.WEIGHTS), *swapped, RankJob(1, 1, JobKind.WEIGHTS))
    with pytest.raises(InvalidSchedule, match="waits for ever"):
        replay_pipeline(plain(chunks, (order[0], early), 2))
    with pytest.raises(InvalidSchedule, match="no job 0B0"):
        replay_pipeline(plain(chunks, one_f_one_b(2, 2), 2))


@pytest.mark.parametrize("budget", ["100%", "90%", "80%"])
@pytest.mark.parametrize("more", [{}, {"chunks": 2}, {"chunks": 2, "chunk_order": ChunkOrder.V}])
def test_split_backward_is_never_slower(budget: str, more: dict[str, object]) -> None:
    graph = layered_step(8, times=(3, 3, 2))
    whole, apart = (planned(graph, 2, 4, budget, split_backward=apart, **more) for apart in (False, True))
    assert apart.budgets == whole.budgets
    assert apart.replay is not None
    assert whole.replay is None or apart.replay.makespan <= whole.replay.makespan
    assert apart.bound <= apart.replay.makespan


def test_graph_that_does_not_tell_gradients_apart_is_planned_as_before() -> None:
    planning = planned(training_chain(6), 2, 4, "100%", split_backward=True)
    assert planning.status is not Status.UNKNOWN
