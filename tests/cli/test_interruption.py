"""Requests to end, as Slurm, containers and closed terminals send them: what was found is kept, as with Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import pytest

from remat_cli.errors import ExitCode
from remat_cli.machine import interruption
from tests.cli.calls import Remat
from tests.places import GRAPHS, ROOT

GRAPH = GRAPHS / "skip_chain.json"
# Plans, says so, and would go on for long.
SCRIPT = """
import sys, time
from remat_cli.cli import main
from remat_cli.planners.published.lower_sets.search import LowerSetSearch

def go_on(*_):
    print("planned", flush=True)
    while True:  # a signal that comes just before the system sleeps is seen only when it wakes
        time.sleep(0.1)

LowerSetSearch._refine = go_on
sys.argv = ["remat", *sys.argv[1:]]
main()
"""

Planning = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def planning(tmp_path: Path) -> Iterator[Planning]:
    """Start `remat plan` with these arguments, and come back when it has a plan and searches on."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str | Path, **more: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT, "plan", GRAPH, "--budget", "90%", "-c", "approx_dp", *args]
        run = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, **more)  # type: ignore[call-overload]
        started.append(run)
        assert run.stdout.readline() == "planned\n"
        return run  # type: ignore[no-any-return]

    yield start
    for run in started:
        run.kill()
        run.communicate()


@pytest.mark.parametrize(
    "sent",
    [
        [signal.SIGINT],
        [signal.SIGTERM],
        [signal.SIGHUP],
        # A shell and the kernel both tell of a closed terminal.
        [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM],
    ],
)
def test_the_best_plan_until_then_is_written(
    sent: list[signal.Signals], planning: Planning, remat: Remat, tmp_path: Path
) -> None:
    output = tmp_path / "s.json"
    run = planning("-o", output, "--html", tmp_path / "s.html")
    for number in sent:
        run.send_signal(number)
    _, err = run.communicate()
    assert (run.returncode, err) == (130, "")
    assert json.loads(output.read_text())["status"] == "feasible"
    assert remat("verify", GRAPH, output, "-q").code == 0
    assert (tmp_path / "s.html").stat().st_size > 10_000


def test_a_call_that_takes_no_notice_of_a_closed_terminal_goes_on(planning: Planning) -> None:
    run = planning(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    run.send_signal(signal.SIGHUP)
    sleep(0.3)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 130


def own_terminal() -> None:
    """Make stdin the terminal of this process, which is told when that is closed."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY)


def test_a_terminal_that_is_closed_keeps_nothing_from_being_written(remat: Remat, tmp_path: Path) -> None:
    output = str(tmp_path / "s.json")
    user, terminal = pty.openpty()
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        "plan",
        str(GRAPH),
        "--budget",
        "90%",
        "-c",
        "approx_dp",
        "-o",
        str(output),
    ]
    run = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal)
    os.close(terminal)
    shown = b""
    while b"planned" not in shown:
        shown += os.read(user, 10_000)
    os.close(user)
    assert run.wait() == 130
    assert remat("verify", GRAPH, output, "-q").code == 0


def test_streams_that_nobody_reads_keep_nothing_from_being_written(planning: Planning, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    run = planning("-o", output)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    run.stderr.close()
    run.send_signal(signal.SIGHUP)
    assert run.wait() == 130
    assert json.loads(output.read_text())["status"] == "feasible"


# As libraries written in C do: interrupted while they are set up, they fail with an error of their own.
FRAGILE = """
import os, signal, sys, time
os.kill(os.getpid(), getattr(signal, os.environ["SENT"]))
try:
    time.sleep(0.2)
except KeyboardInterrupt:
    raise ImportError("initialization failed") from None
sys.path.remove(os.path.dirname(__file__))
del sys.modules[__name__]
__import__(__name__)
"""


# Runs remat, which waits for imports however long they take on a busy machine.
PATIENT = """
import sys
from remat_cli.__main__ import main
from remat_cli.machine import interruption
interruption._LONGEST_IMPORT = float("inf")
sys.argv = ["remat", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("click", "planners"),
        ("onnx", "inspect unet.onnx --dim batch=1"),
        ("torch", "inspect train.py:step"),
        ("rich", "inspect skip_chain.json"),
    ],
)
def test_what_is_interrupted_while_it_is_imported_ends_with_one_line(
    library: str, call: str, sent: str, tmp_path: Path
) -> None:
    (tmp_path / f"{library}.py").write_text(FRAGILE)
    command = [sys.executable, "-c", PATIENT, *call.split()]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "SENT": sent}
    ended = subprocess.run(command, cwd=GRAPHS, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_an_import_that_fails_as_it_is_waited_for_no_longer_is_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text(FRAGILE)
    script = """
import sys
from remat_cli.machine import interruption
from remat_cli.__main__ import main
interruption._LONGEST_IMPORT = 0.0
sys.argv = ["remat", "inspect", "unet.onnx", "--dim", "batch=1"]
main()
"""
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "SENT": "SIGTERM"}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=GRAPHS, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_an_error_that_a_library_makes_of_an_interruption_is_one() -> None:
    script = """
import signal, sys
import pydantic_core
from pydantic_core import core_schema
from remat_cli.__main__ import main

class Member:
    @property
    def value(self):
        signal.raise_signal(signal.SIGTERM)

class Validator:
    own = pydantic_core.SchemaValidator

    def __new__(cls, schema):
        return cls.own(core_schema.enum_schema(Member, [Member()]))

pydantic_core.SchemaValidator = Validator
sys.argv = ["remat", "inspect", "skip_chain.json"]
main()
"""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(
        command, cwd=GRAPHS, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


# Runs remat, with a request to end as a module is looked for, of which nobody looks a second time whether it has ended.
SIGTERM_AT_AN_IMPORT = """
import signal, sys
from remat_cli.machine import interruption
from remat_cli.__main__ import main

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGTERM)

interruption._LOOK = 60.0
module = sys.argv.pop(1)
sys.meta_path.insert(0, Finder)
main()
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("rich.table", "inspect skip_chain.json"),
        ("onnx", "convert unet.onnx --dim batch=1 -o -"),
        ("remat_cli.reports.check.forms", "check remat.yaml --only gpt-serving --format json"),
        ("click.shell_completion", "completion bash"),
        ("remat_cli.batch.loop", "batch skip_chain.json --budget 90% -o -"),
    ],
)
def test_a_request_that_waits_is_heeded_before_anything_is_written(module: str, call: str) -> None:
    command = [sys.executable, "-c", SIGTERM_AT_AN_IMPORT, module, *call.split()]
    ended = subprocess.run(command, cwd=GRAPHS, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_a_request_that_python_loses_is_heeded_later() -> None:
    """It ignores what is raised in `__del__` and in callbacks of weak references, of which torch has many."""
    script = """
import gc, signal, sys
from remat_cli.__main__ import main

class Deaf:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

set_threshold = gc.set_threshold
def set_threshold_and_ask(*args):
    set_threshold(*args)
    Deaf()

gc.set_threshold = set_threshold_and_ask
sys.argv = ["remat", "planners"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_ctrl_c_between_the_parts_of_a_call_writes_no_empty_line() -> None:
    script = """
import signal, sys
from remat_cli.__main__ import main
from remat_cli.cli import cli

make_context = cli.make_context

def make_context_at_ctrl_c(*args, **kwargs):
    context = make_context(*args, **kwargs)
    signal.raise_signal(signal.SIGINT)
    return context

cli.make_context = make_context_at_ctrl_c
sys.argv = ["remat", "planners"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_a_module_that_works_while_it_is_imported_is_not_waited_for(tmp_path: Path) -> None:
    """Ctrl-C again, after a second."""
    (tmp_path / "onnx.py").write_text("import time\nprint('here', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    command = [sys.executable, "-m", "remat_cli", "inspect", "unet.onnx", "--dim", "batch=1"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = subprocess.Popen(command, cwd=GRAPHS, env=environment, stdout=-1, stderr=-1, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "here\n"
    while run.poll() is None:
        run.send_signal(signal.SIGINT)
        sleep(0.6)
    assert (run.returncode, run.communicate()[1]) == (130, "error: interrupted\n")


# Runs remat, with Ctrl-C at the moment at which something is written to stderr.
CTRL_C_AS_IT_ENDS = """
import signal, sys
from remat_cli.__main__ import main

class Disturbed:
    isatty = sys.stderr.isatty
    flush = sys.stderr.flush
    fileno = sys.stderr.fileno
    encoding = sys.stderr.encoding
    def write(self, text):
        signal.raise_signal(signal.SIGINT)
        return sys.__stderr__.write(text)

sys.stderr = Disturbed()
sys.argv = ["remat", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("inspect missing.json", ExitCode.BAD_FILE, "error: missing.json: no such file"),
        ("inspect --no-such-option", ExitCode.USAGE, "Usage: remat inspect"),
    ],
)
def test_an_error_that_is_being_told_is_told_alone(call: str, code: ExitCode, said: str) -> None:
    command = [sys.executable, "-c", CTRL_C_AS_IT_ENDS, *call.split()]
    ended = subprocess.run(command, cwd=GRAPHS, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith(said)
    assert "interrupted" not in ended.stderr


def test_a_request_that_comes_as_the_process_leaves_is_too_late() -> None:
    script = """
import signal, sys
from remat_cli.machine import interruption
from remat_cli.__main__ import main
interruption.signal.setitimer = lambda *_: signal.raise_signal(signal.SIGTERM)
sys.argv = ["remat", "planners"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


# A module of this name is imported by Python before anything else.
CTRL_C_AT_FIRST = """
import signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "remat_cli.machine.interruption":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def test_ctrl_c_at_the_first_import_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_AT_FIRST)
    command = [sys.executable, "-m", "remat_cli", "planners"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_exit_code_is_that_of_the_table() -> None:
    assert interruption.EXIT_CODE == ExitCode.INTERRUPTED


def test_a_signal_as_the_interpreter_leaves_ends_nothing_any_more() -> None:
    """Python takes its own handlers away then; what is ignored stays so, in all threads."""
    program = (
        "import signal\n"
        "from remat_cli.machine.interruption import REQUESTS_TO_END, end_undisturbed, take_as_ctrl_c\n"
        "take_as_ctrl_c()\n"
        "end_undisturbed()\n"
        "print({signal.getsignal(number) for number in (signal.SIGINT, *REQUESTS_TO_END)} == {signal.SIG_IGN})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
