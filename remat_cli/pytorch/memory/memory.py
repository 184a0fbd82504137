"""How much memory a call allocates at its peak, beside what is there before.

On the CPU from the allocation events of torch's profiler, which see the workspace of kernels too. On CUDA from
the allocator's count of requested bytes; that branch is untried, as there was no GPU to try it on.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from remat_cli.pytorch.capture.internals import unsupported


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


def profiler_runs() -> bool:
    """Return whether a profiler runs: two cannot run at one time."""
    return bool(torch.autograd.profiler._is_profiler_enabled)


def allocations_of(call: Callable[[], object]) -> Allocations:
    """Call, and return what it allocated on the CPU.

    Raises:
        UsageError: torch's profiler does not tell.
    """
    # Else it writes a line to stderr whenever it starts and stops; it looks here when it is first used.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    # Without `acc_events`, torch 2.11 and 2.12 warn that events of earlier cycles are lost; here is one cycle.
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        call()
    results = getattr(profile.profiler, "kineto_results", None)
    if results is None:
        raise unsupported("its profiler has no allocation events")
    events = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    times, sizes = [when for when, _ in events], [size for _, size in events]
    return Allocations(times, list(accumulate(sizes)))


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
