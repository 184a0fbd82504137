"""Pipelines held against a search over all orders and plans, and against rules of the judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from remat_cli.config import Request
from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.problem import Observer, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import InvalidSchedule, UsageError
from remat_cli.pipelines import planner
from remat_cli.pipelines.assignment import Needs, makespan_of
from remat_cli.pipelines.chunks import Chunk, JobKind, Residents, StageCuts, cut_graph
from remat_cli.pipelines.curve import ChunkPoint, curve
from remat_cli.pipelines.cuts import even_cuts, named_cuts
from remat_cli.pipelines.jobs import Pipeline, RankJob, Room
from remat_cli.pipelines.judge import Replay, replay_pipeline
from remat_cli.pipelines.orders import ListScheduler, gpipe, one_f_one_b
from remat_cli.pipelines.planner import PipelinePlanning, plan_pipeline
from remat_cli.pipelines.request import ChunkOrder, PipelineRequest, parse_rank_budgets
from remat_cli.planning import plan
from remat_cli.prepare import Prepared
from tests.graphs import chain, graph_of, layered_step, op, residual_step
from tests.plans import prepared

NOBODY = Residents({}, {})
BEFORE = {
    JobKind.FORWARD: None,
    JobKind.BACKWARD: JobKind.FORWARD,
    JobKind.INPUTS: JobKind.FORWARD,
    JobKind.WEIGHTS: JobKind.INPUTS,
}


def pipeline_of(graph: Graph, stages: int, microbatches: int, order: str = "1f1b", **more: object) -> Pipeline:
    chunks = cut_graph(graph, next(even_cuts(graph, stages)), NOBODY)
    orders = one_f_one_b(stages, microbatches) if order == "1f1b" else gpipe(range(stages), microbatches)
    schedules = {(chunk.index, i): plain_run(chunk.graph) for chunk in chunks for i in range(microbatches)}
    pipeline = Pipeline(chunks, tuple(range(stages)), microbatches, orders, schedules)
    return replace(pipeline, **more)  # type: ignore[arg-type]


def planned(graph: Graph, stages: int, microbatches: int, budget: str, **more: object) -> PipelinePlanning:
    request = PipelineRequest(stages, microbatches, parse_rank_budgets(budget), **more)  # type: ignore[arg-type]
    return plan_pipeline(prepared(graph), NOBODY, request, Request())


def orders_of(own: tuple[RankJob, ...], done: tuple[RankJob, ...] = ()) -> Iterator[tuple[RankJob, ...]]:
    """Yield all orders of a rank's jobs in which each backward pass follows its forward pass."""
    if not own:
        yield done
    for job in own:
        before = BEFORE[job.kind]
        if before is None or RankJob(job.chunk, job.microbatch, before) in done:
            yield from orders_of(tuple(other for other in own if other != job), (*done, job))


def test_chunks_run_every_op_once_with_what_they_send() -> None:
    graph = residual_step(4)
    chunks = cut_graph(graph, next(even_cuts(graph, 3)), NOBODY)
    names = [op.name for chunk in chunks for op in chunk.graph.ops if op.name != chunk.turn]
    assert sorted(names) == sorted(op.name for op in graph.ops)
    assert sum(chunk.graph.total_time for chunk in chunks) == graph.total_time
    for chunk in chunks[1:]:
        assert set(chunk.forward_from) == {chunk.index - 1}
        assert set(chunks[chunk.index - 1].backward_from) == {chunk.index}


def test_one_rank_after_the_other_takes_what_the_field_says() -> None:
    # Equal stages: 1F1B and GPipe are idle for (p - 1) / (m + p - 1) of the time.
    graph = residual_step(7)
    cuts = StageCuts(("c3", "c5"))
    chunks = cut_graph(graph, cuts, NOBODY)
    for order in (one_f_one_b(3, 4), gpipe(range(3), 4)):
        schedules = {(chunk.index, i): plain_run(chunk.graph) for chunk in chunks for i in range(4)}
        replay = replay_pipeline(Pipeline(chunks, (0, 1, 2), 4, order, schedules))
        longest = max(chunk.graph.total_time for chunk in chunks)
        assert replay.makespan >= 4 * longest
        assert sum(replay.busy) == 4 * graph.total_time
        assert replay.recomputing == 0


def test_gpipe_keeps_every_microbatch_and_1f1b_as_many_as_ranks_follow() -> None:
    graph = residual_step(6)
    all_of_them, few = (replay_pipeline(pipeline_of(graph, 2, 6, order)) for order in ("gpipe", "1f1b"))
    assert all_of_them.peaks[0] > few.peaks[0]


def test_memory_of_a_rank_is_that_of_its_only_chunk_when_one_microbatch_runs() -> None:
    graph = residual_step(5)
    pipeline = pipeline_of(graph, 2, 1)
    for chunk, peak in zip(pipeline.chunks, replay_pipeline(pipeline).peaks, strict=True):
        alone = simulate(chunk.graph, plain_run(chunk.graph))
        assert peak == alone.peak_bytes - chunk.graph.fixed_bytes + chunk.fixed_bytes(1)


def test_transfers_delay_the_next_stage() -> None:
    graph = residual_step(5)
    at_once, slow = pipeline_of(graph, 2, 3), pipeline_of(graph, 2, 3, bytes_per_time=Fraction(1, 100))
    first, second = replay_pipeline(at_once), replay_pipeline(slow)
    sent = at_once.chunks[1].forward_from[0]
    assert second.ran[1][0].start == first.ran[1][0].start + 100 * sent
    assert second.peaks == first.peaks


def test_sent_gradients_stay_until_all_jobs_are_done() -> None:
    pipeline = pipeline_of(residual_step(5), 2, 3)
    replay = replay_pipeline(pipeline)
    last = pipeline.chunks[1]
    sent = pipeline.chunks[0].backward_from[1]
    assert replay.memory[1][-1][1] == last.fixed_bytes(3) + 3 * sent
    assert replay.memory[0][-1][1] == pipeline.chunks[0].fixed_bytes(3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda order: order[:-1], "never runs"),
        (lambda order: (*order, order[0]), "runs twice"),
        (lambda order: (order[-1], *order[:-1]), "waits for ever"),
        (lambda order: (*order, RankJob(1, 0, JobKind.FORWARD)), "belongs to rank 1"),
        (lambda order: (*order, RankJob(0, 9, JobKind.FORWARD)), "no job 0F9"),
    ],
)
def test_orders_that_no_ranks_can_run_are_named(change, said: str) -> None:  # type: ignore[no-untyped-def]
    pipeline = pipeline_of(residual_step(4), 2, 3)
    orders = (change(pipeline.orders[0]), *pipeline.orders[1:])
    with pytest.raises(InvalidSchedule, match=said):
        replay_pipeline(replace(pipeline, orders=orders))


@pytest.mark.parametrize("share", ["100%", "96%", "90%"])
def test_no_order_of_all_with_the_same_plans_is_faster(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setattr(planner, "curve", three_plans)
    planning = planned(residual_step(4), 2, 2, share)
    best = min(
        (
            replay.makespan
            for replay in all_replays(planning.chunks, curves_of(planning.chunks), 2)
            if all(peak <= budget for peak, budget in zip(replay.peaks, planning.budgets, strict=True))
        ),
        default=None,
    )
    assert (None if planning.replay is None else planning.replay.makespan) == best
    if planning.replay is not None:
        assert all(peak <= budget for peak, budget in zip(planning.replay.peaks, planning.budgets, strict=True))
        assert planning.bound <= planning.replay.makespan


def three_plans(
    chunk: Chunk, whole: Prepared, request: Request, known: Sequence[tuple[Chunk, tuple[ChunkPoint, ...]]]
) -> tuple[ChunkPoint, ...]:
    """Three plans of a chunk, so that all choices can be tried."""
    points = curve(chunk, whole, request, ())
    return tuple({id(point): point for point in (points[0], points[len(points) // 2], points[-1])}.values())


def curves_of(chunks: tuple[Chunk, ...]) -> list[tuple[ChunkPoint, ...]]:
    return [three_plans(chunk, prepared(chunk.graph), Request(), ()) for chunk in chunks]


def all_replays(chunks: tuple[Chunk, ...], curves: list[tuple[ChunkPoint, ...]], microbatches: int) -> Iterator[Replay]:
    ranks = range(len(chunks))
    jobs = [tuple(RankJob(rank, i, kind) for i in range(microbatches) for kind in chunks[rank].kinds) for rank in ranks]
    keys = [(rank, i) for rank in ranks for i in range(microbatches)]
    for orders in product(*(list(orders_of(own)) for own in jobs)):
        for choice in product(*(curves[chunk] for chunk, _ in keys)):
            schedules = {key: point.schedule for key, point in zip(keys, choice, strict=True)}
            try:
                yield replay_pipeline(Pipeline(chunks, tuple(ranks), microbatches, orders, schedules))
            except InvalidSchedule:  # jobs that wait for each other
                continue


def test_budget_below_any_plan_is_refused_with_the_rank() -> None:
    planning = planned(residual_step(4), 2, 2, "100%,5%")
    assert planning.status is Status.INFEASIBLE
    assert planning.refusal is not None
    assert planning.refusal.rank == 1
    assert planning.refusal.needed_bytes > planning.budgets[1]


@pytest.mark.parametrize("chunk_order", ChunkOrder)
def test_several_chunks_a_rank_keep_the_budget(chunk_order: ChunkOrder) -> None:
    planning = planned(residual_step(8), 2, 4, "75%", chunks=2, chunk_order=chunk_order)
    assert planning.replay is not None
    assert all(peak <= budget for peak, budget in zip(planning.replay.peaks, planning.budgets, strict=True))
    assert planning.bound <= planning.replay.makespan


@pytest.mark.parametrize("more", [{}, {"chunks": 2}, {"split_backward": True}])
def test_smallest_budget_is_kept_and_a_byte_less_is_not(more: dict[str, object]) -> None:
    graph = layered_step(8, times=(3, 4, 2))
    planning = planned(graph, 2, 3, "min", **more)
    assert planning.replay is not None
    assert all(peak <= budget for peak, budget in zip(planning.replay.peaks, planning.budgets, strict=True))
    assert max(planning.replay.peaks) == max(planning.budgets)
    assert planned(graph, 2, 3, "60%", **more).replay is None or max(planning.budgets) <= max(
        planned(graph, 2, 3, "60%", **more).budgets
    )
    less = ",".join(str(budget - 1) for budget in planning.budgets)
    assert planned(graph, 2, 3, less, **more).replay is None


def test_equal_chunks_of_several_cuts_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(prepared: Prepared, request: Request) -> object:
        calls.append(len(prepared.graph.ops))
        return plan(prepared, request)

    monkeypatch.setattr("remat_cli.pipelines.curve.plan", counted)
    graph = residual_step(6)
    known = planner.KnownCurves()
    chunks = [chunk for cuts in (("c3", "c5"), ("c4", "c5")) for chunk in cut_graph(graph, StageCuts(cuts), NOBODY)]
    for chunk in chunks:
        before = len(calls)
        known.whole.append((chunk, curve(chunk, prepared(graph), Request(), known.whole)))
    assert len(calls) == before  # the last chunk is the same in both


def test_same_request_gives_the_same_pipeline() -> None:
    first, second = (planned(residual_step(6), 2, 4, "90%") for _ in range(2))
    assert first.replay == second.replay
    assert first.replay is not None


def test_cuts_are_named_by_ops_and_modules() -> None:
    graph = residual_step(4)
    assert named_cuts(graph, ["c2", "d3"]).first_ops == ("c2", "d3")
    with pytest.raises(UsageError, match="no forward op and no module"):
        named_cuts(graph, ["nothing"])


@pytest.mark.parametrize(
    ("cuts", "said"), [(("c3", "c2"), "not in the order"), (("stem",), "not in the order"), (("c9",), "no forward op")]
)
def test_wrong_cuts_are_named(cuts: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cut_graph(residual_step(4), StageCuts(cuts), NOBODY)


def test_graph_without_a_backward_pass_is_refused() -> None:
    with pytest.raises(UsageError, match="backward pass"):
        cut_graph(chain(1, 2, 3), StageCuts(("f2",)), NOBODY)


def test_cut_that_crosses_the_backward_pass_is_named() -> None:
    # The backward of `f1` reads what `f2` makes, as that of an op whose result the next one changes.
    graph = graph_of(
        op("f1", "", "x1"),
        op("f2", "x1", "x2"),
        op("loss", "x2", "g2", phase=Phase.BACKWARD),
        op("b2", "g2", "g1", phase=Phase.BACKWARD, grad_of="f2"),
        op("b1", "g1 x2", "g0", phase=Phase.BACKWARD, grad_of="f1"),
        sizes=dict.fromkeys(("x1", "x2", "g2", "g1", "g0"), 1),
        kind=Kind.TRAINING,
    )
    with pytest.raises(UsageError, match="crosses the backward pass: 'b1' of stage 0 reads 'x2'"):
        cut_graph(graph, StageCuts(("f2",)), NOBODY)


@pytest.mark.parametrize("phase", ["planning stage 1", "choosing plans for each microbatch"])
def test_ctrl_c_keeps_the_best_so_far(phase: str) -> None:
    class Stopped(Observer):
        def phase(self, name: str) -> None:
            if name == phase and (name.startswith("planning") or self.has_planned):
                raise KeyboardInterrupt
            self.has_planned |= name.startswith("planning")

        has_planned = False

    graph = layered_step(4, times=(10, 12, 8))
    request = PipelineRequest(2, 4, parse_rank_budgets("100%"), cuts=("f3",), split_backward=True)
    planning = plan_pipeline(prepared(graph), NOBODY, request, Request(), Stopped())
    assert planning.interrupted
    assert planning.replay is not None
    assert all(peak <= budget for peak, budget in zip(planning.replay.peaks, planning.budgets, strict=True))


def test_more_stages_than_ops_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be cut"):
        planned(residual_step(1), 9, 2, "100%")


@pytest.mark.parametrize(
    ("stages", "microbatches", "budget", "said"),
    [
        (1, 2, "1GB", "1 stages"),
        (2, 0, "1GB", "0 microbatches"),
        (3, 2, "1GB,1GB", "2 budgets"),
    ],
)
def test_impossible_requests_are_named(stages: int, microbatches: int, budget: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PipelineRequest(stages, microbatches, parse_rank_budgets(budget))


def test_list_scheduler_admits_no_microbatch_that_does_not_fit() -> None:
    graph = residual_step(4)
    chunks = cut_graph(graph, next(even_cuts(graph, 2)), NOBODY)
    points = [ChunkPoint.of(chunk, plain_run(chunk.graph)) for chunk in chunks]
    assert ListScheduler((0, 1), 3, points, Room((1, 1), (0, 0)), (0,)).order() is None
    order = ListScheduler((0, 1), 3, points, Room((10**6, 10**6), (0, 0)), (0,)).order()
    assert order is not None
    assert sorted(job for rank in order for job in rank) == sorted(
        RankJob(chunk, i, kind) for chunk in range(2) for i in range(3) for kind in chunks[chunk].kinds
    )


def test_makespan_of_the_search_is_that_of_the_judge_where_nothing_is_sent_slowly() -> None:
    pipeline = pipeline_of(residual_step(5), 2, 3)
    needs = {}
    for chunk in pipeline.chunks:
        for i in range(3):
            forward, backward = RankJob(chunk.index, i, JobKind.FORWARD), RankJob(chunk.index, i, JobKind.BACKWARD)
            needs[forward] = [(RankJob(origin, i, JobKind.FORWARD), 0) for origin in chunk.forward_from]
            needs[backward] = [(forward, 0)] + [
                (RankJob(origin, i, JobKind.BACKWARD), 0) for origin in chunk.backward_from
            ]
    points = [(ChunkPoint.of(chunk, plain_run(chunk.graph)),) for chunk in pipeline.chunks]
    chosen = dict.fromkeys(pipeline.schedules, 0)
    assert makespan_of(pipeline.orders, points, Needs(needs), chosen) == replay_pipeline(pipeline).makespan
