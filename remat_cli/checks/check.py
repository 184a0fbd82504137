"""The check of one model: figures, failures and remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from math import ceil
from pathlib import Path
from time import monotonic

from remat_cli.checks.advice import (
    batch_offer,
    budget_offer,
    eager_batch_offer,
    plain_need,
    plain_planning,
    plan_overhead,
    uninterrupted,
    written,
)
from remat_cli.checks.baseline import Figures
from remat_cli.checks.growth import largest_at_peak, what_grew
from remat_cli.checks.project import ModelCheck
from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer, Status
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, activations_of, baseline_of, bytes_of_budget
from remat_cli.errors import ExitCode, GraphError, RematError, UsageError
from remat_cli.formats.functions import names_function
from remat_cli.formats.user_files import files_of_user, note_files
from remat_cli.machine.cores import process_pool
from remat_cli.machine.system_limits import refusal_of
from remat_cli.planning import Planning, exact_overhead, plan, within_overhead
from remat_cli.prepare import Prepared, prepare
from remat_cli.runtime.execution import check_can_execute, check_is_predicted, execute_plan
from remat_cli.settings import Setting, as_text, in_config, on_command_line
from remat_cli.studies.eager import EagerReplay, eager_run
from remat_cli.studies.progress import Prefixed
from remat_cli.units import format_bytes, format_share, meant_as_share

UNDERSTATED = "understated"
ESTIMATED = "estimated"
# The limits of failures that leave open whether the model holds.
_DOUBTS = (UNDERSTATED, ESTIMATED)
_LONGEST_NAME = 60


class Verdict(StrEnum):
    """The verdict on one line of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    WARNS = "warns"  # a run takes more memory than predicted, or sizes are guesses: unknown whether the model holds
    ERROR = "error"  # the model could not be measured, so the result is unknown


@dataclass(frozen=True)
class Failure:
    """A limit that a model exceeds, or the error that prevented its measurement.

    Attributes:
        limit: the key of the project file whose limit is exceeded; "error" if the model could not be measured, and
            `UNDERSTATED` if a run is known to take more than predicted, `ESTIMATED` if sizes are guesses.
        reason: the reason, in one sentence without its full stop.
        remedies: remedies, likewise; each that names a figure was tried.
    """

    limit: str
    reason: str
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one line of a check.

    Attributes:
        model: the model and its limits.
        figures: the measured figures; None if the measurement failed.
        before: the figures in the baseline; None if they are missing.
        failures: exceeded limits; empty if the model holds.
        exit_code: 0, 3, or that of the error that prevented the measurement.
        notes: remarks on the model's file.
        session: the runtime's session for which the figures hold, in a sentence; empty without a choice.
        is_estimated: whether sizes behind the figures are guesses.
        seconds: time of the check.
    """

    model: ModelCheck
    figures: Figures | None = None
    before: Figures | None = None
    failures: tuple[Failure, ...] = ()
    exit_code: int = 0
    notes: tuple[str, ...] = ()
    session: str = ""
    is_estimated: bool = False
    seconds: float = field(default=0.0, compare=False)

    @property
    def verdict(self) -> Verdict:
        """The verdict of this line."""
        if self.exit_code == 0:
            return Verdict.HOLDS
        if self.exit_code != ExitCode.NO_FIT:
            return Verdict.ERROR
        return Verdict.WARNS if all(one.limit in _DOUBTS for one in self.failures) else Verdict.FAILS


def worst_exit_code(outcomes: tuple[CheckOutcome, ...]) -> int:
    """Return the exit code of a whole check.

    A model that could not be measured ranks above one that fails: it may be worse.
    """
    codes = {outcome.exit_code for outcome in outcomes}
    return max(codes - {0, ExitCode.NO_FIT}, default=max(codes, default=0))


def check_model(
    model: ModelCheck, baseline: Mapping[str, Figures], observe: Observer | None = None, *, accept: bool = False
) -> CheckOutcome:
    """Measure one model, and compare it with its limits.

    A bad file is an outcome, too.

    Args:
        model: the model and its limits.
        baseline: figures by model name, to which `max_regression` compares.
        observe: receives the phases.
        accept: whether the baseline is about to be replaced, so that there are no regressions.

    Raises:
        KeyboardInterrupt: the user stopped the check; plans of interrupted searches are not judged.
    """
    began = monotonic()
    named = Prefixed(observe or Observer(), f"{_short(model.name)}: ")
    check = _Check(model, baseline.get(model.name), named, accept=accept)
    exit_code = check.run()
    return CheckOutcome(
        model=model,
        figures=check.figures,
        before=check.before,
        failures=tuple(check.failures),
        exit_code=exit_code,
        notes=check.notes,
        session=check.session,
        is_estimated=check.is_estimated,
        seconds=monotonic() - began,
    )


def check_models(
    models: Sequence[ModelCheck],
    baseline: Mapping[str, Figures],
    observe: Observer | None = None,
    *,
    accept: bool = False,
    jobs: int = 1,
) -> Iterator[CheckOutcome]:
    """Yield the result of each model, in their order.

    Args:
        models: the models to check.
        baseline: as for `check_model`.
        observe: as for `check_model`; with several jobs it receives only their progress.
        accept: as for `check_model`.
        jobs: number of models at a time, each in its own process.
    """
    observe = observe or Observer()
    with process_pool(min(jobs, len(models))) as pool:
        if pool is None:
            yield from (check_model(model, baseline, observe, accept=accept) for model in models)
            return
        check = partial(_and_files_read, partial(check_model, baseline=baseline, accept=accept))
        futures = [_submitted(pool, check, model) for model in models]
        for done, (model, future) in enumerate(zip(models, futures, strict=True)):
            observe.phase(f"{done} of {len(models)} models checked")
            yield _result_of(future, model, baseline)


def _and_files_read(check: Callable[[ModelCheck], CheckOutcome], model: ModelCheck) -> tuple[CheckOutcome, list[Path]]:
    """Check a model in a process of its own; return the outcome, and the files that the model's code has read."""
    return check(model), files_of_user()


def _submitted(
    pool: ProcessPoolExecutor, check: Callable[[ModelCheck], tuple[CheckOutcome, list[Path]]], model: ModelCheck
) -> Future[tuple[CheckOutcome, list[Path]]]:
    """Submit a model to a pool; a killed pool gives a result, too."""
    try:
        return pool.submit(check, model)
    except BrokenProcessPool as error:
        future = Future[tuple[CheckOutcome, list[Path]]]()
        future.set_exception(error)
        return future


def _result_of(
    future: Future[tuple[CheckOutcome, list[Path]]], model: ModelCheck, baseline: Mapping[str, Figures]
) -> CheckOutcome:
    try:
        outcome, files = future.result()
    except BrokenProcessPool:
        reason = "a process of this check was killed, as happens when the machine runs out of memory"
        failure = Failure(
            "error", reason, (as_text(("check fewer models at a time: ", Setting("jobs", 1)), on_command_line),)
        )
        return CheckOutcome(model, None, baseline.get(model.name), (failure,), ExitCode.NO_PLAN)
    note_files(files)
    return outcome


def _in_yaml(error: RematError) -> tuple[str, ...]:
    """Return an error's hint in words for the project file; none without a hint."""
    return (as_text(error.remedy, in_config),) if error.remedy else ()


def _doubts(prepared: Prepared) -> Iterator[Failure]:
    """Yield the reasons to doubt that a model that fits really holds."""
    for kind, doubt in ((ESTIMATED, prepared.guessed), (UNDERSTATED, prepared.understated)):
        if doubt is not None:
            why, remedy = doubt
            yield Failure(kind, why, (remedy,))


class _Check:
    """The check of one model in progress."""

    def __init__(self, model: ModelCheck, before: Figures | None, observe: Observer, *, accept: bool) -> None:
        self.model = model
        self.before = before
        self.observe = observe
        self.accept = accept
        self.figures: Figures | None = None
        self.notes: tuple[str, ...] = ()
        self.session = ""
        self.is_estimated = False
        self.failures: list[Failure] = []

    def run(self) -> int:
        """Measure and judge the model; return the exit code."""
        try:
            self.measure()
        except RematError as error:
            self.failures.append(Failure("error", as_text(error.wording, in_config), _in_yaml(error)))
            return error.exit_code
        except (MemoryError, OSError, ImportError, RuntimeError) as error:
            if (refused := refusal_of(error)) is None:
                raise
            self.failures.append(Failure("error", refused.message, _in_yaml(refused)))
            return refused.exit_code
        return ExitCode.NO_FIT if self.failures else 0

    def measure(self) -> None:
        self.observe.phase("reading the graph")
        if not self.model.may_run_code and names_function(self.model.path):
            raise UsageError(
                f"{self.model.path} is Python, which --no-code does not run",
                hint=f"remat convert {self.model.path} -o graph.json where its code may run, and check that file",
            )
        eager, unknown = self.eager()
        prepared = prepare(self.model.path, self.model.graph, split=self.model.request.split)
        # With addresses the arena counts, and no session of a runtime lays it out.
        self.notes, self.session = (*prepared.notes, *unknown), "" if self.model.request.arena else prepared.session
        self.is_estimated = prepared.is_estimated
        plain = baseline_of(prepared.graph)
        limits = self.limits(prepared.graph)
        limit = min(limits.values(), default=None)
        hard_limit = largest_working_set(prepared.graph).bytes
        self.figures = Figures(
            plain.peak_bytes,
            hard_limit,
            limit,
            plain_time=plain.time,
            at_peak=largest_at_peak(prepared.graph),
            op_types=dict(Counter(op.type for op in prepared.graph.ops)),
            eager_peak_bytes=None if eager is None else eager.peak_bytes,
        )
        if limit is not None and self.model.request.budget is None:
            # An arena or an allocator serves the captured step's plain run.
            if eager is None or self.model.request.holds_more_than_peak:
                self.hold_plain_run(prepared, plain, limit)
            else:
                self.hold_eager(eager, prepared, plain, limit)
            if self.model.execute and not self.failures:
                self.failures.extend(self.execution_failures(prepared, plain_run(prepared.graph), limit))
        elif limit is not None:
            planning = self.planning(prepared, plain, limit)
            self.notes = planning.prepared.notes
            if planning.trace is not None:
                self.figures = replace(
                    self.figures,
                    plan_peak_bytes=planning.trace.peak_bytes,
                    overhead=planning.overhead,
                    plan_time=planning.trace.time,
                    arena_bytes=_arena_bytes(planning),
                )
            self.failures.extend(self.plan_failures(planning, limits))
            if self.model.execute and not self.failures:
                assert planning.schedule is not None
                self.failures.extend(self.execution_failures(planning.prepared, planning.schedule, limit))
        if limit is not None and not self.failures and not self.model.execute:
            self.failures.extend(_doubts(prepared))
        if self.model.max_regression is not None and not self.accept:
            self.failures.extend(self.regressions(self.figures))

    def eager(self) -> tuple[EagerReplay | None, tuple[str, ...]]:
        """Return a PyTorch step in eager mode, and a note if it is not known."""
        try:
            return eager_run(self.model.path, self.model.graph), ()
        except GraphError as error:
            return None, (f"what the step takes without a plan is not known: {error}",)

    def limits(self, graph: Graph) -> dict[str, int]:
        """Return the limits on bytes by their keys, smallest first.

        They concern the model's peak or its arena.
        """
        sizes, request = {}, self.model.request
        if request.budget is not None:
            sizes["budget"] = bytes_of_budget(request.budget, graph, request.outside_arena(graph))
        if self.model.max_peak is not None:
            sizes["max_peak"] = self.model.max_peak
        return dict(sorted(sizes.items(), key=lambda item: item[1]))

    def hold_eager(self, eager: EagerReplay, prepared: Prepared, plain: Trace, limit: int) -> None:
        """Hold a step without a plan to a limit on its peak."""
        if eager.peak_bytes <= limit:
            return
        remedies = [f"raise max_peak to {written(eager.peak_bytes)}"]
        if eager.let_go_bytes <= limit:
            let_go = format_bytes(eager.let_go_bytes)
            remedies.append(
                f"hold the loss alone during the backward pass, not all outputs: eager then peaks at {let_go}"
            )
        if (batch := eager_batch_offer(self.model, eager, limit, self.observe)) is not None:
            remedies.append(f"set dims.{batch.dim} to {batch.size}, where eager fits")
        overhead = plan_overhead(prepared, self.model.request.at(limit), self.observe)
        if overhead is not None:
            better = "the captured step's plain run" if plain.peak_bytes <= limit else _plan_in_words(overhead)
            remedies.append(f"replace it by 'budget: {written(limit)}', where {better} fits")
        reason = f"eager peaks at {format_bytes(eager.peak_bytes)}, above max_peak {format_bytes(limit)}"
        self.failures.append(Failure("max_peak", reason, tuple(remedies)))

    def hold_plain_run(self, prepared: Prepared, plain: Trace, limit: int) -> None:
        request, graph = self.model.request, prepared.graph
        planning = plain_planning(prepared, request.at(limit), self.observe)
        if planning.trace is not None:
            assert self.figures is not None
            self.figures = replace(self.figures, arena_bytes=_arena_bytes(planning))
            return
        needed = plain_need(prepared, request, self.observe)
        remedies = [f"raise max_peak to {written(needed)}"]
        batch = batch_offer(
            self.model, graph.resident_bytes - request.outside_arena(graph), needed, limit, self.observe
        )
        if batch is not None:
            remedies.append(f"set dims.{batch.dim} to {batch.size}, where the plain run fits")
        overhead = plan_overhead(prepared, self.model.request.at(limit), self.observe)
        if overhead is not None:
            # The plain run does not fit: a plan without overhead is another order of the same runs.
            better = "another order of the same runs" if overhead == 0 else _plan_in_words(overhead)
            remedies.append(f"replace it by 'budget: {written(limit)}', where {better} fits")
        peak = format_bytes(plain.peak_bytes - request.outside_arena(graph))
        reason = f"the plain run peaks at {peak}{_uncounted(planning)}, above max_peak {format_bytes(limit)}"
        if planning.solution.closest_arena_bytes is not None:
            reason = _fragmentation(planning.solution, request.outside_arena(graph))
        elif planning.solution.closest_reserved_bytes is not None:
            reason = _reserved(planning.solution)
        self.failures.append(Failure("max_peak", reason, tuple(remedies)))

    def planning(self, prepared: Prepared, plain: Trace, limit: int) -> Planning:
        """Return the plan of any overhead, or the refusal.

        If the plain run fits, it is the best plan and no planner is needed.
        """
        request = replace(self.model.request.at(limit), max_overhead=None)
        self.observe.phase("planning")
        if plain.peak_bytes <= limit + request.outside_arena(prepared.graph):
            planning = plain_planning(prepared, request, self.observe)
            if planning.trace is not None:  # otherwise the plain run's arena does not fit, but that of another plan may
                return planning
        return uninterrupted(plan(prepared, request, self.observe))

    def plan_failures(self, planning: Planning, limits: Mapping[str, int]) -> Iterator[Failure]:
        allowed, solution = self.model.request.max_overhead, planning.solution
        refusal = within_overhead(solution, allowed)
        if refusal.trace is not None:
            return
        remedies = self.remedies(planning.prepared, refusal, limits)
        if solution.trace is None or allowed is None:
            yield Failure(next(iter(limits)), _why_nothing_fits(planning), remedies)
            return
        overhead = exact_overhead(solution.trace.time, solution.baseline.time)
        wider = f"allow it: max_overhead: {_percent(overhead)}"
        reason = (
            f"the plan takes {format_share(overhead)} more time than the plain run, above max_overhead "
            f"{format_share(allowed)}"
        )
        if solution.fragmentation_overhead:
            want = "an arena of" if self.model.request.arena else "memory to reserve for"
            reason += f", {format_share(solution.fragmentation_overhead)} of it for want of {want} a faster plan"
        if refusal.status is Status.INFEASIBLE:
            reason += f"; proven: {_which_plan(refusal)} keeps to it"
        yield Failure("max_overhead", reason, (*remedies, wider))

    def execution_failures(self, prepared: Prepared, schedule: Schedule, limit: int) -> Iterator[Failure]:
        """Run a schedule, and yield each difference from its prediction.

        The limit in bytes is checked, too.
        """
        options = replace(self.model.graph, mode=prepared.mode, parts=prepared.options.parts)
        check_can_execute(self.model.path, options, schedule)
        check_is_predicted(prepared)
        execution = execute_plan(
            self.model.path,
            options,
            prepared.graph,
            schedule,
            link=prepared.link,
            budget_bytes=limit + self.model.request.outside_arena(prepared.graph),
            beside_usual=True,
            observe=self.observe,
        )
        if execution.runtime == "onnxruntime" and execution.usual is not None:
            self.session = f"{_short(self.model.name)}: {execution.usual.compared_with(execution.plan.measured)}."
        broken = execution.broken(prepared.graph)
        if broken is not None:
            yield Failure("execute", broken.message, _in_yaml(broken))

    def remedies(self, prepared: Prepared, refusal: Solution, limits: Mapping[str, int]) -> tuple[str, ...]:
        """Return tried remedies: a larger budget, or a smaller batch."""
        offer = budget_offer(prepared, refusal, self.model.request, self.observe)
        too_small = [key for key, size in limits.items() if size < offer.budget_bytes]
        budget = self.model.request.budget
        is_share = budget is not None and budget.share is not None
        outside_bytes = self.model.request.outside_arena(prepared.graph)
        larger = written(offer.budget_bytes)
        if budget is not None and is_share and too_small == ["budget"]:
            if budget.of_activations:
                share = activations_of(prepared.graph).share(offer.budget_bytes + outside_bytes)
            else:
                share = Fraction(offer.budget_bytes, refusal.baseline.peak_bytes - outside_bytes)
            # otherwise the share is above the sum, for want of a smaller arena
            if share <= 1 or not self.model.request.arena:
                larger = _percent(min(Fraction(1), share)) + (" of activations" if budget.of_activations else "")
        remedies = []
        if too_small:
            remedies = [f"raise {' and '.join(too_small)} to {larger}, where {_plan_in_words(offer.overhead)} fits"]
        resident, limit = (
            prepared.graph.resident_bytes - outside_bytes,
            refusal.problem.budget.device_bytes - outside_bytes,
        )
        # A share of the plain peak would shrink with the batch.
        batch = None if is_share else batch_offer(self.model, resident, offer.budget_bytes, limit, self.observe)
        if batch is not None:
            remedies.append(f"set dims.{batch.dim} to {batch.size}, where {_plan_in_words(batch.overhead)} fits")
        return tuple(remedies)

    def regressions(self, now: Figures) -> Iterator[Failure]:
        allowed = self.model.max_regression
        assert allowed is not None
        limit = f"max_regression {format_share(allowed)}"
        remedy = ("if that is intended, renew the baseline: remat check --update-baseline",)
        if self.before is None:
            reason = "it is not in the baseline, which max_regression needs"
            yield Failure("max_regression", reason, ("add it: remat check --update-baseline",))
            return
        whose, old, new = "plain", self.before.plain_peak_bytes, now.plain_peak_bytes
        before_eager, now_eager = self.before.eager_peak_bytes, now.eager_peak_bytes
        if self.model.request.budget is None and before_eager is not None and now_eager is not None:
            whose, old, new = "eager", before_eager, now_eager
        if new > old * (1 + allowed):
            grown = "" if old == 0 else f" by {format_share((new - old) / old)}"
            reason = f"the {whose} peak grew{grown}, from {format_bytes(old)} to {format_bytes(new)}, above {limit}"
            see = "see all changes: remat diff OLD NEW, where OLD is the earlier model"
            yield Failure("max_regression", reason + what_grew(self.before, now), (*remedy, see))
        earlier, later = self.before.exact_overhead, now.exact_overhead
        if earlier is None or later is None:
            return
        if later - earlier > allowed:
            reason = (
                f"the overhead grew from {format_share(earlier)} to {format_share(later)}, by more "
                f"than {limit} of the plain run's time"
            )
            yield Failure("max_regression", reason, remedy)


def _why_nothing_fits(planning: Planning) -> str:
    solution = planning.solution
    graph, least = solution.problem.graph, solution.working_set
    outside_bytes = planning.request.outside_arena(graph)
    budget = solution.problem.budget.device_bytes - outside_bytes
    size = format_bytes(budget) + _uncounted(planning)
    if budget < graph.fixed_bytes - outside_bytes:
        meant = meant_as_share(budget, solution.baseline.peak_bytes - outside_bytes)
        always = f"{format_bytes(graph.fixed_bytes - outside_bytes)} are in memory from start to end"
        return f"no plan fits {size}: {always}" + (f" ({meant})" if meant else "")
    if budget < least.bytes - outside_bytes:
        who = "its outputs alone need" if least.op is None else f"op {_short(least.op)} alone needs"
        return f"no plan fits {size}: {who} {format_bytes(least.bytes - outside_bytes)}"
    if solution.closest_arena_bytes is not None:
        return _fragmentation(solution, outside_bytes)
    if solution.closest_reserved_bytes is not None:
        return _reserved(solution)
    if solution.status is Status.INFEASIBLE:
        return f"{_which_plan(solution)} fits {size}: proven"
    return f"no plan was found that fits {size}; that there is none is not proven"


def _uncounted(planning: Planning) -> str:
    resident = planning.request.outside_arena(planning.prepared.graph)
    return f" beside {format_bytes(resident)} of resident bytes" if resident else ""


def _fragmentation(refusal: Solution, uncounted_bytes: int) -> str:
    """Return why there is no arena although the sum fits."""
    limit, smallest = refusal.problem.budget.device_bytes - uncounted_bytes, refusal.closest_arena_bytes
    assert smallest is not None
    return (
        f"the sum fits {format_bytes(limit)}, but no arena of that size was found: fragmentation costs "
        f"{format_bytes(smallest - limit)} more, as the smallest arena that was found takes {format_bytes(smallest)}"
    )


def _reserved(refusal: Solution) -> str:
    """Return the reason why a plan with a fitting peak reserves too much."""
    least = refusal.closest_reserved_bytes
    assert least is not None
    limit = format_bytes(refusal.problem.budget.device_bytes)
    return (
        f"the peak fits {limit}, but PyTorch's allocator reserves {format_bytes(least)} at least, as far as was found"
    )


def _arena_bytes(planning: Planning) -> int | None:
    return None if planning.solution.arena is None else planning.solution.arena.bytes


def _which_plan(refusal: Solution) -> str:
    without = " without transfers" if refusal.leaves_out_transfers else ""
    return f"no plan {refusal.scope.which_plans}{without}"


def _plan_in_words(overhead: float) -> str:
    return "the plain run" if overhead == 0 else f"a plan of {format_share(overhead)} overhead"


def _percent(share: Fraction) -> str:
    """Write a share for a project file, rounded up."""
    return f"{ceil(share * 1000) / 10:g}%"


def _short(name: str) -> str:
    half = _LONGEST_NAME // 2
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}")
