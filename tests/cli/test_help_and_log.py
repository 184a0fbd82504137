"""What a user sees around the verbs: help pages, completion in a shell, and the log file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.cli import VERBS
from remat_cli.planners import PLANNERS
from tests.cli.calls import Remat
from tests.places import GRAPHS

GRAPH = GRAPHS / "skip_chain.json"


@pytest.mark.parametrize("verb", VERBS)
def test_every_page_of_help_has_examples_that_call_the_verb(remat: Remat, verb: str) -> None:
    page = remat(verb, "--help").out
    _, _, examples = page.partition("Examples:\n")
    assert f"    remat {verb}" in examples.partition("\n\n")[0]
    assert "Exit codes: remat --help" in page


def test_options_stand_in_sections_with_the_verbs_own_first(remat: Remat) -> None:
    page = remat("plan", "--help").out
    places = [page.index(f"\n{section}:") for section in ("Options", "Graph options", "Planner options")]
    assert places == sorted(places)
    first = [page.index(f"  {option}") for option in ("--budget", "--mode", "--planner")]
    assert places[0] < first[0] < places[1] < first[1] < places[2] < first[2]


def completed(*words: str) -> list[str]:
    """What a shell is told to offer for the last word."""
    line = " ".join(["remat", *words])
    environment = os.environ | {
        "_REMAT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    script = "import sys; sys.argv = ['remat']; from remat_cli.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return [offer.partition(",")[2] for offer in ended.stdout.splitlines()]


def test_verbs_options_and_names_are_completed() -> None:
    assert completed("pl") == ["plan", "planners"]
    assert completed("plan", "--max") == ["--max-overhead"]
    assert completed("plan", "--planner", "checkmate") == [name for name in PLANNERS if name.startswith("checkmate")]
    assert completed("plan", "--planner", "rotor", "--option", "s") == ["segments=", "slots="]
    assert completed("plan", "-c", "mocc") == ["moccasin", "mocc"]
    assert completed("plan", "--device", "v1") == ["v100", "v1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_for_a_shell(remat: Remat, shell: str, tmp_path: Path) -> None:
    script = remat("completion", shell).out
    assert "_REMAT_COMPLETE" in script
    if shutil.which(shell) is None:
        return
    path = tmp_path / "script"
    path.write_text(script)
    subprocess.run([shell, "-n", path], check=True)


def test_another_shell_is_refused(remat: Remat) -> None:
    ended = remat("completion", "tcsh")
    assert ended.code == 2
    assert "'bash', 'zsh', 'fish'" in ended.err


def test_log_has_the_call_what_was_found_and_the_end(remat: Remat, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert remat("--log-file", log, "plan", GRAPH, "--budget", "80%", "-c", "dtr").code == 0
    assert remat("--log-file", log, "plan", GRAPH, "--budget", "nonsense").code == 2
    text = log.read_text()
    assert f"plan {GRAPH} --budget 80% -c dtr" in text
    assert "found a plan that takes" in text
    assert text.count("ended with exit code 0") == 1
    assert "error: " in text
    assert text.count("ended with exit code 2") == 1
    assert "Traceback" not in text


def test_log_of_a_bug_has_the_traceback(remat: Remat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr("remat_cli.cli.inspect.prepare", broken)
    log = tmp_path / "run.log"
    ended = remat("--log-file", log, "inspect", GRAPH)
    assert ended.code == 1
    assert "Traceback" not in ended.err
    text = log.read_text()
    assert "ended with exit code 1" in text
    assert "Traceback" in text
    assert "ZeroDivisionError: of a test" in text


def test_a_log_that_cannot_be_written_is_told(remat: Remat, tmp_path: Path) -> None:
    ended = remat("--log-file", tmp_path / "absent" / "run.log", "planners")
    assert ended.code == 2
    assert "there is no folder" in ended.err
    assert ended.out == ""


def test_names_with_control_characters_stay_harmless_in_the_log(remat: Remat, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert remat("--log-file", log, "plan", "absent\x1b[31m\nforged", "--budget", "1GB").code == 6
    text = log.read_text()
    assert "\x1b" not in text
    assert "\nforged" not in text


def test_compiling_needs_a_compiler(remat: Remat) -> None:
    ended = remat("planners", "--compile")
    assert ended.code == 2
    assert "NUMBA_DISABLE_JIT is set, so that numba compiles nothing" in ended.err
    assert "unset it" in ended.err
