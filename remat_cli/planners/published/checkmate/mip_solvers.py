"""The solvers of linear programs over 0-1 variables, silent and stoppable.

HiGHS runs in this process, CBC, which comes with PuLP, in a process of its own.

OR-Tools brings a HiGHS of its own, which cannot be stopped: up to 9.15, `math_opt.solve` takes a start for it, but
ignores callbacks and interrupters without a word, and fails if the number of threads is given.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from re import findall
from shutil import which
from signal import SIGKILL
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.problem import Status
from remat_cli.errors import UsageError
from remat_cli.planners.published.checkmate.options import SolverName
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.solver_thread import SolverThread

Floats = NDArray[np.float64]

_HIGHS_PACKAGE = "highspy>=1.7,<1.15"
_TOO_NEW = (1, 15)
# Seconds between two checks of a process, and seconds to wait for a stopped solver.
_LOOK = 0.01
_PATIENCE = 10.0
# Seconds beyond its limit in which CBC may write its solution; its linear programs do not look at the clock.
_GRACE = 1.0
# Runs CBC. Stdin stays open as long as the process that wants the solution lives. If stdin closes before CBC has ended,
# the script kills CBC, and removes the folder with its files.
_GUARDED = """
folder=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- & solver=$!
(read -r _ <&3; trap '' TERM; kill -9 $solver; rm -rf "$folder") & guard=$!
wait $solver; code=$?
kill $guard 2>/dev/null
exit $code
"""


def installed_solver(wanted: SolverName) -> SolverName:
    """Return the solver to use.

    Raises:
        UsageError: the wanted solver is not installed, or no solver is, or HiGHS is too new.
    """
    installed = [name for name, is_there in _IS_THERE.items() if is_there()]
    if wanted in installed:
        return _checked(wanted)
    if wanted is not SolverName.AUTO:
        package = _HIGHS_PACKAGE if wanted is SolverName.HIGHS else "pulp[cbc]"
        other = f", or use solver: {installed[0].value}" if installed else ""
        raise UsageError(f"the solver {wanted.value!r} is not installed", hint=f"pip install '{package}'{other}")
    if not installed:
        raise UsageError("no solver for integer programs is installed", hint=f"pip install '{_HIGHS_PACKAGE}'")
    return _checked(installed[0])


def _checked(solver: SolverName) -> SolverName:
    release = version("highspy") if solver is SolverName.HIGHS else ""
    if release and tuple(map(int, findall(r"\d+", release)[:2])) >= _TOO_NEW:
        raise UsageError(
            f"highspy {release} is too new: it writes to stdout, among the results",
            hint=f"pip install '{_HIGHS_PACKAGE}', or use solver: {SolverName.CBC.value}",
        )
    return solver


def _has_highs() -> bool:
    return find_spec("highspy") is not None


def _cbc_path() -> str | None:
    """Return the path of CBC: PuLP's own, or one on the PATH."""
    from pulp import PULP_CBC_CMD

    paths = (getattr(PULP_CBC_CMD, "pulp_cbc_path", None), "cbc")
    return next((path for path in paths if path and which(path)), None)


_IS_THERE: Mapping[SolverName, Callable[[], bool]] = {
    SolverName.HIGHS: _has_highs,
    SolverName.CBC: lambda: _cbc_path() is not None,
}


@dataclass(frozen=True, eq=False)
class MipRows:
    """Constraints: sum(coefficient * variable) >= at_least.

    Attributes:
        start: [rows + 1] start of each row in `variable` and `coefficient`.
        variable: [entries] numbers of variables, distinct within a row.
        coefficient: [entries] int64.
        at_least: [rows] int64.
    """

    start: Ints
    variable: Ints
    coefficient: Ints
    at_least: Ints

    @classmethod
    def one(cls, terms: Mapping[int, int], at_least: int) -> MipRows:
        """Return a single row from the coefficient of each variable."""
        variable = np.fromiter(terms.keys(), dtype=np.int64, count=len(terms))
        coefficient = np.fromiter(terms.values(), dtype=np.int64, count=len(terms))
        return cls(np.array([0, len(terms)]), variable, coefficient, np.array([at_least], dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence[MipRows]) -> MipRows:
        """Return the rows of all parts, one part after the other."""
        none = np.zeros(0, dtype=np.int64)
        return cls(
            np.cumsum(np.concatenate([[0], *(np.diff(part.start) for part in parts)]), dtype=np.int64),
            np.concatenate([none, *(part.variable for part in parts)]),
            np.concatenate([none, *(part.coefficient for part in parts)]),
            np.concatenate([none, *(part.at_least for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.at_least)


@dataclass(frozen=True, eq=False)
class SolverTask:
    """A program for a solver: minimise costs @ x, where each x is 0 or 1.

    Attributes:
        costs: [variables] float64.
        rows: the constraints.
        limits: limits of the run.
        gap: share of the bound within which a solution ends the run.
        relaxed: let variables take any value from 0 to 1.
        start: [variables] a solution to start from.
    """

    costs: Floats
    rows: MipRows
    limits: Limits
    gap: float = 0.0
    relaxed: bool = False
    start: Floats | None = None


@dataclass(frozen=True, eq=False)
class SolverEnding:
    """The ending of a solver's run.

    Attributes:
        status: optimal (within the gap asked for), feasible, infeasible or unknown.
        values: [variables] values of the best solution; None without a solution.
        bound: lower bound on the objective; -inf without a proof.
        row_duals: [rows] for a relaxation solved to its end: the multiplier of each row.
    """

    status: Status = Status.UNKNOWN
    values: Floats | None = None
    bound: float = -inf
    row_duals: Floats | None = None


class SolverRun:
    """One run of a solver in its own thread.

    Attributes:
        ending: the ending; unknown before the run.
    """

    def __init__(self, solver: SolverName, task: SolverTask) -> None:
        """Prepare a run of an installed solver."""
        self.ending = SolverEnding()
        self._task = task
        self._stop = Event()
        self._thread: SolverThread[Floats] = SolverThread(
            solver.value, self._solve, self._stop.set, task.limits, patience=_PATIENCE
        )
        self._end_of = _ENDS[solver] if len(task.costs) else _end_without_variables

    def run(self, on_solution: Callable[[Floats], None] = lambda values: None) -> SolverEnding:
        """Solve, and pass on each better solution.

        Raises:
            KeyboardInterrupt: Ctrl-C; the solver was stopped after passing on every solution found until then.
        """
        self._thread.run(on_solution)
        return self.ending

    def _solve(self) -> None:
        if self._stop.is_set():
            return
        began, seconds = monotonic(), self._task.limits.seconds
        ending = self._end_of(self._task, self._thread.tell, self._stop)
        is_cut_short = self._stop.is_set() or monotonic() - began >= seconds
        if ending.status is Status.INFEASIBLE and is_cut_short:
            ending = SolverEnding()  # a run cut short proves nothing
        self.ending = ending


def _end_without_variables(task: SolverTask, tell: Callable[[Floats], None], stop: Event) -> SolverEnding:
    """Solve a program that HiGHS refuses, as it has no variables."""
    del tell, stop
    if (task.rows.at_least > 0).any():
        return SolverEnding(Status.INFEASIBLE, bound=inf)
    return SolverEnding(Status.OPTIMAL, np.zeros(0), 0.0, np.zeros(len(task.rows)))


def _end_of_highs(task: SolverTask, tell: Callable[[Floats], None], stop: Event) -> SolverEnding:
    """Run HiGHS, which tells solutions on the way."""
    import highspy

    event = highspy.cb.HighsCallbackType

    def listen(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        """Receive solutions and request the stop, in HiGHS's thread."""
        del message, data
        if kind == event.kCallbackMipImprovingSolution:
            tell(np.array(out.mip_solution))
        if stop.is_set() and into is not None:
            into.user_interrupt = True

    highs = highspy.Highs()
    highs.setCallback(listen, None)
    for activated in (
        event.kCallbackMipImprovingSolution,
        event.kCallbackMipInterrupt,
        event.kCallbackSimplexInterrupt,
        event.kCallbackIpmInterrupt,
    ):
        highs.startCallback(activated)
    options = {
        "output_flag": False,
        "mip_rel_gap": task.gap,
        "threads": task.limits.cores,
        "random_seed": task.limits.seed,
    }
    for name, value in options.items():
        highs.setOptionValue(name, value)
    # Threads belong to the process: without this, HiGHS refuses a number other than the last run's.
    highspy.Highs.resetGlobalScheduler(True)
    highs.passModel(_highs_model(task))
    if task.start is not None:
        numbers = np.arange(len(task.start), dtype=np.int32)
        highs.setSolution(len(numbers), numbers, task.start)
    highs.setOptionValue("time_limit", task.limits.seconds)
    highs.run()
    ended = {
        highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
        highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
        highspy.HighsModelStatus.kUnboundedOrInfeasible: Status.INFEASIBLE,  # no variable is unbounded
        highspy.HighsModelStatus.kTimeLimit: Status.FEASIBLE,
        highspy.HighsModelStatus.kInterrupt: Status.FEASIBLE,
    }
    status, info = ended.get(highs.getModelStatus(), Status.UNKNOWN), highs.getInfo()
    if status is Status.INFEASIBLE:
        return SolverEnding(status, bound=inf)
    bound = float(info.objective_function_value if task.relaxed else info.mip_dual_bound)
    if status is Status.UNKNOWN or info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return SolverEnding(bound=bound)
    solution = highs.getSolution()
    duals = np.array(solution.row_dual) if task.relaxed and status is Status.OPTIMAL else None
    return SolverEnding(status, np.array(solution.col_value), bound, duals)


def _highs_model(task: SolverTask) -> Any:
    import highspy

    model, count, rows = highspy.HighsLp(), len(task.costs), task.rows
    model.num_col_, model.num_row_ = count, len(rows)
    model.col_cost_ = task.costs
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    model.row_lower_, model.row_upper_ = rows.at_least.astype(np.float64), np.full(len(rows), inf)
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_, matrix.index_ = rows.start, rows.variable
    matrix.value_ = rows.coefficient.astype(np.float64)
    if not task.relaxed:
        model.integrality_ = [highspy.HighsVarType.kInteger] * count
    return model


def _end_of_cbc(task: SolverTask, tell: Callable[[Floats], None], stop: Event) -> SolverEnding:
    """Run CBC as a process that can be killed; it tells nothing on the way.

    Its files lie in a folder of their own, and its log is read for the bound.
    """
    del tell
    path, limits = _cbc_path(), task.limits
    assert path is not None
    with TemporaryDirectory(prefix="remat-cbc-") as folder:
        model, start, solution, log = (Path(folder, name) for name in ("model.mps", "start.txt", "end.txt", "log.txt"))
        model.write_text(_mps(task), encoding="ascii")
        options: list[str] = []
        if task.start is not None:
            lines = [f"{number} x{number} {value} 0\n" for number, value in enumerate(task.start.tolist())]
            start.write_text("Stopped on time - objective value 0\n" + "".join(lines), encoding="ascii")
            options = ["-mips", str(start)]
        options += ["-randomSeed", str(limits.seed), "-randomCbcSeed", str(limits.seed)]
        options += ["-sec", str(limits.seconds), "-timeMode", "elapsed"]
        options += ["-ratio", str(task.gap), "-threads", str(limits.cores)]
        options += ["-initialSolve" if task.relaxed else "-solve", "-printingOptions", "all"]
        ended = _run(
            [path, str(model), *options, "-solution", str(solution)], log, folder, limits.deadline + _GRACE, stop
        )
        bound = _logged_bound(log)
        if not ended or not solution.exists():
            return SolverEnding(bound=bound)
        return _cbc_ending(task, solution.read_text(encoding="ascii").splitlines(), bound)


def _mps(task: SolverTask) -> str:
    """Return the program in the MPS format, with columns x0, x1, ... and rows r0, r1, ..."""
    rows = task.rows
    row = np.repeat(np.arange(len(rows)), np.diff(rows.start))
    by_variable = np.argsort(rows.variable, kind="stable")
    entries = list(zip(row[by_variable].tolist(), rows.coefficient[by_variable].tolist(), strict=True))
    starts = np.searchsorted(rows.variable[by_variable], np.arange(len(task.costs) + 1)).tolist()
    columns = (
        [f" x{number} cost {cost!r}", *(f" x{number} r{of} {value}" for of, value in entries[start:end])]
        for number, (cost, (start, end)) in enumerate(zip(task.costs.tolist(), pairwise(starts), strict=True))
    )
    return "\n".join(
        [
            "NAME plan FREE",
            "ROWS",
            " N cost",
            *(f" G r{number}" for number in range(len(rows))),
            "COLUMNS",
            " MARKER 'MARKER' 'INTORG'",
            *chain.from_iterable(columns),
            " MARKER 'MARKER' 'INTEND'",
            "RHS",
            *(f" RHS r{number} {value}" for number, value in enumerate(rows.at_least.tolist())),
            "BOUNDS",
            *(f" UP BND x{number} 1" for number in range(len(task.costs))),
            "ENDATA\n",
        ]
    )


def _cbc_ending(task: SolverTask, lines: Sequence[str], bound: float) -> SolverEnding:
    """Read CBC's file: the status, then number, name, value and dual of each row and column."""
    first, *rest = (line.split() for line in lines)
    if first[0] in ("Infeasible", "Integer"):  # "Integer infeasible"
        return SolverEnding(Status.INFEASIBLE, bound=inf)
    if first[0] != "Optimal" and first[4:5] != ["objective"]:  # "Stopped on time - objective value 3"
        return SolverEnding(bound=bound)
    values, duals = np.zeros(len(task.costs)), np.zeros(len(task.rows))
    for *_, name, value, dual in rest:  # "**" comes first where a row is not kept
        if name.startswith("x"):
            values[int(name[1:])] = float(value)
        else:
            duals[int(name[1:])] = float(dual)
    if first[0] != "Optimal":
        return SolverEnding(Status.FEASIBLE, values, bound)
    if bound == -inf:
        objective = float(task.costs @ values)
        bound = objective - task.gap * abs(objective)  # the optimum itself, within the gap
    return SolverEnding(Status.OPTIMAL, values, bound, duals if task.relaxed else None)


def _run(call: list[str], log: Path, folder: str, give_up_at: float, stop: Event) -> bool:
    """Run CBC until `give_up_at`; return whether it ended by itself.

    If this process is killed, so is CBC.
    """
    has_groups = os.name == "posix"
    guard = ["/bin/sh", "-c", _GUARDED, "sh", folder] if has_groups else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*guard, *call],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=has_groups,  # otherwise Ctrl-C would reach CBC, too
        )
        try:
            while process.poll() is None and not stop.is_set() and monotonic() < give_up_at:
                sleep(_LOOK)
        finally:
            ended = process.poll() is not None
            if has_groups:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, SIGKILL)
            else:
                process.kill()
            process.communicate()
    if ended and process.returncode != 0:
        raise RuntimeError(f"CBC ended with code {process.returncode}")
    return ended


def _logged_bound(log: Path) -> float:
    bound = -inf
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("Lower bound:"):
            bound = float(line.split(":")[1])
    return bound


_ENDS: Mapping[SolverName, Callable[[SolverTask, Callable[[Floats], None], Event], SolverEnding]] = {
    SolverName.HIGHS: _end_of_highs,
    SolverName.CBC: _end_of_cbc,
}
