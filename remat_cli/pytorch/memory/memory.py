"""The memory that a call allocates at its peak.

Memory from before the call does not count. On the CPU the allocation events of torch's profiler give it, with the
workspace of kernels. On CUDA the allocator's count of requested bytes gives it; this branch is untried, for lack of a
GPU.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from remat_cli.pytorch.unstable.versions import unsupported


@dataclass(frozen=True)
class Allocations:
    """The allocations of a call on the CPU.

    Attributes:
        times_ns: [N] times of allocations and frees, in nanoseconds since the epoch, ascending.
        bytes: [N] bytes in use after each, without memory from before the call.
    """

    times_ns: Sequence[int]
    bytes: Sequence[int]

    @property
    def peak(self) -> int:
        """The peak of the bytes in use."""
        return max(self.bytes, default=0)

    def at(self, time_ns: int) -> int:
        """Return the bytes in use at a time."""
        before = bisect_left(self.times_ns, time_ns)
        return self.bytes[before - 1] if before else 0

    def peak_between(self, start_ns: int, end_ns: int) -> int:
        """Return the peak of the bytes in use between two times."""
        first, last = bisect_left(self.times_ns, start_ns), bisect_left(self.times_ns, end_ns)
        return max((self.at(start_ns), *self.bytes[first:last]))


def allocations_of(call: Callable[[], object]) -> Allocations:
    """Call a function; return its allocations on the CPU.

    Raises:
        UsageError: torch's profiler gives no events.
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
    """Call a function; return its peak memory in bytes.

    Memory from before the call does not count.

    Args:
        call: function to call once.
        device: "cpu" or "cuda"; CUDA is untried.

    Raises:
        UsageError: torch's profiler gives no events.
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
    """Call a function; return its time in nanoseconds.

    On one thread of the CPU the time of other programs does not count.

    Args:
        call: function to call once.
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
