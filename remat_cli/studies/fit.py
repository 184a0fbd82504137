"""The largest value of a dimension that fits a budget.

Such as the largest batch size for training, with and without a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil

from remat_cli.config import PlannerChoice
from remat_cli.core.bounds import largest_working_set
from remat_cli.core.problem import Observer, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, baseline_of, with_plan_of
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.formats.other_sizes import agrees_with_prediction
from remat_cli.planning import MOST_PARTS, SHARE_OF_TIME, FirstPlan, Planning, Request, exact_overhead, plan, plan_again
from remat_cli.prepare import Prepared
from remat_cli.settings import Setting, parts
from remat_cli.splitting import Split
from remat_cli.studies.progress import Prefixed

# Prepared graphs in the cache: a binary search returns to recent values.
_KEPT_READY = 4
# Without a value that is too large, the next one is at most this many times the largest that fits: reading a model at a
# value takes memory that grows with it.
_FARTHEST = 4
# Of the guesses between a number that holds and one that does not, every fourth is replaced by the middle.
_GUESSES = 4
# Of the parts of a plan at another value, the multiples that are tried.
_FACTORS = (1, 2, 4)


@dataclass(frozen=True)
class Sized:
    """A model at one value of the dimension.

    Attributes:
        value: value of the dimension.
        prepared: the graph to plan, with its options.
    """

    value: int
    prepared: Prepared

    @property
    def plain_peak_bytes(self) -> int:
        """The peak of the plain run."""
        return baseline_of(self.prepared.graph).peak_bytes

    @property
    def least_bytes(self) -> int:
        """The least memory that a plan needs, in any order of ops."""
        return largest_working_set(self.prepared.graph).bytes


@dataclass(frozen=True)
class Question:
    """A search: its dimension, budget and limits.

    Attributes:
        dim: name of the dimension.
        request: the request for a plan, at a budget in bytes.
        multiple_of: values are multiples of this.
        at_most: no larger value is tried.
    """

    dim: str
    request: Request
    multiple_of: int = 1
    at_most: int = 1 << 20

    @property
    def budget_bytes(self) -> int:
        """The budget of the plan."""
        budget = self.request.budget
        assert budget is not None
        assert budget.device_bytes is not None, "a share of the plain run's peak would grow with the value"
        return budget.device_bytes


@dataclass(frozen=True)
class Fit:
    """The largest values that fit.

    Attributes:
        question: the search.
        smallest: the model at the smallest allowed value.
        plain: the largest value whose plain run fits, or None.
        found: the largest value with a plan, or None.
        limit: the largest value at which the least memory of a plan fits, or None; above this value no plan in any
            order fits.
        planning: the plan at `found`; without one, the refusal at the smallest value.
        refused: values without a plan, ascending, each with the planner's status.
        is_monotone: among the values tried, the plain run's memory never fell as the value grew.
        interrupted: the user stopped the search.
    """

    question: Question
    smallest: Sized
    plain: Sized | None
    found: Sized | None
    limit: Sized | None
    planning: Planning
    refused: tuple[tuple[int, Status], ...] = ()
    is_monotone: bool = True
    interrupted: bool = False

    @property
    def shown(self) -> Sized:
        """The model of `planning`."""
        return self.found or self.smallest

    @property
    def solution(self) -> Solution:
        """The verified result of `planning`."""
        return self.planning.solution

    @property
    def limit_is_proven(self) -> bool:
        """Whether the next allowed value after `limit` was tried."""
        limit = 0 if self.limit is None else self.limit.value
        return limit + self.question.multiple_of <= self.question.at_most

    @property
    def reaches_end(self) -> bool:
        """Whether the largest allowed value fits.

        Larger values may fit, too.
        """
        return self.found is not None and self.found.value + self.question.multiple_of > self.question.at_most


@dataclass(frozen=True)
class EagerFit:
    """The search for a PyTorch step without a plan.

    Attributes:
        value: the largest value at which eager fits the budget; None if it does not at the smallest.
        peaks: eager's peak in bytes, by the values tried.
    """

    value: int | None
    peaks: Mapping[int, int]


def fit_eager(
    question: Question,
    peak_at: Callable[[int], int | None],
    observe: Observer | None = None,
    also_at: Iterable[int] = (),
) -> EagerFit | None:
    """Search the largest value at which eager fits a budget; None if its peak is not known at some value.

    Args:
        question: the search.
        peak_at: returns eager's peak in bytes at a value; None if it is not known.
        observe: is told the progress.
        also_at: values whose peak is wanted, too.
    """
    peaks: dict[int, int] = {}
    multiple = question.multiple_of

    def peak_of(number: int) -> int:
        value = number * multiple
        if value not in peaks:
            if observe is not None:
                observe.phase(f"running the step at {question.dim}={value} on tensors without data")
            if (peak := peak_at(value)) is None:
                raise _EagerUnknown
            peaks[value] = peak
        return peaks[value]

    def guess(low: int, high: int) -> int | None:
        by_number = {value // multiple: peak for value, peak in peaks.items()}
        return _crossing(by_number, question.budget_bytes, low, high)

    try:
        for value in also_at:
            peak_of(value // multiple)
        number = largest(lambda n: peak_of(n) <= question.budget_bytes, 0, question.at_most // multiple, guess)
    except _EagerUnknown:
        return None
    return EagerFit(number * multiple or None, peaks)


class _EagerUnknown(Exception):
    """Eager's peak is not known at a value."""


def fit(
    question: Question,
    prepare_at: Callable[[int], Prepared],
    observe: Observer | None = None,
    predict_at: Callable[[int], Prepared | None] = lambda value: None,
) -> Fit:
    """Search the largest value that fits a budget.

    The value grows in doubled steps. Then memory is interpolated between two values.

    The search assumes that memory grows with the value, and checks this for the values that it tries. The planner runs
    only at values whose plain run does not fit and whose largest working set does. It may stop at its first plan; at
    the largest value it runs on. Each plan is tried at larger values before the planner runs again.

    Args:
        question: the search.
        prepare_at: reads the model at a value of the dimension.
        observe: is told the progress.
        predict_at: returns a prediction of the model at a value, without its ops' signatures, or None. The values that
            decide the result are read. If a prediction is wrong there, the search starts again and reads all values.

    Raises:
        UsageError: no value is allowed, no memory depends on the dimension, or the model cannot be read with it.
        GraphError: the model cannot be read at a value that decides the result.
        PlannerRefuses: the planner cannot take this graph.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    if question.at_most < question.multiple_of:
        raise UsageError(
            f"no multiple of {question.multiple_of} is at most {question.at_most}",
            hint="give a larger upper limit, or a smaller multiple",
        )
    try:
        return _SizeSearch(question, prepare_at, observe or Observer(), predict_at).run()
    except _WrongPrediction:
        return _SizeSearch(question, prepare_at, observe or Observer(), lambda value: None).run()


class _WrongPrediction(Exception):
    """A prediction of the model differs from the model."""


@dataclass
class _SizeSearch:
    """A search over numbers: n stands for the value n * multiple_of.

    Number 0 stands for no value.
    """

    question: Question
    prepare_at: Callable[[int], Prepared]
    observe: Observer
    predict_at: Callable[[int], Prepared | None]
    _plain_peaks: dict[int, int] = field(default_factory=dict)
    _working_sets: dict[int, int] = field(default_factory=dict)  # least bytes of a plan, by number
    _plans: dict[int, Planning] = field(default_factory=dict)
    _ended_early: set[int] = field(default_factory=set)  # numbers whose planner stopped at a plan and could run on
    _predicted: set[int] = field(default_factory=set)  # numbers with a predicted model, not a read one
    _kept: dict[int, Sized] = field(default_factory=dict)  # models that decide the result, by number
    _interrupted: bool = False

    def __post_init__(self) -> None:
        self._recent = lru_cache(maxsize=_KEPT_READY)(self._read_or_predict)

    def run(self) -> Fit:
        budget, most = self.question.budget_bytes, self.question.at_most // self.question.multiple_of
        self._kept[1] = self._at(1)
        plain = largest(lambda number: self._at(number).plain_peak_bytes <= budget, 0, most, self._guess_plain)
        self._check_memory_depends(plain)
        limit = largest(lambda number: self._least_bytes(self._at(number)) <= budget, plain, most, self._guess_limit)
        try:
            largest_number = self._largest_planned(plain, limit)
        except KeyboardInterrupt:
            largest_number = max(
                (number for number, plan in self._plans.items() if plan.trace is not None), default=plain
            )
            if largest_number == 0:
                raise
            self._interrupted = True
        self._check_predictions(plain, largest_number, limit, min(limit + 1, most))
        if largest_number in self._plans:
            self._run_on(largest_number)
        return Fit(
            self.question,
            self._at(1),
            self._sized(plain),
            self._sized(largest_number),
            self._sized(limit),
            self._planning(largest_number),
            self._refused(),
            self._is_monotone(),
            self._interrupted,
        )

    def _at(self, number: int) -> Sized:
        return self._kept.get(number) or self._recent(number)

    def _read_or_predict(self, number: int) -> Sized:
        value = number * self.question.multiple_of
        predicted = None if self.question.request.holds_more_than_peak else self.predict_at(value)
        if predicted is None:
            sized = Sized(value, self._read(value))
        else:
            self._predicted.add(number)
            sized = Sized(value, predicted)
        self._plain_peaks[value] = sized.plain_peak_bytes
        self._working_sets[number] = self._least_bytes(sized)
        return sized

    @property
    def _plans_differ(self) -> bool:
        """Whether a plan at one value says little of another value: addresses, reserved bytes and parts differ."""
        return self.question.request.holds_more_than_peak or self.question.request.split

    def _least_bytes(self, sized: Sized) -> int:
        """Return the least memory that a plan needs; in parts, an op may need less than as a whole."""
        return sized.prepared.graph.fixed_bytes if self.question.request.split else sized.least_bytes

    def _read(self, value: int) -> Prepared:
        self.observe.phase(f"reading the model at {self.question.dim}={value}")
        try:
            return self.prepare_at(value)
        except (GraphError, UsageError) as error:
            # A fault of the call or the file appears at the first value already.
            if isinstance(error, UsageError) and not self._plain_peaks:
                raise
            raise type(error)(
                f"at {self.question.dim}={value}: {error.message}",
                hint=(
                    *parts(error.remedy),
                    "; or, where only some values are possible, name their step with ",
                    Setting("multiple_of"),
                ),
            ) from None

    def _check_predictions(self, *numbers: int) -> None:
        """Read the model at these numbers unless it was read before.

        The read models take the place of predictions.

        Raises:
            _WrongPrediction: the model differs from a prediction.
        """
        for number in sorted(self._predicted.intersection(numbers)):
            predicted = self._at(number)
            try:
                read = self._read(predicted.value)
            except (GraphError, UsageError):
                raise _WrongPrediction from None
            if not agrees_with_prediction(predicted.prepared, read):
                raise _WrongPrediction
            self._kept[number] = Sized(predicted.value, read)

    def _guess_plain(self, low: int, high: int) -> int | None:
        return _crossing(self._peaks_by_number, self.question.budget_bytes, low, high)

    def _guess_limit(self, low: int, high: int) -> int | None:
        return _crossing(self._working_sets, self.question.budget_bytes, low, high)

    @property
    def _peaks_by_number(self) -> dict[int, int]:
        return {value // self.question.multiple_of: peak for value, peak in self._plain_peaks.items()}

    def _check_memory_depends(self, plain: int) -> None:
        """Refuse a dimension on which no memory depends.

        Every value of it would fit.
        """
        first, last = (self.question.multiple_of * number for number in (1, plain))
        if plain > 1 and last == max(self._plain_peaks) and self._plain_peaks[first] == self._plain_peaks[last]:
            raise UsageError(
                f"no memory depends on {self.question.dim!r}: the plain run needs as much at {last} as at {first}",
                hint="search another dimension",
            )

    def _largest_planned(self, plain: int, limit: int) -> int:
        """Return the largest number with a plan.

        Each plan is carried to larger numbers while it fits; then the planner runs again.

        A refusal takes a planner far longer than a first plan. So, after the first plan, the planner runs in turn at
        the next number, where a refusal ends the search, and at the middle.
        """
        low, high, after = plain, limit + 1, False
        while low + 1 < high and not self._interrupted:
            # Parts are carried cheaply to the last number that they fit, and a search of all parts takes long.
            after = low > plain and (self.question.request.split or not after)
            number = low + 1 if after else (low + high) // 2
            if high > limit:
                number = max(low + 1, min(number, 2 * low))
            if self._has_plan(number):
                low = self._carried(number, self._plans[number].schedule, number, high)
            else:
                high = number
                low = self._carried(number, self._plans[number].solution.result.closest, low, high)
        return low

    def _carried(self, number: int, schedule: Schedule | None, low: int, high: int) -> int:
        """Return the largest number below `high` at which a schedule fits.

        If it fits at no number above `low`, return `low`.

        Args:
            number: number at which the planner found the schedule.
            schedule: the schedule; None if the planner found none.
            low: a number with a plan.
            high: a number without a plan.
        """
        request = self.question.request
        if request.split and number == low:
            return self._carried_parts(number, high)
        if schedule is None or self._plans_differ:
            return low
        known, budget = self._plans[number], self.question.budget_bytes
        # At number 0 stands a guess: the fixed bytes at the smallest value.
        peaks = {0: self._at(1).prepared.graph.fixed_bytes}

        def fits(other: int) -> bool:
            prepared = self._at(other).prepared
            try:
                trace = simulate(prepared.graph, schedule, link=prepared.link)
            except InvalidSchedule:  # some models have other ops at other values
                return False
            peaks[other] = trace.peak_bytes
            limit, plain_time = request.max_overhead, baseline_of(prepared.graph).time
            is_fast = limit is None or exact_overhead(trace.time, plain_time) <= limit
            return is_fast and trace.peak_bytes <= budget

        fits(number)
        farthest = largest(fits, low, high - 1, lambda low, high: _crossing(peaks, budget, low, high))
        if farthest > low:
            self._plans[farthest] = plan_again(known, self._at(farthest).prepared, schedule)
            self._ended_early.add(farthest)
        return farthest

    def _carried_parts(self, number: int, high: int) -> int:
        """Return the largest number below `high` at which a plan's parts fit, with equally many rows in a part.

        To search for parts takes many times as long as to plan with parts that are known.

        Args:
            number: number at which the planner found the plan.
            high: a number without a plan.
        """
        known, budget = self._plans[number], self.question.budget_bytes
        cuts = known.prepared.options.cuts
        peaks = {number: known.peak_bytes or 0}

        def fits(other: int) -> bool:
            planned = list(self._plans_in(cuts, Fraction(other, number), other))
            if not planned:
                return False
            planning = planned[-1]
            closest = planning.solution.closest or planning.solution.baseline
            peaks[other] = closest.peak_bytes if planning.peak_bytes is None else planning.peak_bytes
            if planning.trace is not None:
                self._plans[other] = planning
                self._ended_early.add(other)
            return planning.trace is not None

        if not cuts:
            return number
        return largest(fits, number, high - 1, lambda low, high: _crossing(peaks, budget, low, high))

    def _plans_in(self, cuts: Mapping[str, Split], scale: Fraction, number: int) -> Iterator[Planning]:
        """Yield results in more and more parts, up to the first plan.

        Args:
            cuts: at another number.
            scale: of the number of parts.
            number: number of the model.
        """
        tried: list[dict[str, Split]] = []
        for factor in _FACTORS:
            scaled = {
                name: replace(cut, parts=min(MOST_PARTS, ceil(cut.parts * scale * factor)))
                for name, cut in cuts.items()
            }
            planning = None if scaled in tried else self._planned_in(scaled, number)
            if planning is None:
                return
            yield planning
            if planning.trace is not None:
                return
            tried.append(scaled)

    def _planned_in(self, cuts: Mapping[str, Split], number: int) -> Planning | None:
        """Return the first plan with these cuts at a number; None if the model there cannot be cut so."""
        self._check_predictions(number)
        sized, request = self._at(number), self.question.request
        try:
            prepared = sized.prepared.in_parts(cuts)
        except UsageError:
            return None
        first = FirstPlan(baseline_of(sized.prepared.graph).time, self.observe, request.max_overhead)
        quick = replace(request, split=False).in_time(SHARE_OF_TIME)
        return self._plan(Sized(sized.value, prepared), quick, first)

    def _has_plan(self, number: int) -> bool:
        request = self.question.request
        if request.split:  # parts are cut from the model as read
            self._check_predictions(number)
        sized = self._at(number)
        first = FirstPlan(baseline_of(sized.prepared.graph).time, self.observe, request.max_overhead)
        # The first plan need not have addresses, or an allocator, that fit; and each division has a first one.
        planning = self._plan(sized, request, self.observe if self._plans_differ else first)
        self._plans[number] = planning
        if first.has_enough and not self._plans_differ:
            self._ended_early.add(number)
        self._interrupted = planning.solution.interrupted
        return planning.trace is not None

    def _run_on(self, number: int) -> None:
        """Run the planner on from its first plan, on the model as read; with split, in its parts."""
        request = self.question.request
        if request.holds_more_than_peak:
            return
        sized, known = self._at(number), self._plans[number]
        if known.prepared is not sized.prepared and known.schedule is not None and not request.split:
            known = self._plans[number] = plan_again(known, sized.prepared, known.schedule)
            self._ended_early.add(number)
        if number not in self._ended_early or self._interrupted:
            return
        try:
            planning = self._plan(sized, request, self.observe, (known.prepared.options.cuts,) if request.split else ())
        except KeyboardInterrupt:
            self._interrupted = True
            return
        self._interrupted = planning.solution.interrupted
        assert known.trace is not None
        if planning.trace is None or planning.trace.time > known.trace.time:
            if request.split:  # a plan of other parts proves nothing of these
                return
            planning = replace(planning, solution=with_plan_of(planning.solution, known.solution))
        self._plans[number] = planning

    def _plan(
        self, sized: Sized, request: Request, observer: Observer, former: Iterable[Mapping[str, Split]] = ()
    ) -> Planning:
        observe = Prefixed(observer, f"{self.question.dim}={sized.value} · ")
        observe.phase("planning")
        return plan(sized.prepared, request, observe, former=former)

    def _sized(self, number: int) -> Sized | None:
        return self._at(number) if number else None

    def _planning(self, fitting: int) -> Planning:
        """Return the plan at `fitting`, or the refusal at the smallest value.

        The plan is the plain run if that fits.
        """
        number = max(fitting, 1)
        if number in self._plans:
            return self._plans[number]
        request = self.question.request
        if not fitting:
            return self._plan(self._at(number), request, self.observe)
        plain_run = self._plan(self._at(number), replace(request, planner=PlannerChoice("keep_all")), self.observe)
        return replace(plain_run, request=request)

    def _refused(self) -> tuple[tuple[int, Status], ...]:
        multiple = self.question.multiple_of
        refused = {number: plan.status for number, plan in self._plans.items() if plan.trace is None}
        return tuple((number * multiple, refused[number]) for number in sorted(refused))

    def _is_monotone(self) -> bool:
        peaks = [self._plain_peaks[value] for value in sorted(self._plain_peaks)]
        return peaks == sorted(peaks)


def largest(
    holds: Callable[[int], bool],
    known: int,
    most: int,
    guess: Callable[[int, int], int | None] = lambda low, high: None,
) -> int:
    """Return the largest number up to `most` for which `holds` is true.

    `holds` is false for all larger numbers.

    Args:
        holds: a condition that is called as rarely as possible.
        known: a number for which `holds` is true.
        most: the largest number of interest.
        guess: estimates the result from the largest number known to hold and the smallest known not to (`most` + 1 for
            none); None without an estimate.
    """
    low, high, guesses, step = known, most + 1, 0, 1
    while low + 1 < high:
        aim = guess(low, high)
        is_open = high > most  # nothing failed so far
        guesses = 0 if aim is None or is_open else guesses + 1
        # Double until one fails, then bisect.
        number = min(max(1, 2 * low), most) if is_open else (low + high) // 2
        if aim is not None and (is_open or guesses % _GUESSES):
            if low < aim < high:
                step = 1
            else:
                # The result most likely lies right beside an end; look further and further from it.
                aim, step = low + step if aim <= low else high - step, 2 * step
            if low < aim < high:
                number = min(aim, max(1, _FARTHEST * low)) if is_open else aim
        if holds(number):
            low = number
        else:
            high = number
    return low


def _crossing(measured: Mapping[int, int], budget_bytes: int, low: int, high: int) -> int | None:
    """Return the number at which a line through two measurements crosses the budget.

    The number is rounded down; None without a line.

    Args:
        measured: bytes at some numbers.
        budget_bytes: the height at which the line crosses.
        low: a number that fits.
        high: a number that does not fit, or the end; the line goes through the two measured numbers nearest to the
            crossing.
    """
    numbers = sorted(measured)
    nearest = [*[n for n in numbers if n <= low][-2:], *[n for n in numbers if n >= high][:1]][-2:]
    if len(nearest) < 2:
        return None
    first, second = nearest
    growth = measured[second] - measured[first]
    return first + (budget_bytes - measured[first]) * (second - first) // growth if growth > 0 else None
