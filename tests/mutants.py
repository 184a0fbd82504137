"""`make mutants`: plant faults in a copy of the tree, one at a time, and show those that no test sees.

cosmic-ray changes numbers, comparisons, operators and conditions, also of constants. For each fault, those tests run
that run the changed line, where `make selection` has measured which these are: those of the module's folder first, then
others, the shortest first. For what runs in the import, those of the whole module do. Elsewhere the folder's tests run.
A fault that lives is a test that is missing, or a change that makes no difference: read its diff.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.selection import COVERED, LEFT_OUT, SECONDS, tests_of

COPY = ROOT / "build" / "mutants"
MODULES = ("remat_cli/core", "remat_cli/planning", "remat_cli/planners/auto")
# Unions of types in annotations, which nobody evaluates, and of mappings; `==` in the place of `is`.
_WITHOUT_EFFECT = re.compile(r"core/(ReplaceBinaryOperator_BitOr_|.*_BitOr$|.*_Is_Eq$|.*_IsNot_NotEq$)")
_SECONDS = 120.0
# Of the tests that run a line, so many are tried, and as many as take a third of the time without a fault.
_MOST_TESTS = 60
# Which tests run for a fault in each line, beside the copy of the tree.
_CHOSEN = Path("mutants.json")


def main() -> None:
    """Try a sample of the faults of each module."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"files or folders; by default {', '.join(MODULES)}")
    parser.add_argument("--count", type=int, default=20, help="of faults in each module, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", help="file or folder of the tests that run; by default those of each line")
    parser.add_argument("--fault", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fault is not None:
        sys.exit(_try(Path(given.fault)))
    modules = list(planted_modules(given.modules or MODULES))
    _copy_tree()
    lived = sum(_lived(module, given.tests, given.count, given.seed) for module in modules)
    print(f"{lived} faults in {len(modules)} modules lived")


def planted_modules(paths: Sequence[str]) -> Iterable[Path]:
    """Yield the modules in files and folders, by their paths in the tree."""
    for path in paths:
        whole = ROOT / path
        if not whole.exists():
            sys.exit(f"make mutants: there is no {path}")
        found = sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]
        yield from (module.relative_to(ROOT) for module in found if module.name != "__init__.py")


def _copy_tree() -> None:
    """Copy what git knows of, and what is new: faults are planted there, and never in the tree itself."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def mirror_of(module: Path) -> str:
    """Return the folder of unit tests that mirrors a module's."""
    return str(Path("tests/unit", *module.parent.parts[1:]))


def tests_for(tests: Set[str], seconds: Mapping[str, float], folder: str) -> list[str]:
    """Return which of the tests of a line are tried on a fault there, in this order.

    Args:
        tests: that run the line.
        seconds: that each test takes.
        folder: of the tests of the module.
    """
    ordered = sorted(tests, key=lambda test: (not test.startswith(f"{folder}/"), seconds[test]))
    ends = itertools.accumulate(seconds[test] for test in ordered)
    in_time = [test for test, end in zip(ordered, ends, strict=True) if end < _SECONDS / 3]
    return in_time[:_MOST_TESTS] or ordered[:1]


def _choose(module: Path, named: str | None) -> None:
    """Write which tests run for a fault in each line of a module."""
    source, folder = (ROOT / module).read_text(encoding="utf-8"), mirror_of(module)
    of_lines: Mapping[int, Set[str]] = {}
    seconds: Mapping[str, float] = {}
    if named is None and COVERED.exists():
        of_lines, seconds = tests_of(str(ROOT / module)), json.loads(SECONDS.read_text(encoding="utf-8"))
    of_module = set().union(*of_lines.values()) & seconds.keys()
    unmeasured = [named] if named else [folder, f"@{LEFT_OUT.relative_to(ROOT)}"]
    everywhere = tests_for(of_module, seconds, folder) or unmeasured
    lines: list[list[str]] = [everywhere]
    for number in range(1, len(source.splitlines()) + 1):
        tests = of_lines.get(number, set())
        # What runs in the import, a constant or a default, is of use elsewhere. Some lines belong to the one before.
        here = everywhere if "" in tests else tests_for(tests & seconds.keys(), seconds, folder)
        lines.append(here or lines[-1])
    chosen = {"source": source, "lines": lines, "unmeasured": unmeasured}
    (COPY / _CHOSEN).write_text(json.dumps(chosen), encoding="utf-8")


def _try(module: Path) -> int:
    """Run the tests on a module in the copy, which may have a fault, and return pytest's exit code."""
    chosen = json.loads(_CHOSEN.read_text(encoding="utf-8"))
    lines = zip(chosen["source"].splitlines(), module.read_text(encoding="utf-8").splitlines(), strict=False)
    changed = next((number for number, (line, now) in enumerate(lines, 1) if line != now), 0)
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    code = pytest.main([*options, *chosen["lines"][changed]])
    # A test may have another name since it was measured: that is no sight of a fault.
    return pytest.main([*options, *chosen["unmeasured"]]) if code == pytest.ExitCode.USAGE_ERROR else code


def _lived(module: Path, tests: str | None, count: int, seed: int) -> int:
    """Plant faults in a module, print those that no test sees, and return how many they are."""
    config, session = COPY / "mutants.toml", COPY / "mutants.sqlite"
    session.unlink(missing_ok=True)
    _choose(module, tests)
    command = f"{sys.executable} -m tests.mutants --fault {module}"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{module}"\ntest-command = "{command}"\ntimeout = {_SECONDS}\n'
        'excluded-modules = []\n[cosmic-ray.distributor]\nname = "local"\n',
        encoding="utf-8",
    )
    _run("init", config, session)
    drawn, of = _draw(session, count, seed)
    if not drawn:
        return 0
    # Tests that fail without a fault would see every fault.
    _run("baseline", config)
    print(f"{module}: {drawn} of {of} faults", flush=True)
    _run("exec", config, session)
    return _report(session)


def _run(verb: str, *arguments: Path) -> None:
    subprocess.run([sys.executable, "-m", "cosmic_ray.cli", verb, *arguments], cwd=COPY, check=True)


def _draw(session: Path, count: int, seed: int) -> tuple[int, int]:
    """Leave so many faults to be tried, and say how many those are, of how many."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(str(session), WorkDB.Mode.open) as work:
        items = sorted(work.pending_work_items, key=lambda item: (item.mutations[0].start_pos, item.job_id))
        lines = (COPY / items[0].mutations[0].module_path).read_text(encoding="utf-8").splitlines() if items else []
        faults = [item for item in items if not _is_without_effect(item.mutations[0], lines)]
        # By place and kind, as a job's number is another one each time.
        faults.sort(key=lambda item: _place(item.mutations[0]))
        drawn = {item.job_id for item in random.Random(seed).sample(faults, min(count, len(faults)))}
        skipped = [item.job_id for item in items if item.job_id not in drawn]
        work.set_multiple_results(skipped, WorkResult(WorkerOutcome.SKIPPED))
    return len(drawn), len(faults)


def _is_without_effect(mutation: Any, lines: Sequence[str]) -> bool:
    """Tell whether a change makes no difference: of a type, or of a decorator, which says what is frozen or kept."""
    is_of_decorator = lines[mutation.start_pos[0] - 1].lstrip().startswith("@")
    return is_of_decorator or bool(_WITHOUT_EFFECT.match(mutation.operator_name))


def _place(mutation: object) -> str:
    return str([getattr(mutation, name) for name in ("start_pos", "operator_name", "occurrence", "operator_args")])


def _report(session: Path) -> int:
    """Print the faults that lived, as diffs."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome

    with use_db(str(session), WorkDB.Mode.open) as work:
        lived = [result for _, result in work.completed_work_items if result.test_outcome == TestOutcome.SURVIVED]
    for result in lived:
        print(result.diff, flush=True)
    return len(lived)


if __name__ == "__main__":
    main()
