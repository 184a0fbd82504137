"""`python -m tests.hunt.kills --kills 200`: calls ended at random moments of their first two seconds.

Each has to end with 130 and one line on stderr, or to have ended by itself. Until the interpreter has read the first
line of remat, the system ends it by the signal itself: such kills are counted apart.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from time import sleep

from remat_cli.errors import ExitCode
from remat_cli.machine.interruption import REQUESTS_TO_END
from tests.places import GRAPHS, ROOT

CALLS = (
    "plan train.py:step --dim batch=4 --budget 70%",
    "plan unet.onnx --dim batch=8 --budget 60%",
    "plan unet.onnx --dim batch=8 --budget 60% --planner moccasin",
    "plan skip_chain.json --budget 80% --planner checkmate",
)
_PATIENCE = 120.0


def kill_one(rng: random.Random, span: float) -> str:
    """Start a call, send it a signal, and return how it ended.

    Raises:
        AssertionError: in another way than it has to.
    """
    call, number = rng.choice(CALLS), rng.choice([signal.SIGINT, *REQUESTS_TO_END])
    moment = rng.uniform(0, span)
    run = subprocess.Popen(
        [sys.executable, "-m", "remat_cli", *call.split(), "-q"],
        cwd=GRAPHS,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        sleep(moment)
        run.send_signal(number)
        out, err = run.communicate(timeout=_PATIENCE)
    finally:
        run.kill()
    if run.returncode == ExitCode.DONE:
        return "ended by itself"
    if _is_of_interpreter(run.returncode, number, err):
        return "the interpreter had not begun with remat"
    how = f"{call} after {moment:.3f} s of {number.name}: {run.returncode}, {out!r}, {err!r}"
    assert run.returncode == ExitCode.INTERRUPTED, how
    assert (out, err) in (("", ""), ("", "error: interrupted\n")), how
    return "interrupted without a plan" if err else "interrupted with a plan"


def _is_of_interpreter(code: int, number: signal.Signals, err: str) -> bool:
    """Tell whether a signal came before the first line of remat; of Ctrl-C Python then shows where it was."""
    return "remat_cli/" not in err and (code == -number or (number == signal.SIGINT and "KeyboardInterrupt" in err))


def main() -> None:
    """Read the call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--span", type=float, default=2.0, help="seconds in which the signal comes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    ends = Counter(kill_one(rng, arguments.span) for _ in range(arguments.kills))
    print(", ".join(f"{count} {how}" for how, count in ends.most_common()))


if __name__ == "__main__":
    main()
