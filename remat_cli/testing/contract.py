"""The contract of planners: what each keeps, whoever wrote it; remat holds its own planners to the same checks.

A check takes the name of a planner, and raises `ContractBroken` or whatever the planner raises. It returns in words on
what the planner was tried; empty where the check does not concern it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from tempfile import TemporaryFile
from typing import Protocol

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_cli.config import PlannerChoice
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Observer, Planner, PlanResult, Problem, Scope, Status
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners import OFFLOADERS
from remat_cli.planners.plugins import planner_names
from remat_cli.planners.shortest_path.planner import ShortestPath
from remat_cli.planning.step_views import with_early_updates
from remat_cli.reports.terminal.planner_cards import planner_cards
from remat_cli.testing.graphs import (
    diamond,
    in_place,
    problems,
    small_graphs,
    training_chain,
    training_graphs,
    training_unet,
    updating_chain,
    updating_graphs,
)

Check = Callable[[str], str]


class RandomCheck(Protocol):
    """A check on random problems, by default on as many as planners of other packages are tried on."""

    def __call__(self, name: str, examples: int = ...) -> str:
        """Check the planner of a name."""


_HEADINGS = ("Source", "Takes", "Searches", "Proves", "Complexity")
_UPDATING = updating_graphs(max_forward_ops=3).map(with_early_updates)
_TINY = training_graphs(max_forward_ops=3) | small_graphs(max_ops=6)
_SMALL = training_graphs(max_forward_ops=8) | small_graphs() | _UPDATING
# Some planners cannot do without a link; to the others it must make no difference.
_LINKS = st.none() | st.builds(Link, st.sampled_from([Fraction(1, 3), Fraction(2)]), st.sampled_from(Duplex))


class ContractBroken(AssertionError):
    """A planner breaks the contract."""


def _hold(holds: object, otherwise: str) -> None:
    if not holds:
        raise ContractBroken(otherwise)


# What planners are tried on


def _linked(problems: st.SearchStrategy[Problem]) -> st.SearchStrategy[Problem]:
    """Return the same problems on devices with links to the host of several kinds, which plans may use, and without."""

    def with_link(problem: Problem, link: Link | None, offload: bool) -> Problem:
        return replace(problem, link=link, offload=offload and link is not None)

    return st.builds(with_link, problems, _LINKS, st.booleans())


def _tight(graph: Graph, missing_bytes: int = 1) -> Problem:
    """Return the problem of a little less than the plain run needs, with a link."""
    return Problem(graph, Budget(baseline_of(graph).peak_bytes - missing_bytes), Link(Fraction(1)))


# Planners see steps with updates as `WholeStep` shows them.
EXAMPLES = tuple(
    _tight(graph, missing)
    for graph in (training_chain(6), training_unet(3), with_early_updates(updating_chain(4)))
    for missing in (1, 3)
)


def starved_options(name: str) -> Mapping[str, object]:
    """Return the options that leave a planner no room to work; empty for one that has no limits."""
    options = {item.name for item in fields(PlannerChoice(name).planner)}
    return next(({limit: 0} for limit in ("candidates", "time_limit") if limit in options), {})


def starved(name: str) -> Planner:
    """Return a planner without any room to work."""
    return PlannerChoice(name).planner(**starved_options(name))


def _as_used(name: str) -> Iterator[Planner]:
    """Yield the planner with its defaults, and starved."""
    yield PlannerChoice(name).built
    if starved_options(name):
        yield starved(name)


def try_on(problems: st.SearchStrategy[Problem], examples: int, check: Callable[[Problem], None]) -> str:
    """Check random problems; the error of one that fails has the smallest such problem as its attribute `problem`."""
    failed: list[Problem] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(problem=problems)
    def tried(problem: Problem) -> None:
        try:
            check(problem)
        except Exception:
            failed.append(problem)  # the last one to fail is the smallest
            raise

    try:
        tried()
    except Exception as error:
        error.problem = failed[-1] if failed else None  # type: ignore[attr-defined]
        raise
    return f"{examples} random problems"


def _solved(problem: Problem, planner: Planner) -> Solution | None:
    """Solve, and see that the judge refutes nothing; None where the planner refuses the graph."""
    try:
        solution = solve(problem, planner)
    except PlannerRefuses:
        return None
    _hold(not solution.warnings, "; ".join(solution.warnings))
    return solution


def _plan(problem: Problem, planner: Planner) -> PlanResult | str:
    try:
        return planner.plan(problem, Observer())
    except PlannerRefuses as refusal:
        return refusal.message


# Claims


def claims_are_true(name: str, examples: int = 25) -> str:
    """The judge refutes no claim, and tensors move to the host only where they may."""

    def check(problem: Problem) -> None:
        for planner in _as_used(name):
            solution = _solved(problem, planner)
            if solution is not None and solution.trace is not None and solution.trace.transfers:
                may_move = PlannerChoice(name).can_offload if problem.offload else name in OFFLOADERS
                _hold(may_move, "the plan moves tensors to the host, though it was not asked to")

    return try_on(_linked(problems(_SMALL)), examples, check)


def proofs_hold(name: str, examples: int = 25) -> str:
    """The best plan of all, found by exhaustive search, contradicts no proof."""

    def check(problem: Problem) -> None:
        best = solve(problem, ShortestPath(max_ops=40))
        solution = _solved(problem, PlannerChoice(name).built)
        schedule = best.result.schedule
        if solution is None or best.trace is None or schedule is None or best.status is not Status.OPTIMAL:
            return
        scopes = [Scope.ANY_PLAN, Scope.ANY_ORDER]
        if tuple(dict.fromkeys(schedule.computes)) == tuple(op.name for op in problem.graph.ops):
            scopes.append(Scope.FIXED_ORDER)
        nothing_fits = solution.status is Status.INFEASIBLE and solution.scope in scopes
        _hold(not nothing_fits, f"it proves that no plan fits ({solution.scope}), but one does: {schedule.computes}")
        time = best.trace.time
        for bound in solution.result.bounds:
            holds = bound.scope not in scopes or bound.time <= time
            _hold(holds, f"it proves that no plan ({bound.scope}) takes less than {bound.time}; one takes {time}")

    return try_on(problems(_TINY), examples, check)


def same_twice(name: str, examples: int = 20) -> str:
    """The same problem gives the same result again."""

    def check(problem: Problem) -> None:
        for planner in _as_used(name):
            again = replace(problem, graph=replace(problem.graph))
            _hold(_plan(problem, planner) == _plan(again, planner), "asked twice, it gives two results")

    return try_on(_linked(problems(_TINY)), examples, check)


def starved_is_unknown(name: str) -> str:
    """Without room to work, a planner finds and proves nothing."""
    options = starved_options(name)
    for problem in EXAMPLES if options else ():
        status = solve(problem, starved(name)).status
        _hold(status is Status.UNKNOWN, f"with {next(iter(options))}: 0 it says {status}, not unknown")
    return f"{next(iter(options))}: 0" if options else ""


def refusal_names_another(name: str) -> str:
    """A planner that refuses a graph names one in its hint that takes it."""
    refused = 0
    for problem in map(_tight, (diamond(), in_place())):
        try:
            PlannerChoice(name).built.plan(problem, Observer())
        except PlannerRefuses as refusal:
            refused += 1
            named = [other for other in planner_names() if other in refusal.hint]
            _hold(named, f"the hint of its refusal names no planner that takes the graph: {refusal.hint!r}")
            for other in named:
                PlannerChoice(other).built.plan(problem, Observer())
    return f"{refused} refusals" if refused else ""


# Form


def prints_nothing(name: str) -> str:
    """A planner writes nothing to stdout or stderr."""
    with _written() as written:
        for problem in EXAMPLES:
            _plan(problem, PlannerChoice(name).built)
    _hold(not written, f"it writes to stdout or stderr: {written[:1]}")
    return f"{len(EXAMPLES)} problems"


@contextmanager
def _written() -> Iterator[list[str]]:
    """Collect writes to stdout and stderr, by Python or by libraries, in a list."""
    lines: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        try:
            for number in kept:
                os.dup2(file.fileno(), number)
            with redirect_stdout(file), redirect_stderr(file):
                yield lines
        finally:
            file.flush()
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
        file.seek(0)
        lines += file.read().splitlines()


def options_are_fields(name: str) -> str:
    """Options are the fields of a frozen dataclass, each with a default; limits are taken."""
    planner = PlannerChoice(name).built
    try:
        planner.anything = 1  # type: ignore[attr-defined]
    except FrozenInstanceError:
        pass
    else:
        raise ContractBroken("its fields can be changed: write @dataclass(frozen=True)")
    _hold(replace(planner) == planner, "a copy of it is not equal to it")
    options = starved_options(name)
    _hold(not options or starved(name) != planner, f"it does not take {dict(options)}")
    _hold(not options or starved(name) == PlannerChoice(name, options).built, f"a config cannot set {dict(options)}")
    return ", ".join(item.name for item in fields(planner)) or "none"


def docstring_tells(name: str) -> str:
    """The class docstring has the headings that `remat planners` shows, and a meaning for each option."""
    (card,) = planner_cards({name: PlannerChoice(name).planner})
    missing = [heading for heading in _HEADINGS if heading not in card.facts]
    _hold(not missing, f"its docstring lacks {', '.join(f'{heading}:' for heading in missing)}")
    unsaid = [option.name for option in card.options if not option.meaning]
    _hold(not unsaid, f"its docstring has no meaning of {', '.join(unsaid)}, under Attributes:")
    return f"{len(_HEADINGS)} headings"


def refuses_negative_work(name: str) -> str:
    """Less than no work is refused, with the option and its value."""
    if not PlannerChoice(name).has("work_limit"):
        return ""
    try:
        _ = PlannerChoice(name, {"work_limit": -1.0}).built
    except UsageError as error:
        _hold("work_limit is -1" in str(error), f"the refusal of a negative work_limit says only {str(error)!r}")
        return "work_limit: -1"
    raise ContractBroken("it takes a work_limit of -1")


RANDOM_CHECKS: Mapping[str, RandomCheck] = {
    "claims are true": claims_are_true,
    "the same problem twice gives the same result": same_twice,
}
FIXED_CHECKS: Mapping[str, Check] = {
    "starved of its limits it says unknown": starved_is_unknown,
    "a refusal names a planner that takes the graph": refusal_names_another,
    "nothing is printed": prints_nothing,
    "options are fields of a frozen dataclass": options_are_fields,
    "the docstring tells what it does": docstring_tells,
    "less than no work is refused": refuses_negative_work,
}


# Across processes


def plans_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the results of planners on the examples, as text."""
    return {name: [str(_plan(problem, PlannerChoice(name).built)) for problem in EXAMPLES] for name in names}


def changed_by_hash_seed(names: Sequence[str]) -> list[str]:
    """Return the planners whose results depend on how Python hashes names: they differ from process to process."""
    command = [sys.executable, "-m", "remat_cli.testing", "--print-plans", *names]
    runs = [
        subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in "12"
    ]
    # What a planner prints comes before.
    first, second = (json.loads(run.communicate()[0].splitlines()[-1]) for run in runs)
    return [name for name in names if first[name] != second[name]]


def same_in_every_process(name: str) -> str:
    """Results do not depend on how Python hashes names."""
    _hold(not changed_by_hash_seed((name,)), "with another PYTHONHASHSEED it gives another result: sort the sets")
    return "2 processes"


# Beside those, what planners of other packages are tried on: those of remat are held to an oracle of their own.
ALL_CHECKS: Mapping[str, Check] = {
    **RANDOM_CHECKS,
    **FIXED_CHECKS,
    "an exhaustive search contradicts no proof": proofs_hold,
    "results do not depend on how Python hashes names": same_in_every_process,
}
