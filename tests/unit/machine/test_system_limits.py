"""What the system refuses, told in words, and made do with."""

from __future__ import annotations

import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from remat_cli.errors import ExitCode, OutOfMemory
from remat_cli.machine import system_limits
from remat_cli.machine.system_limits import (
    can_start_threads,
    leave_threads,
    processes_for_files,
    refusal_in,
    refusal_of,
)


def error_number(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (error_number(errno.ENOMEM), "out of memory"),
        (ImportError("libprotobuf.so: failed to map segment from shared object"), "out of memory"),
        (error_number(errno.EMFILE), "the system allows no more open files"),
        (error_number(errno.EAGAIN), "the system allows no more threads or processes"),
        (RuntimeError("can't start new thread"), "the system allows no more threads or processes"),
    ],
)
def test_refusals_are_told_in_words(error: Exception, words: str) -> None:
    refused = refusal_of(error)
    assert refused is not None
    assert refused.message == words
    assert refused.exit_code is ExitCode.NO_PLAN
    assert isinstance(refused, OutOfMemory) == ("memory" in words)
    assert refused.hint


@pytest.mark.parametrize("error", [RuntimeError("by design"), error_number(errno.ENOSPC), ZeroDivisionError()])
def test_other_errors_are_none(error: Exception) -> None:
    assert refusal_of(error) is None
    assert refusal_in(str(error)) is None


class Reluctant:
    """A system that starts so many threads and no more."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def start(self, *_: object) -> None:
        if not self.left:
            raise RuntimeError("can't start new thread")
        self.left -= 1


@pytest.mark.parametrize("asked", [2, 3, 4])
def test_whether_threads_can_start_is_tried(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_start_threads(asked)
    monkeypatch.setattr(system_limits, "start_new_thread", Reluctant(3).start)
    assert can_start_threads(asked) == (asked <= 3)


@pytest.mark.parametrize(("allowed", "threads"), [(2, "1"), (100, None)])
def test_openblas_starts_no_threads_where_there_are_few(
    allowed: int, threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_limits, "start_new_thread", Reluctant(allowed).start)
    monkeypatch.setattr(os, "environ", dict[str, str]())
    leave_threads(2)
    assert os.environ.get("OPENBLAS_NUM_THREADS") == threads


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="open files cannot be counted here")
def test_as_many_processes_as_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_for_files(8, 3) == 8
    opened = len(os.listdir("/dev/fd"))
    for allowed, processes in ((0, 1), (opened + 32, 4), (opened + 33, 4), (sys.maxsize, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=allowed: (most, most))
        assert processes_for_files(8, 3) == processes


@pytest.mark.parametrize(
    ("files", "limit", "left"),
    [
        ({"meminfo": "MemTotal: 9 kB\nMemAvailable:   5 kB\n"}, None, 5 * 1024),
        ({"meminfo": "MemAvailable: 5 kB\n", "memory.max": "max", "memory.current": "7"}, None, 5 * 1024),
        ({"meminfo": "MemAvailable: 5 kB\n", "memory.max": "2000", "memory.current": "500"}, None, 1500),
        ({"memory.max": "500", "memory.current": "600"}, 9, 0),
        ({}, 1234, 1234),
        ({}, None, None),
    ],
)
def test_memory_left_is_the_least_that_machine_container_and_process_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], limit: int | None, left: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(system_limits, "_MEMORY_OF_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(system_limits, "_CONTAINER", tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY if limit is None else limit, 0))
    assert system_limits.memory_left() == left
