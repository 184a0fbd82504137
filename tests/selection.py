"""`make selection`: choose anew which long tests `make test` leaves out.

Every test runs twice: once for the seconds that it takes, once for the lines that it runs. Short tests stay, and one of
each file. Of the others, those stay that together run the most lines within the time of `make test`. The rest is
written to tests/left_out.txt, as options of pytest. `make test TESTS=tests` runs them all, and so does each push's
workflow.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import cache
from tempfile import TemporaryDirectory

import coverage
import pytest

from tests.places import ROOT

LEFT_OUT = ROOT / "tests" / "left_out.txt"
MEASURED = ROOT / "build" / "selection"
SECONDS, COVERED = MEASURED / "seconds.json", MEASURED / "coverage"
# Seconds. Shorter tests are so many that each line of theirs is cheap.
SHORT = 0.3
# What a test takes depends on which others run: they share fixtures, and kernels that one of them compiles. So those
# that stay run once more, alone. If they take more than this share of the time, others are chosen, at most so often.
_ENOUGH, _ROUNDS = 1.1, 3
# Beginnings of what counting lines does not tell from other tests: rules of the tree, the contract of each planner, and
# what users are promised: the page that they read first, and each way of training as unplanned at the predicted peak.
_TORCH = "tests/unit/pytorch"
_ROW = f"{_TORCH}/run/test_matrix.py::test_a_row_trains_as_unplanned_at_its_peak["
_LOOP = f"{_TORCH}/run/test_loops.py::test_loop_trains_as_eager_does_and_takes_no_more["
ALWAYS = (
    "tests/architecture/",
    "tests/contract/",
    "tests/golden/test_pages.py::test_every_command_prints_what_the_page_says[README.md]",
    "tests/unit/planning/test_split_choice.py::test_a_plan_with_split_is_never_worse[",
    f"{_ROW}whole eager recompute one changing budget",
    f"{_ROW}whole eager offload one fixed file",
    f"{_ROW}blocks eager recompute one fixed file",
    f"{_ROW}blocks eager offload one changing budget",
    f"{_ROW}whole compiled split one fixed budget",
    f"{_TORCH}/run/test_matrix.py::test_rows_of_two_ranks_train_as_unplanned_at_their_peaks[eager kernels",
    f"{_LOOP}loss and logits",
    f"{_LOOP}heads by turns, SGD, whole",
    f"{_LOOP}heads by turns, AdamW, blocks",
    f"{_TORCH}/run/test_planned.py::test_all_that_may_run_again_changes_no_bit[",
    f"{_TORCH}/run/test_regions.py::test_bits_are_eagers[",
    f"{_TORCH}/run/test_regions.py::test_measured_peak_is_the_predicted_one_and_within_the_budget",
    f"{_TORCH}/run/test_regions.py::test_a_budget_well_below_the_peak_of_checkpoints_fits",
    f"{_TORCH}/run/test_regions.py::test_rehearsal_leaves_nothing_behind",
    f"{_TORCH}/run/test_hosted_inputs.py::test_inputs_leave_and_the_peak_is_the_predicted_one[",
    f"{_TORCH}/plan/test_region_curve.py::test_lower_plans_peak_lower_where_the_peak_is_inside",
    f"{_TORCH}/plan/test_given_blocks.py::test_plans_from_a_file_run_without_new_ones",
    f"{_TORCH}/plan/test_whole_runner.py::test_one_capture_and_one_plan_run_at_all_sizes_with_the_bits_of_eager[",
    f"{_TORCH}/plan/test_region_runner.py::test_the_peak_at_each_length_is_within_the_budget_and_where_planned_the",
)


class Recorder:
    """Plugin of pytest that adds up the seconds of each test."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a set-up, a call or a tear-down."""
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]


def main() -> None:
    """Run the tests, and write which ones `make test` leaves out."""
    parser = argparse.ArgumentParser(prog="make selection", description=__doc__)
    parser.add_argument("--seconds", type=float, default=620.0, help="of all workers, for the tests that stay")
    parser.add_argument("--measured", action="store_true", help="choose by the lines that the last call measured")
    given, options = parser.parse_known_args()  # the others are pytest's
    if not given.measured:
        MEASURED.mkdir(parents=True, exist_ok=True)
        _write_seconds(_seconds(options))
        _cover(options)
    lines = _lines()
    for _ in range(_ROUNDS):
        seconds: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
        kept = choose(seconds, lines, given.seconds)
        left_out = seconds.keys() - kept
        LEFT_OUT.write_text("".join(f"{option}\n" for option in deselecting(left_out, kept)), encoding="utf-8")
        lost = len(_union(lines, seconds) - _union(lines, kept))
        print(
            f"{len(kept)} tests stay; {len(left_out)} are left out, take {_sum(seconds, left_out):.0f} s,"
            f" and alone run {lost} lines"
        )
        alone = _seconds([*options, f"@{LEFT_OUT}"])
        print(f"those that stay were expected to take {_sum(seconds, kept):.0f} s, and take {_sum(alone, alone):.0f} s")
        if _sum(alone, alone) <= _ENOUGH * given.seconds:
            break
        _write_seconds({test: max(taken, alone.get(test, 0.0)) for test, taken in seconds.items()})


def _sum(seconds: Mapping[str, float], tests: Iterable[str]) -> float:
    return sum(seconds[test] for test in tests)


def _write_seconds(seconds: Mapping[str, float]) -> None:
    SECONDS.write_text(json.dumps(seconds), encoding="utf-8")


def _seconds(options: list[str]) -> Mapping[str, float]:
    """Run tests as on a new machine, where no kernel is compiled yet."""
    recorder = Recorder()
    with TemporaryDirectory() as kernels, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", kernels)
        _run(options, [recorder])
    return recorder.seconds


def _cover(options: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVERAGE_FILE", str(COVERED))
        # Python's own monitoring does not tell tests apart.
        patch.setenv("COVERAGE_CORE", "ctrace")
        _run([*options, "--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"], [])


def _run(options: list[str], plugins: list[Recorder]) -> None:
    # A test that fails has run its lines, too.
    if pytest.main(options, plugins=plugins) not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit("make selection: the tests did not run to their end; nothing is chosen")


def _lines() -> Mapping[str, Set[tuple[str, int]]]:
    lines: dict[str, set[tuple[str, int]]] = {}
    for module in covered().measured_files():
        for line, tests in tests_of(module).items():
            for test in tests:
                lines.setdefault(test, set()).add((module, line))
    return lines


@cache
def covered() -> coverage.CoverageData:
    """Return which lines each test ran in the last call."""
    data = coverage.CoverageData(str(COVERED))
    data.read()
    return data


def tests_of(module: str) -> Mapping[int, Set[str]]:
    """Return the tests that ran each line of a module; of a line that ran in an import, one of them is empty."""
    contexts = covered().contexts_by_lineno(module)
    # A context is a test and its phase, such as "run".
    return {line: {context.rpartition("|")[0] for context in some} for line, some in contexts.items()}


def choose(seconds: Mapping[str, float], lines: Mapping[str, Set[tuple[str, int]]], available: float) -> set[str]:
    """Return the tests that stay: short ones and one of each file, then those with the most new lines per second.

    A test that runs commands in processes of their own has no lines, and counts as one.

    Args:
        seconds: that each test takes.
        lines: of the package that each test runs, as pairs of a file and a number.
        available: seconds for all tests that stay.
    """
    shortest = {test.partition("::")[0]: test for test in sorted(seconds, key=lambda test: -seconds[test])}
    kept = {test for test, taken in seconds.items() if taken < SHORT or test.startswith(ALWAYS)}.union(
        shortest.values()
    )
    left = available - sum(seconds[test] for test in kept)
    run = _union(lines, kept)
    new = {test: set(lines.get(test) or {(test, 0)}) - run for test in sorted(seconds.keys() - kept)}
    while new := {test: some for test, some in new.items() if some and seconds[test] <= left}:
        best = max(new, key=lambda test: len(new[test]) / seconds[test])
        kept.add(best)
        left -= seconds[best]
        run = new.pop(best)
        for some in new.values():
            some -= run
    return kept


def _union(lines: Mapping[str, Set[tuple[str, int]]], tests: Iterable[str]) -> set[tuple[str, int]]:
    return set().union(*(lines.get(test, ()) for test in tests))


def deselecting(left_out: Set[str], kept: Set[str]) -> list[str]:
    """Return options of pytest that leave out tests; a test whose cases all are is one option.

    pytest compares beginnings. A test whose name begins another's that stays therefore stays, too.
    """
    functions = {test: f"{test.partition('[')[0]}[" if "[" in test else test for test in left_out}
    options = {whole if not any(test.startswith(whole) for test in kept) else test for test, whole in functions.items()}
    return [f"--deselect={option}" for option in sorted(options) if not any(test.startswith(option) for test in kept)]


if __name__ == "__main__":
    main()
