"""The solvers behind PuLP, silent and stoppable.

HiGHS runs in this process, CBC in a process of its own. PuLP's own runs cannot be interrupted, report nothing on the
way, and give HiGHS a model entry by entry. So its solver classes are extended here; models and statuses stay PuLP's.

OR-Tools brings a HiGHS of its own, which cannot be stopped: up to 9.15, `math_opt.solve` takes a start for it, but
ignores callbacks and interrupters without a word, and fails if the number of threads is given.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from math import inf
from pathlib import Path
from re import findall
from signal import SIGKILL
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic, sleep
from typing import Any

import numpy as np
import pulp
from numpy.typing import NDArray

from remat_cli.core.problem import Status
from remat_cli.errors import UsageError
from remat_cli.planners.published.checkmate.options import SolverName
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.solver_thread import SolverThread

Floats = NDArray[np.float64]

_STATUS = {
    pulp.LpSolutionOptimal: Status.OPTIMAL,
    pulp.LpSolutionIntegerFeasible: Status.FEASIBLE,
    pulp.LpSolutionInfeasible: Status.INFEASIBLE,
    pulp.LpSolutionNoSolutionFound: Status.UNKNOWN,
}
_HIGHS_PACKAGE = "highspy>=1.7,<1.15"
_TOO_NEW = (1, 15)
# Seconds between two checks of a process, and seconds to wait for a stopped solver.
_LOOK = 0.01
_PATIENCE = 10.0
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
    return bool(pulp.HiGHS().available())


def _cbc_path() -> str | None:
    """Return the path of CBC: PuLP's own, or one on the PATH."""
    paths = (getattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", None), "cbc")
    return next((path for path in paths if path and pulp.COIN_CMD(path=path, msg=False).available()), None)


_IS_THERE: Mapping[SolverName, Callable[[], bool]] = {
    SolverName.HIGHS: _has_highs,
    SolverName.CBC: lambda: _cbc_path() is not None,
}


class SolverRun:
    """One run of a solver on a problem, in its own thread.

    Attributes:
        status: optimal (within the gap asked for), feasible, infeasible or unknown.
        values: [variables] values of the best solution, in the order of the variables' names; None without a solution.
        bound: lower bound on the objective; -inf without a proof.
        row_duals: [rows] for a relaxation: the multiplier of each row.
    """

    def __init__(
        self,
        problem: pulp.LpProblem,
        solver: SolverName,
        limits: Limits,
        *,
        gap: float = 0.0,
        relaxed: bool = False,
        start: Floats | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            problem: the problem to minimise; its variables' names sort in the order of `values`.
            solver: an installed solver.
            limits: limits of the run.
            gap: share of the bound within which a solution ends the run.
            relaxed: let integer variables take any value.
            start: [variables] a solution to start from.
        """
        self.status = Status.UNKNOWN
        self.values: Floats | None = None
        self.bound = -inf
        self.row_duals: Floats | None = None
        self._problem = problem
        self._relaxed = relaxed
        self._stop = Event()
        self._seconds = limits.seconds
        self._thread: SolverThread[Floats] = SolverThread(
            solver.value, self._solve, self._stop.set, limits, patience=_PATIENCE
        )
        make = _Highs if solver is SolverName.HIGHS else _Cbc
        self._solver = make(limits, gap, relaxed, start, self._thread.tell, self._stop)

    def run(self, on_solution: Callable[[Floats], None] = lambda values: None) -> None:
        """Solve, and pass on each better solution.

        Raises:
            KeyboardInterrupt: Ctrl-C; the solver was stopped after passing on every solution found until then.
        """
        self._thread.run(on_solution)

    def _solve(self) -> None:
        if not self._stop.is_set():
            began = monotonic()
            self._problem.solve(self._solver)
            self._read(monotonic() - began)

    def _read(self, seconds: float) -> None:
        problem = self._problem
        status = _STATUS.get(problem.sol_status, Status.UNKNOWN)
        if problem.status == pulp.LpStatusInfeasible:  # CBC's "integer infeasible" is not in sol_status
            status = Status.INFEASIBLE
        if status is Status.INFEASIBLE and (self._stop.is_set() or seconds >= self._seconds):
            status = Status.UNKNOWN  # a run cut short proves nothing
        has_solution = status in (Status.OPTIMAL, Status.FEASIBLE) and self._solver.has_solution(problem)
        self.status = status if has_solution or status is Status.INFEASIBLE else Status.UNKNOWN
        if has_solution:
            self.values = np.array([variable.varValue for variable in problem.variables()])
            if self._relaxed and self.status is Status.OPTIMAL:
                self.row_duals = np.array([row.pi for row in problem.constraints()])
        self.bound = self._solver.bound(problem) if self.status is not Status.INFEASIBLE else inf


class _Highs(pulp.HiGHS):  # type: ignore[misc]  # PuLP has no types
    """HiGHS with a start, solutions on the way, and a stop on request."""

    def __init__(
        self,
        limits: Limits,
        gap: float,
        relaxed: bool,
        start: Floats | None,
        tell: Callable[[Floats], None],
        stop: Event,
    ) -> None:
        from highspy import cb

        self._event = cb.HighsCallbackType
        super().__init__(
            mip=not relaxed,
            msg=False,
            gapRel=gap,
            threads=limits.cores,
            timeLimit=limits.seconds,
            callbackTuple=(self._listen, None),
            callbacksToActivate=[
                self._event.kCallbackMipImprovingSolution,
                self._event.kCallbackMipInterrupt,
                self._event.kCallbackSimplexInterrupt,
                self._event.kCallbackIpmInterrupt,
            ],
            random_seed=limits.seed,
        )
        self._start = start
        self._tell = tell
        self._stop = stop

    def buildSolverModel(self, lp: pulp.LpProblem) -> None:
        """Pass the whole model to HiGHS at once."""
        import highspy

        variables, rows = lp.variables(), lp.constraints()
        model = highspy.HighsLp()
        for index, variable in enumerate(variables):
            variable.index = index
        for index, row in enumerate(rows):
            row.index = index
        model.num_col_, model.num_row_ = len(variables), len(rows)
        model.col_cost_ = np.array([lp.objective.get(variable, 0.0) for variable in variables])
        model.col_lower_ = np.array([variable.lowBound for variable in variables])
        model.col_upper_ = np.array([variable.upBound for variable in variables])
        model.row_lower_ = np.array([-inf if (low := row.getLb()) is None else low for row in rows])
        model.row_upper_ = np.array([inf if (high := row.getUb()) is None else high for row in rows])
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.cumsum([0, *(len(row) for row in rows)])
        matrix.index_ = np.array([variable.index for row in rows for variable in row.keys()])  # noqa: SIM118
        matrix.value_ = np.array([coefficient for row in rows for coefficient in row.values()], dtype=np.float64)
        if self.mip:
            model.integrality_ = [highspy.HighsVarType.kInteger] * len(variables)
        lp.solverModel.passModel(model)

    def callSolver(self, lp: pulp.LpProblem) -> None:
        """Solve from the given start."""
        import highspy

        # Threads belong to the process: without this, HiGHS refuses a number other than the last run's.
        highspy.Highs.resetGlobalScheduler(True)
        if self._start is not None:
            numbers = np.arange(len(self._start), dtype=np.int32)
            lp.solverModel.setSolution(len(numbers), numbers, self._start)
        lp.solverModel.run()

    def has_solution(self, lp: pulp.LpProblem) -> bool:
        """Tell whether there is a solution.

        PuLP claims one for every interrupted run.
        """
        return bool(lp.solverModel.getInfo().primal_solution_status == 2)

    def bound(self, lp: pulp.LpProblem) -> float:
        """Return the proven bound on the objective."""
        info = lp.solverModel.getInfo()
        return float(info.mip_dual_bound if self.mip else info.objective_function_value)

    def _listen(self, event: Any, message: str, out: Any, into: Any, data: Any) -> None:
        """Receive solutions and request the stop, in HiGHS's thread."""
        del message, data
        if event == self._event.kCallbackMipImprovingSolution:
            self._tell(np.array(out.mip_solution))
        if self._stop.is_set() and into is not None:
            into.user_interrupt = True


class _Cbc(pulp.COIN_CMD):  # type: ignore[misc]  # PuLP has no types
    """CBC as a process that can be killed.

    Its files lie in a folder of their own, and its log is read for the bound.
    """

    def __init__(
        self,
        limits: Limits,
        gap: float,
        relaxed: bool,
        start: Floats | None,
        tell: Callable[[Floats], None],
        stop: Event,
    ) -> None:
        del tell  # CBC reports nothing on the way
        super().__init__(mip=not relaxed, msg=False, path=_cbc_path())
        self._limits = limits
        self._gap = gap
        self._start = start
        self._stop = stop
        self._bound = -inf

    def actualSolve(self, lp: pulp.LpProblem) -> int:
        """Solve from the given start."""
        with TemporaryDirectory(prefix="remat-cbc-") as folder:
            model, solution, log = (Path(folder, name) for name in ("model.mps", "solution.txt", "log.txt"))
            variables, names, row_names, _ = lp.writeMPS(str(model), rename=1)
            options = self._options()
            if self._start is not None:
                options = ["-mips", self._write_start(Path(folder, "start.txt"), names.values()), *options]
            ended = self._run([str(model), *options, "-solution", str(solution)], log, folder)
            self._read_log(log)
            if not ended or not solution.exists():
                lp.assignStatus(pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound)
                return int(pulp.LpStatusNotSolved)
            status, values, _, row_duals, _, sol_status = self.readsol_MPS(
                str(solution), lp, variables, names, row_names
            )
        lp.assignVarsVals(values)
        # CBC's files leave out zeros.
        lp.assignConsPi({row.name: row_duals.get(row.name, 0.0) for row in lp.constraints()})
        lp.assignStatus(status, sol_status)
        return int(status)

    def has_solution(self, lp: pulp.LpProblem) -> bool:
        """Tell whether there is a solution."""
        return lp.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)

    def bound(self, lp: pulp.LpProblem) -> float:
        """Return the proven bound on the objective.

        The bound of an optimum is the optimum itself, within the gap.
        """
        if self._bound == -inf and lp.sol_status == pulp.LpSolutionOptimal:
            objective = float(pulp.value(lp.objective))
            return objective - self._gap * abs(objective)
        return self._bound

    def _options(self) -> list[str]:
        limits = self._limits
        seeds = ["-randomSeed", str(limits.seed), "-randomCbcSeed", str(limits.seed)]
        clock = ["-sec", str(limits.seconds), "-timeMode", "elapsed"]
        search = ["-ratio", str(self._gap), "-threads", str(limits.cores)]
        return [*seeds, *clock, *search, "-solve" if self.mip else "-initialSolve", "-printingOptions", "all"]

    def _write_start(self, path: Path, names: Iterable[str]) -> str:
        assert self._start is not None
        values = enumerate(zip(names, self._start.tolist(), strict=True))
        lines = [f"{number} {name} {value} 0\n" for number, (name, value) in values]
        path.write_text("Stopped on time - objective value 0\n" + "".join(lines), encoding="ascii")
        return str(path)

    def _run(self, arguments: list[str], log: Path, folder: str) -> bool:
        """Run CBC; return whether it ended by itself.

        If this process is killed, so is CBC.
        """
        has_groups = os.name == "posix"
        guard = ["/bin/sh", "-c", _GUARDED, "sh", folder] if has_groups else []
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*guard, self.path, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=has_groups,  # otherwise Ctrl-C would reach CBC, too
            )
            try:
                while process.poll() is None and not self._stop.is_set():
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
            raise pulp.PulpSolverError(f"CBC ended with code {process.returncode}")
        return ended

    def _read_log(self, log: Path) -> None:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Lower bound:"):
                self._bound = float(line.split(":")[1])
