"""How much memory a call allocates at its peak, beside what is there before.

On the CPU from the allocation events of torch's profiler, which see what kernels take for themselves too. On CUDA from
the allocator's count of requested bytes; that branch is untried, as there was no GPU to try it on.
"""

from __future__ import annotations

import atexit
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from remat_cli.formats.torch.internals import unsupported


@dataclass(frozen=True)
class Allocations:
    """What a call allocated on the CPU.

    Attributes:
        times_ns: [N] when memory was taken or given back, in nanoseconds since the epoch, ascending.
        bytes: [N] what was in use after that, beside what was there before the call.
    """

    times_ns: Sequence[int]
    bytes: Sequence[int]

    @property
    def peak(self) -> int:
        """The most that was in use at one time."""
        return max(self.bytes, default=0)

    def at(self, time_ns: int) -> int:
        """Return what was in use at a time."""
        before = bisect_left(self.times_ns, time_ns)
        return self.bytes[before - 1] if before else 0

    def peak_between(self, start_ns: int, end_ns: int) -> int:
        """Return the most that was in use at one time between two times."""
        first, last = bisect_left(self.times_ns, start_ns), bisect_left(self.times_ns, end_ns)
        return max((self.at(start_ns), *self.bytes[first:last]))


# The recording that runs and gives way: one at a time can run, and a new one ends it.
_open: list[Recording] = []


def _stop_at_exit() -> None:
    """Stop what still records: torch crashes where the interpreter ends while its profiler runs."""
    for recording in list(_open):
        recording.stop()


atexit.register(_stop_at_exit)


def profiler_runs() -> bool:
    """Tell whether a profiler runs that does not give way to another: two cannot run at one time."""
    return torch.autograd.profiler._is_profiler_enabled and not _open


class Recording:
    """What is allocated from now on, until it is stopped."""

    def __init__(self, device: str, *, gives_way: bool = False) -> None:
        """Begin.

        Args:
            device: "cpu" or "cuda" (untried).
            gives_way: another recording may end it.
        """
        for other in list(_open):
            other.stop()
        self._cuda = device == "cuda"
        self._runs = False
        self._peaks: list[int] = []
        self._before = 0
        self.allocations = Allocations((), ())
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return
        # Else it writes a line to stderr whenever it starts and stops; it looks here when it is first used.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [torch.profiler.ProfilerActivity.CPU]
        self._profile = torch.profiler.profile(activities=activities, profile_memory=True)
        self._profile.start()
        self._runs = True
        if gives_way:
            _open.append(self)

    def mark(self) -> None:
        """Tell what was there until now from what comes."""
        if self._cuda:
            torch.cuda.synchronize()
            self._peaks.append(torch.cuda.max_memory_allocated() - self._before)
            torch.cuda.reset_peak_memory_stats()

    def stop(self) -> None:
        """End.

        Raises:
            UsageError: torch's profiler does not tell.
        """
        self.mark()
        if not self._runs:
            return
        self._runs = False
        if self in _open:
            _open.remove(self)
        self._profile.stop()
        results = getattr(self._profile.profiler, "kineto_results", None)
        if results is None:
            raise unsupported("its profiler has no allocation events")
        events = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
        times, sizes = [when for when, _ in events], [size for _, size in events]
        self.allocations = Allocations(times, list(accumulate(sizes)))

    def peak(self, start_ns: int | None, end_ns: int | None) -> int:
        """Return the most that was in use between two times, beside what was there before; None: begin, end.

        On CUDA the times say only whether what is meant lies before or after the mark.
        """
        if self._cuda:
            return self._peaks[0] if start_ns is None else self._peaks[-1]
        return self.allocations.peak_between(start_ns or 0, end_ns or 2**63)

    @property
    def left_behind(self) -> int:
        """What was in use at the end, beside what was there before."""
        if self._cuda:
            return int(torch.cuda.memory_allocated() - self._before)
        return self.allocations.at(2**63)


def allocations_of(call: Callable[[], object]) -> Allocations:
    """Call, and return what it allocated on the CPU.

    Raises:
        UsageError: torch's profiler does not tell.
    """
    recording = Recording("cpu")
    try:
        call()
    finally:
        recording.stop()
    return recording.allocations


def peak_of(call: Callable[[], object], device: str) -> int:
    """Call, and return the most bytes that were in use at one time beside what was there before.

    Args:
        call: what to measure, once.
        device: "cpu" or "cuda"; CUDA is untried.

    Raises:
        UsageError: torch's profiler does not tell.
    """
    if device != "cuda":
        return allocations_of(call).peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)


def time_of(call: Callable[[], object], device: str) -> int:
    """Call, and return how long that took, in nanoseconds; on one thread of the CPU without the time of other programs.

    Args:
        call: what to measure, once.
        device: "cpu" or "cuda"; CUDA is untried.
    """
    clock = time.thread_time_ns if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter_ns
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start
