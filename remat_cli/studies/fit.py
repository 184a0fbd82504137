"""The largest value of a dimension that fits a budget: which batch size can be trained, with and without a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from remat_cli.bounds import largest_working_set
from remat_cli.errors import GraphError, UsageError
from remat_cli.planners.keep_all import KeepAll
from remat_cli.prepare import Prepared
from remat_cli.problem import Observer, Planner, Status
from remat_cli.settings import Setting, parts
from remat_cli.solve import Solution, baseline_of, solve
from remat_cli.studies.budget_search import within_overhead
from remat_cli.studies.progress import Prefixed

# Graphs that are kept ready: those between which a binary search goes back and forth.
_KEPT_READY = 4


@dataclass(frozen=True)
class Sized:
    """A model at one value of the dimension.

    Attributes:
        value: of the dimension.
        prepared: the graph that is planned.
    """

    value: int
    prepared: Prepared

    @property
    def plain_peak_bytes(self) -> int:
        """What the plain run needs."""
        return baseline_of(self.prepared.graph).peak_bytes

    @property
    def least_bytes(self) -> int:
        """Less than that no plan in any order needs."""
        return largest_working_set(self.prepared.graph).bytes


@dataclass(frozen=True)
class Question:
    """What is searched.

    Attributes:
        dim: name of the dimension.
        budget_bytes: what the plan must fit.
        max_overhead: of the plan, as a share of the plain run's time; None: any.
        multiple_of: values are multiples of this.
        at_most: no larger value is tried.
    """

    dim: str
    budget_bytes: int
    max_overhead: Fraction | None = None
    multiple_of: int = 1
    at_most: int = 1 << 20


@dataclass(frozen=True)
class Fit:
    """The largest values that fit.

    Attributes:
        question: what was searched.
        smallest: at the smallest value that is allowed.
        plain: the largest value whose plain run fits; None where there is none.
        found: the largest value for which a plan was found; None where there is none.
        limit: the largest value at which the largest working set fits: beyond it no plan in any order does. None where
            there is none.
        solution: the plan at `found`; without one, the refusal at the smallest value that was tried.
        refused: values for which no plan was found, ascending, and how each of them ended.
        is_monotone: among all values that were looked at, the plain run never needed less memory at a larger one.
        interrupted: the user stopped the search.
    """

    question: Question
    smallest: Sized
    plain: Sized | None
    found: Sized | None
    limit: Sized | None
    solution: Solution
    refused: tuple[tuple[int, Status], ...] = ()
    is_monotone: bool = True
    interrupted: bool = False

    @property
    def shown(self) -> Sized:
        """What `solution` is about."""
        return self.found or self.smallest

    @property
    def limit_is_proven(self) -> bool:
        """Whether the value after `limit` was looked at, and not one that is no longer allowed."""
        limit = 0 if self.limit is None else self.limit.value
        return limit + self.question.multiple_of <= self.question.at_most

    @property
    def reaches_end(self) -> bool:
        """Whether the largest value that was allowed fits, so that larger ones may fit too."""
        return self.found is not None and self.found.value + self.question.multiple_of > self.question.at_most


def fit(
    question: Question, prepare_at: Callable[[int], Prepared], planner: Planner, observe: Observer | None = None
) -> Fit:
    """Search the largest value that fits: in steps that double, then by bisection.

    That takes memory to grow with the value, which is checked for the values that are looked at. The planner is asked
    only for values whose plain run does not fit, and whose largest working set does.

    Args:
        question: what is searched.
        prepare_at: reads the model at a value of the dimension.
        planner: is asked for the plans.
        observe: is told how far the search is.

    Raises:
        UsageError: no value is allowed, no memory depends on the dimension, or the model cannot be read with it.
        GraphError: the model cannot be read at a value that had to be looked at.
        PlannerRefuses: the planner cannot take this graph.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    if question.at_most < question.multiple_of:
        raise UsageError(
            f"no multiple of {question.multiple_of} is at most {question.at_most}",
            hint="give a larger upper limit, or a smaller multiple",
        )
    search = _Search(question, prepare_at, planner, observe or Observer())
    return search.run()


@dataclass
class _Search:
    """Counts in multiples: number n stands for the value n * multiple_of, number 0 for none."""

    question: Question
    prepare_at: Callable[[int], Prepared]
    planner: Planner
    observe: Observer
    _plain_peaks: dict[int, int] = field(default_factory=dict)
    _plans: dict[int, Solution] = field(default_factory=dict)
    _interrupted: bool = False

    def __post_init__(self) -> None:
        self._at = lru_cache(maxsize=_KEPT_READY)(self._read)

    def run(self) -> Fit:
        budget, most = self.question.budget_bytes, self.question.at_most // self.question.multiple_of
        plain = largest(lambda number: self._at(number).plain_peak_bytes <= budget, 0, most)
        self._check_memory_depends(plain)
        limit = largest(lambda number: self._at(number).least_bytes <= budget, plain, most)
        try:
            found = largest(self._has_plan, plain, limit)
        except KeyboardInterrupt:
            found = max((number for number, plan in self._plans.items() if plan.trace is not None), default=plain)
            if found == 0:
                raise
            self._interrupted = True
        return Fit(
            self.question,
            self._at(1),
            self._sized(plain),
            self._sized(found),
            self._sized(limit),
            self._solution(found),
            self._refused(),
            self._is_monotone(),
            self._interrupted,
        )

    def _read(self, number: int) -> Sized:
        value = number * self.question.multiple_of
        self.observe.phase(f"reading the model at {self.question.dim}={value}")
        try:
            sized = Sized(value, self.prepare_at(value))
        except (GraphError, UsageError) as error:
            # What is wrong with the call or the file shows at the first value; what a value breaks, at any.
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
        self._plain_peaks[value] = sized.plain_peak_bytes
        return sized

    def _check_memory_depends(self, plain: int) -> None:
        """Every value fits: say so where that is because the dimension changes nothing."""
        first, last = (self.question.multiple_of * number for number in (1, plain))
        if plain > 1 and last == max(self._plain_peaks) and self._plain_peaks[first] == self._plain_peaks[last]:
            raise UsageError(
                f"no memory depends on {self.question.dim!r}: the plain run needs as much at {last} as at {first}",
                hint="search another dimension",
            )

    def _has_plan(self, number: int) -> bool:
        if self._interrupted:
            return False
        sized = self._at(number)
        solution = within_overhead(self._solve(sized, self.planner), self.question.max_overhead)
        self._plans[number] = solution
        self._interrupted = solution.interrupted
        return solution.trace is not None

    def _solve(self, sized: Sized, planner: Planner) -> Solution:
        problem = sized.prepared.problem(self.question.budget_bytes)
        observe = Prefixed(self.observe, f"{self.question.dim}={sized.value} · ")
        observe.phase("planning")
        return solve(problem, planner, observe)

    def _sized(self, number: int) -> Sized | None:
        return self._at(number) if number else None

    def _solution(self, found: int) -> Solution:
        """Return the plan at `found`, the plain run where that fits; or the refusal at the smallest value."""
        number = max(found, 1)
        if number in self._plans:
            return self._plans[number]
        return self._solve(self._at(number), KeepAll() if found else self.planner)

    def _refused(self) -> tuple[tuple[int, Status], ...]:
        multiple = self.question.multiple_of
        refused = {number: plan.status for number, plan in self._plans.items() if plan.trace is None}
        return tuple((number * multiple, refused[number]) for number in sorted(refused))

    def _is_monotone(self) -> bool:
        peaks = [self._plain_peaks[value] for value in sorted(self._plain_peaks)]
        return peaks == sorted(peaks)


def largest(holds: Callable[[int], bool], known: int, most: int) -> int:
    """Return the largest number up to `most` for which it holds: it does for `known`, and from some number on never."""
    low, high = known, most + 1
    while low + 1 < high:
        # As long as nothing failed, double; then halve what is between.
        number = min(max(1, 2 * low), most) if high > most else (low + high) // 2
        if holds(number):
            low = number
        else:
            high = number
    return low
