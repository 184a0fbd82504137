"""Whether copies to the host and back run beside what is computed, as torch's profiler sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._C._autograd import DeviceType

Span = tuple[int, int]


def hidden_share(copies: Iterable[Span], kernels: Iterable[Span]) -> float | None:
    """Return the share of the time of copies in which a kernel runs; None without copies.

    Args:
        copies: start and end of each.
        kernels: the same of what is computed.
    """
    copied, computed = _united(copies), _united(kernels)
    whole = sum(end - start for start, end in copied)
    shared = 0
    place = 0
    for start, end in copied:
        while place < len(computed) and computed[place][1] <= start:
            place += 1
        for first, last in computed[place:]:
            if first >= end:
                break
            shared += min(end, last) - max(start, first)
    return shared / whole if whole else None


def _united(spans: Iterable[Span]) -> list[Span]:
    """Return spans without those that overlap, in order, that cover the same time."""
    united: list[Span] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((start, end))
    return united


def profiled(call: Callable[[], object]) -> tuple[list[Span], list[Span], bool]:
    """Call, and return the spans of copies, those of kernels, and whether all copies are pinned."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.device_type() == DeviceType.CUDA]
    copies = [event for event in events if event.name().startswith(("Memcpy DtoH", "Memcpy HtoD"))]
    kernels = [event for event in events if not event.name().startswith(("Memcpy", "Memset"))]
    return _spans(copies), _spans(kernels), all("Pageable" not in event.name() for event in copies)


def _spans(events: Sequence[Any]) -> list[Span]:
    return [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in events]
