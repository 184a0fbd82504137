"""The search for a pipeline: cuts, plans of chunks, orders, and a plan for each microbatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import ceil

from remat_cli.config import Request
from remat_cli.core.graph import Graph
from remat_cli.core.operators import Role
from remat_cli.core.problem import Observer, Status
from remat_cli.core.schedule import plain_run
from remat_cli.errors import FalseClaim, InvalidSchedule
from remat_cli.formats import Reading
from remat_cli.pipelines.assignment import Chosen, Needs, best_plans, fits, makespan_of, memory_of
from remat_cli.pipelines.bound import NoFit, makespan_bound, no_fit
from remat_cli.pipelines.chunks import Chunk, Residents, StageCuts, cut_graph, forward_ops
from remat_cli.pipelines.curve import ChunkPoint, best_points, curve, with_sending
from remat_cli.pipelines.cuts import even_cuts, named_cuts
from remat_cli.pipelines.jobs import Pipeline, RankJob, Room
from remat_cli.pipelines.judge import Replay, replay_pipeline
from remat_cli.pipelines.orders import (
    ListScheduler,
    Order,
    Preference,
    gpipe,
    interleaved,
    one_at_a_time,
    one_f_one_b,
    with_weights_apart,
)
from remat_cli.pipelines.request import ChunkOrder, PipelineRequest
from remat_cli.planning.memory_need import notes_on_memory
from remat_cli.prepare import Prepared

_AHEAD = (0, 1, 2)  # forward passes ahead of 1F1B's
_IN_FLIGHT = (None, 0, 1, 2, -1)  # limits of microbatches in flight for orders that are made
_LEAST = "one microbatch at a time"
_ORDERS = 8  # orders for which plans are chosen by microbatch, those first that would end soonest


@dataclass(frozen=True)
class PipelinePlanning:
    """A request for a pipeline, and its verified result.

    Attributes:
        prepared: graph of one microbatch, and how it was prepared.
        request: the request.
        cuts: where the graph is cut: those of the plan, or the first ones tried.
        chunks: chunks of these cuts.
        usual: the usual order without recomputation, replayed: 1F1B; with several chunks a rank, GPipe.
        budgets: [ranks] budget in bytes.
        bound: no pipeline of these cuts ends sooner, in the graph's time unit.
        pipeline: the plan; None without one.
        replay: the judge's measurement; None without a plan.
        family: kind of the plan's order, for people; empty without a plan.
        refusal: a proof that no pipeline of these cuts fits; None without one.
        interrupted: the user stopped the search; the plan is the best one until then.
    """

    prepared: Prepared
    request: PipelineRequest
    cuts: StageCuts
    chunks: tuple[Chunk, ...]
    usual: Replay
    budgets: tuple[int, ...]
    bound: int
    pipeline: Pipeline | None = None
    replay: Replay | None = None
    family: str = ""
    refusal: NoFit | None = None
    interrupted: bool = False

    @property
    def status(self) -> Status:
        """Whether there is a plan, and what is proven."""
        if self.replay is None:
            return Status.UNKNOWN if self.refusal is None else Status.INFEASIBLE
        return Status.OPTIMAL if self.replay.makespan <= self.bound else Status.FEASIBLE

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user, one line each."""
        return (*self.prepared.notes, *notes_on_memory(self.prepared.graph))


def residents_of(graph: Graph, reading: Reading) -> Residents:
    """Return a step's parameters, and the forward ops that read each."""
    sizes = {parameter.name: parameter.bytes for parameter in reading.parameters}
    read_by: dict[str, list[str]] = {}
    for op in forward_ops(graph):
        names = set(op.inputs) & sizes.keys()
        operator = reading.operators.get(op.name)
        if operator is not None:
            operands = (operand for operand in operator.inputs if operand is not None)
            names.update(item.name for item in operands if item.role is Role.PARAMETER and item.name in sizes)
        if names:
            read_by[op.name] = sorted(names)
    read = {name for names in read_by.values() for name in names}
    inputs = frozenset(graph.inputs) & sizes.keys()
    return Residents({name: size for name, size in sizes.items() if name in read}, read_by, frozenset(inputs))


def plan_pipeline(
    prepared: Prepared,
    residents: Residents,
    request: PipelineRequest,
    chunk_request: Request,
    observe: Observer | None = None,
) -> PipelinePlanning:
    """Plan a pipeline within a budget for each rank, and prove it by replaying all ranks.

    Published families of orders come first, then orders made for the chunks' times and the memory at hand; each gets
    the plans of chunks, by microbatch, with which it ends soonest.

    Args:
        prepared: the training graph of one microbatch.
        residents: its parameters.
        request: the request.
        chunk_request: planner and options for the plans of chunks.
        observe: receives phases.

    Raises:
        UsageError: the graph cannot be cut so.
        PlannerRefuses: the planner cannot take a chunk.
        FalseClaim: the judge refutes the search's own count.
    """
    observe = observe or Observer()
    graph, chunks = prepared.graph, request.stages * request.chunks
    all_cuts = [named_cuts(graph, request.cuts)] if request.cuts is not None else list(even_cuts(graph, chunks))
    known = KnownCurves()
    searches = [
        _CutSearch(
            prepared,
            replace(cuts, split_backward=request.split_backward),
            residents,
            request,
            chunk_request,
            known,
            observe,
        )
        for cuts in all_cuts
    ]
    best: PipelinePlanning | None = None
    by_budget = any(budget.smallest for budget in request.budgets)
    for search in sorted(searches, key=lambda search: search.best.bound):
        if best is not None and best.replay is not None and not by_budget and search.best.bound >= best.replay.makespan:
            break
        try:
            planning = search.run()
        except KeyboardInterrupt:
            planning = replace(search.best, interrupted=True)
            if planning.replay is None and (best is None or best.replay is None):
                raise
        if best is None or _ends_sooner(planning, best):
            best = planning
        if planning.interrupted:
            return replace(best, interrupted=True)
    assert best is not None, "there is at least one way to cut"
    return best


def _ends_sooner(planning: PipelinePlanning, best: PipelinePlanning) -> bool:
    """Tell whether a plan is better than the best one so far: within less, where the smallest budget is asked for."""
    if planning.replay is None or best.replay is None:
        return planning.replay is not None
    if planning.budgets != best.budgets and any(budget.smallest for budget in planning.request.budgets):
        return max(planning.budgets) < max(best.budgets)
    return planning.replay.makespan < best.replay.makespan


@dataclass
class KnownCurves:
    """Chunks that are planned, each with its plans; equal chunks of other cuts take them over.

    Attributes:
        whole: chunks with a whole backward pass.
        split: chunks with a split one.
    """

    whole: list[tuple[Chunk, tuple[ChunkPoint, ...]]] = field(default_factory=list)
    split: list[tuple[Chunk, tuple[ChunkPoint, ...]]] = field(default_factory=list)


class _CutSearch:
    """The search for the best pipeline of given cuts.

    Attributes:
        best: the best plan so far.
    """

    def __init__(
        self,
        prepared: Prepared,
        cuts: StageCuts,
        residents: Residents,
        request: PipelineRequest,
        chunk_request: Request,
        known: KnownCurves,
        observe: Observer,
    ) -> None:
        """Measure the chunks without recomputation, and turn shares into budgets."""
        chunks = cut_graph(prepared.graph, cuts, residents)
        self._whole = cut_graph(prepared.graph, replace(cuts, split_backward=False), residents)
        self._prepared, self._chunks, self._request = prepared, chunks, request
        self._chunk_request, self._known, self._observe = chunk_request, known, observe
        self._rank_of = request.rank_of
        self._transfer = _transfers(chunks, request)
        ranks = range(request.stages)
        self._fixed = [
            sum(chunk.fixed_bytes(request.microbatches) for chunk in chunks if self._rank_of[chunk.index] == rank)
            for rank in ranks
        ]
        usual = self._usual()
        budgets = tuple(
            self._smallest[rank]
            if request.budget_of(rank).smallest
            else request.budget_of(rank).bytes_of(peak, self._fixed[rank], peak - self._fixed[rank])
            for rank, peak in enumerate(usual.peaks)
        )
        self._room = Room(
            limits=[budget - fixed for budget, fixed in zip(budgets, self._fixed, strict=True)],
            sent=self._sent_bytes(),
        )
        bound = makespan_bound(chunks, self._rank_of, request.microbatches, self._transfer, self._room)
        self.best = PipelinePlanning(prepared, request, cuts, chunks, usual, budgets, bound)

    def run(self) -> PipelinePlanning:
        """Search, and return the best plan.

        Raises:
            KeyboardInterrupt: Ctrl-C; `best` has the best plan until then.
        """
        refusal = no_fit(self._chunks, self._rank_of, self._request.microbatches, self.best.budgets)
        if refusal is not None:
            return replace(self.best, refusal=refusal)
        if any(budget.smallest for budget in self._request.budgets):
            self._take(_LEAST, self._least_order, self._curves, self._least_plans)
        elif self._search([self._points(index, self._plain) for index in range(len(self._chunks))]):
            return self.best
        self._search(self._curves)
        return self.best

    @cached_property
    def _least_order(self) -> Order:
        order = one_at_a_time(self._rank_of, self._request.microbatches)
        return with_weights_apart(order, [0] * self._request.stages) if self._request.split_backward else order

    @cached_property
    def _least_plans(self) -> Chosen:
        """The plans that need least memory where a rank has one microbatch in flight."""
        chosen: Chosen = {}
        for rank in range(self._request.stages):
            own = [chunk for chunk, of in enumerate(self._rank_of) if of == rank]
            choices = [self._chosen(choice) for choice in _levels(self._curves)]
            best = min(choices, key=lambda each: self._needed(each)[rank])
            chosen |= {key: index for key, index in best.items() if key[0] in own}
        return chosen

    @cached_property
    def _smallest(self) -> list[int]:
        """[ranks] the smallest budget that is known to do."""
        needed = self._needed(self._least_plans)
        return [fixed + beside for fixed, beside in zip(self._fixed, needed, strict=True)]

    def _needed(self, chosen: Chosen) -> list[int]:
        return memory_of(self._least_order, self._curves, self._sent_bytes(), chosen)

    @cached_property
    def _curves(self) -> list[tuple[ChunkPoint, ...]]:
        """[chunks] plans of each chunk."""
        curves = []
        for index in range(len(self._chunks)):
            self._observe.phase(f"planning stage {index}")
            curves.append(self._points(index, self._planned))
        return curves

    def _planned(self, chunk: Chunk) -> tuple[ChunkPoint, ...]:
        known = self._known.whole if chunk.sent is None else self._known.split
        known.append((chunk, curve(chunk, self._prepared, self._chunk_request, known)))
        return known[-1][1]

    def _plain(self, chunk: Chunk) -> tuple[ChunkPoint, ...]:
        return (ChunkPoint.of(chunk, plain_run(chunk.graph)),)

    def _points(self, index: int, planned: Callable[[Chunk], tuple[ChunkPoint, ...]]) -> tuple[ChunkPoint, ...]:
        """Return a chunk's plans; if its backward pass is split, with those that do not split it."""
        chunk = self._chunks[index]
        points = planned(chunk)
        if chunk.sent is None:
            return points
        return best_points([*points, *(with_sending(chunk, point) for point in planned(self._whole[index]))])

    def _search(self, curves: Sequence[Sequence[ChunkPoint]]) -> bool:
        """Try orders with these plans; tell whether no order that was tried is faster without memory limits."""
        needs = Needs(self._needs())
        choices = list(_levels(curves))
        least: dict[Order, int] = {}
        families: dict[Order, str] = {}
        for family, order in self._orders(curves, choices):
            if order in least:
                continue
            least[order], families[order] = makespan_of(order, curves, needs, self._chosen(choices[0])), family
            if self._is_sooner(least[order]):
                self._try_levels(family, order, curves, choices, needs)
            if self.best.status is Status.OPTIMAL:
                return True
        self._observe.phase("choosing plans for each microbatch")
        for order in sorted(families, key=lambda each: least[each])[:_ORDERS]:
            if self._is_sooner(least[order]):
                self._choose(families[order], order, curves, needs)
            if self.best.status is Status.OPTIMAL:
                return True
        return not any(map(self._is_sooner, least.values()))

    def _try_levels(
        self,
        family: str,
        order: Order,
        curves: Sequence[Sequence[ChunkPoint]],
        choices: Sequence[Sequence[int]],
        needs: Needs,
    ) -> None:
        """Try the first plans that fit an order, the same for all microbatches."""
        chosen = next((each for each in map(self._chosen, choices) if fits(order, curves, self._room, each)), None)
        if chosen is not None and self._is_sooner(makespan_of(order, curves, needs, chosen)):
            self._take(family, order, curves, chosen)

    def _is_sooner(self, time: int) -> bool:
        """Tell whether a makespan is shorter than that of the best plan."""
        return self.best.replay is None or time < self.best.replay.makespan

    def _chosen(self, choice: Sequence[int]) -> Chosen:
        """Return a plan for each chunk, the same one for all microbatches."""
        return {(chunk, i): index for chunk, index in enumerate(choice) for i in range(self._request.microbatches)}

    def _choose(self, family: str, order: Order, curves: Sequence[Sequence[ChunkPoint]], needs: Needs) -> None:
        """Choose plans for an order, and keep the result if it ends sooner than the best one."""
        below = None if self.best.replay is None else self.best.replay.makespan
        chosen = best_plans(order, curves, self._room, needs, below)
        if chosen is not None:
            self._take(family, order, curves, chosen)

    def _take(self, family: str, order: Order, curves: Sequence[Sequence[ChunkPoint]], chosen: Chosen) -> None:
        """Replay a pipeline, and keep it if it fits and ends sooner than the best one."""
        pipeline = self._pipeline(order, curves, chosen)
        replay = self._replayed(pipeline)
        it_fits = all(peak <= budget for peak, budget in zip(replay.peaks, self.best.budgets, strict=True))
        if it_fits and self._is_sooner(replay.makespan):
            self.best = replace(self.best, pipeline=pipeline, replay=replay, family=family)

    def _orders(
        self, curves: Sequence[Sequence[ChunkPoint]], choices: Sequence[Sequence[int]]
    ) -> Iterator[tuple[str, Order]]:
        """Yield orders with the names of their families."""
        yield from self._published()
        between = [self._transfer[chunk][chunk + 1] for chunk in range(len(self._chunks) - 1)]
        deepest = (True, False) if self._request.chunks > 1 else (True,)
        patience = (True, False) if self._request.split_backward else (True,)
        tried = product(choices, _IN_FLIGHT, deepest, patience, (True, False))
        for choice, in_flight, deepest_first, patient, cautious in tried:
            points = [points[index] for points, index in zip(curves, choice, strict=True)]
            preference = Preference(deepest_first, in_flight, patient, cautious)
            scheduler = ListScheduler(
                self._rank_of, self._request.microbatches, points, self._room, between, preference
            )
            order = scheduler.order()
            if order is not None:
                yield "made for these stages", order

    def _published(self) -> Iterator[tuple[str, Order]]:
        """Yield the orders of published families."""
        ranks, microbatches, split = self._request.stages, self._request.microbatches, self._request.split_backward
        orders = []
        if self._request.chunks == 1:
            for ahead in (*_AHEAD, *range(-1, 1 - ranks, -1)):
                order = one_f_one_b(ranks, microbatches, ahead=ahead)
                orders.append((_ahead_name(ahead), order))
                if split:
                    name = "ZB-H1" if ahead == 0 else f"ZB-H1, {_more_or_fewer(ahead)}"
                    yield name, with_weights_apart(order, range(ranks))
        elif self._request.chunk_order is ChunkOrder.INTERLEAVED and microbatches % ranks == 0:
            orders.append(("interleaved 1F1B", interleaved(ranks, self._request.chunks, microbatches)))
        orders.append((_LEAST, one_at_a_time(self._rank_of, microbatches)))
        for name, order in (*orders, ("GPipe", gpipe(self._rank_of, microbatches))):
            yield name, with_weights_apart(order, [0] * ranks) if split else order

    def _needs(self) -> dict[RankJob, list[tuple[RankJob, int]]]:
        """Return what each job waits for, with the time of the transfer."""
        needs: dict[RankJob, list[tuple[RankJob, int]]] = {}
        for chunk in self._chunks:
            for i in range(self._request.microbatches):
                forward, backward, *weights = (RankJob(chunk.index, i, kind) for kind in chunk.kinds)
                needs[forward] = [
                    (RankJob(origin, i, forward.kind), self._transfer[origin][chunk.index])
                    for origin in chunk.forward_from
                ]
                needs[backward] = [(forward, 0)] + [
                    (RankJob(origin, i, backward.kind), self._transfer[origin][chunk.index])
                    for origin in chunk.backward_from
                ]
                needs.update({job: [(backward, 0)] for job in weights})
        return needs

    def _sent_bytes(self) -> list[int]:
        """[chunks] bytes of the gradients that go to other ranks."""
        return [
            sum(
                other.backward_from.get(chunk.index, 0)
                for other in self._chunks
                if self._rank_of[other.index] != self._rank_of[chunk.index]
            )
            for chunk in self._chunks
        ]

    def _pipeline(self, order: Order, curves: Sequence[Sequence[ChunkPoint]], chosen: Chosen) -> Pipeline:
        schedules = {(chunk, i): curves[chunk][index].schedule for (chunk, i), index in chosen.items()}
        request = self._request
        return Pipeline(self._chunks, self._rank_of, request.microbatches, order, schedules, request.bytes_per_time)

    def _replayed(self, pipeline: Pipeline) -> Replay:
        try:
            return replay_pipeline(pipeline)
        except InvalidSchedule as invalid:
            raise FalseClaim(f"the search for a pipeline made one that does not run: {invalid.message}") from invalid

    def _usual(self) -> Replay:
        """Replay the usual order without recomputation: 1F1B; with several chunks a rank, GPipe."""
        request = self._request
        plain = [plain_run(chunk.graph) for chunk in self._whole]
        order = (
            one_f_one_b(request.stages, request.microbatches)
            if request.chunks == 1
            else gpipe(self._rank_of, request.microbatches)
        )
        schedules = {(chunk, i): plain[chunk] for chunk in range(len(plain)) for i in range(request.microbatches)}
        return self._replayed(
            Pipeline(self._whole, self._rank_of, request.microbatches, order, schedules, request.bytes_per_time)
        )


def _transfers(chunks: Sequence[Chunk], request: PipelineRequest) -> list[list[int]]:
    """[chunks, chunks] time of what one chunk sends to another, in either pass."""
    rank_of, rate = request.rank_of, request.bytes_per_time

    def time(origin: Chunk, target: Chunk) -> int:
        if rate is None or rank_of[origin.index] == rank_of[target.index]:
            return 0
        received = target.forward_from if origin.index < target.index else target.backward_from
        return ceil(received.get(origin.index, 0) / rate)

    return [[time(origin, target) for target in chunks] for origin in chunks]


def _levels(curves: Sequence[Sequence[ChunkPoint]]) -> Iterator[tuple[int, ...]]:
    """Yield a plan for each chunk: the fastest ones, then plans that keep less and less."""
    ordered = [
        sorted(range(len(points)), key=lambda index: (-points[index].kept_bytes, points[index].figures))
        for points in curves
    ]
    yield (0,) * len(curves)
    for level in range(max(map(len, ordered))):
        yield tuple(indices[min(level, len(indices) - 1)] for indices in ordered)


def _ahead_name(ahead: int) -> str:
    return "1F1B" if ahead == 0 else f"1F1B, {_more_or_fewer(ahead)}"


def _more_or_fewer(ahead: int) -> str:
    return f"{abs(ahead)} {'more' if ahead > 0 else 'fewer'} in flight"
