"""Being asked to end: Ctrl-C, and what is sent where nobody sits at a keyboard."""

from __future__ import annotations

import signal
from types import FrameType

# From Slurm, containers and service managers; from a terminal that is closed.
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGHUP)


def take_as_ctrl_c() -> None:
    """Take a request to end as Ctrl-C, so that the best plan until then is kept and written.

    Only the first one: what comes after it must not keep that from being written. One that is ignored (nohup) stays so.
    """
    for number in REQUESTS_TO_END:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def pass_over_requests() -> None:
    """Take no notice of requests to end: whoever started this process ends it.

    Not SIG_IGN, which what this process starts would inherit, and of which Python complains where a request is pending.
    """
    for number in REQUESTS_TO_END:
        signal.signal(number, lambda number, frame: None)


def _interrupt(number: int, frame: FrameType | None) -> None:
    pass_over_requests()
    raise KeyboardInterrupt
