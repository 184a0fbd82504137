"""Functions compiled by numba, or left plain with a note.

If numba cannot compile, or cannot keep its work, that is a note and never an error. A first compilation takes longer
than many calls: it happens in a process beside the other work of a call.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from math import inf
from time import sleep
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


COMPILE = "`remat planners --compile`, once"


class Trouble(NamedTuple):
    """The reason why functions are not compiled once and for all.

    They may be plain, or compiled anew by every process.

    Attributes:
        reason: the reason, as a clause.
        remedy: the remedy.
    """

    reason: str
    remedy: str


def trouble() -> Trouble | None:
    """Return the reason why functions are not compiled once and for all.

    None if they are.
    """
    compiler = _compiler()
    return compiler if isinstance(compiler, Trouble) else _failures[0] if _failures else None


def can_compile() -> bool:
    """Tell whether functions can be compiled, even if not kept."""
    return not isinstance(_compiler(), Trouble)


def compiled(function: Function) -> Function:
    """Return the function, compiled at its first call.

    If it cannot be compiled, return the plain function.
    """
    numba = _compiler()
    if isinstance(numba, Trouble):
        return function
    dispatcher = numba.njit(function)
    kept = _cache_of(function)
    if kept is not None:
        dispatcher._cache = kept
    return cast(Function, dispatcher)


def is_kept(function: Callable[..., Any]) -> bool:
    """Tell whether a compiled function is kept on disk for this processor.

    Loading takes far less time than compiling.
    """
    caches = getattr(getattr(function, "_cache", None), "readable", ())
    return any(_has_code(each) for each in caches)


def is_at_hand(function: Callable[..., Any]) -> bool:
    """Tell whether the first call of a function needs no compiler.

    The function is then plain, compiled or kept.
    """
    return is_loaded(function) or is_kept(function)


def is_loaded(function: Callable[..., Any]) -> bool:
    """Tell whether a function is plain, or compiled in this process."""
    return not can_compile() or bool(getattr(function, "signatures", ()))


class Kernel:
    """The compiled functions of a search, compiled in a process beside this one.

    What is kept on disk serves all later processes. The process ends with this one; what it has kept by then stays.

    Attributes:
        search: the search, for people.
    """

    def __init__(self, search: str, functions: tuple[Callable[..., Any], ...], call_all: Callable[[], object]) -> None:
        """Name the functions without compiling them.

        Args:
            search: the search, for people.
            functions: functions that the search calls.
            call_all: function at the top of a module that calls each of them.
        """
        self.search, self._functions, self._call_all = search, functions, call_all
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the first call of no function needs the compiler."""
        return all(map(is_at_hand, self._functions))

    @property
    def is_compiling(self) -> bool:
        """Whether the process is still at work."""
        return self._process is not None and self._process.poll() is None

    def note(self) -> str:
        """Return why the search is left out or slow, with the remedy; empty if it is neither."""
        if can_compile() and self.is_ready:
            return ""
        reason, remedy = trouble() or Trouble("it was not compiled in time", COMPILE)
        return (
            f"{self.search} {'was left out' if can_compile() else 'ran uncompiled'}: {reason}. To mend that: {remedy}."
        )

    def compile(self) -> bool:
        """Compile the functions in this process; return whether they were compiled before.

        Nothing is compiled if there is no compiler, or no folder for what it makes.
        """
        was_ready = self.is_ready
        if trouble() is None and not was_ready:
            self._call_all()
        return was_ready

    def start(self) -> None:
        """Start the process, unless it was started before or is not needed."""
        if self._process is not None or self.is_ready:
            return
        program = _PROGRAM.format(path=sys.path, module=self._call_all.__module__, name=self._call_all.__name__)
        nothing = subprocess.DEVNULL
        try:  # a session of its own: Ctrl-C is for this process
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
            )
        except OSError as error:
            _failures.append(Trouble(f"no process can be started that compiles: {error}", COMPILE))

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Wait for the process; return whether the functions are compiled.

        Without a limit in seconds there is no process: the first calls compile.

        Args:
            seconds: limit of the caller. Loading takes a second, so a shorter limit is too short.
            is_over: tells when to end the wait.
        """
        if seconds == inf:
            return True
        if seconds < _SECONDS_TO_LOAD and not all(map(is_loaded, self._functions)):
            return False
        self.start()
        while self.is_compiling and not is_over():
            sleep(_LOOK)
        return self.is_ready


# The program of a process that compiles. It ends when its parent does, which closes the pipe.
_PROGRAM = """
import os, sys, threading
sys.path[:] = {path!r}
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
from {module} import {name}
{name}()
"""
_SECONDS_TO_LOAD = 1.0
# Seconds between two looks at the process.
_LOOK = 0.05
# Failures of caches and processes; the first one is reported.
_failures: list[Trouble] = []


def _note(what: str) -> None:
    _failures.append(Trouble(what, f"set NUMBA_CACHE_DIR to a folder that can be written, then {COMPILE}"))


@cache
def _compiler() -> ModuleType | Trouble:
    """Return numba, or the reason why there is none."""
    if find_spec("numba") is None:
        return Trouble("numba, which compiles, is not installed", f"`pip install numba`, then {COMPILE}")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return Trouble("NUMBA_DISABLE_JIT is set, so that numba compiles nothing", "unset it")
    try:
        import numba
    except Exception as error:  # numba refuses some releases of numpy, and its library some systems
        return Trouble(f"numba cannot be imported: {error}", "install releases of numba and numpy that go together")
    return numba


def _cache_of(function: Callable[..., Any]) -> Any:
    """Return the cache of a function; None if there can be none."""
    try:
        return _cache_class()(function)
    except Exception as error:  # the class is private to numba: a release without it costs only the cache
        _note(f"compiled functions cannot be kept: {error}")
        return None


def _has_code(cache: Any) -> bool:
    from numba.core.registry import cpu_target

    try:
        processor = cpu_target.target_context.codegen().magic_tuple()
        return any(key[1] == processor for key in cache._cache_file._load_index())
    except Exception as error:  # a half-written file, or another user's
        _note(f"compiled functions in {cache.cache_path} cannot be used: {error}")
        return False


@cache
def _cache_class() -> Callable[..., Any]:
    """Return the class of caches, which needs numba."""
    from numba.core import caching

    class Installed(caching.InTreeCacheLocator):
        """A cache beside the source, even one that this user cannot write.

        It serves functions that were compiled while an image was built.
        """

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            return cls(py_func, py_file)

    class InstalledCode(caching.CompileResultCacheImpl):
        _locator_classes = [Installed]  # noqa: RUF012

    class InstalledCache(caching.FunctionCache):
        _impl_class = InstalledCode

    return partial(_FunctionCaches, of_user=caching.FunctionCache, installed=InstalledCache)


class _FunctionCaches:
    """The caches of a function, beside the source and of this user.

    A file that fails is skipped.
    """

    def __init__(
        self, function: Callable[..., Any], of_user: Callable[..., Any], installed: Callable[..., Any]
    ) -> None:
        self._written = None
        with suppress(RuntimeError):  # no folder is writable
            self._written = of_user(function)
        self.readable = [each for each in (self._written, installed(function)) if each is not None]
        if self._written is None:
            _note("no folder can be written in which compiled functions are kept")

    @property
    def cache_path(self) -> str:
        return str(self.readable[0].cache_path)

    def load_overload(self, signature: Any, context: Any) -> Any:
        for each in self.readable:
            try:
                code = each.load_overload(signature, context)
            except Exception as error:  # a half-written file, or another user's
                _note(f"compiled functions in {each.cache_path} cannot be used: {error}")
            else:
                if code is not None:
                    return code
        return None

    def save_overload(self, signature: Any, code: Any) -> None:
        try:
            if self._written is not None:
                self._written.save_overload(signature, code)
        except Exception as error:  # the disk is full
            _note(f"compiled functions cannot be written to {self.cache_path}: {error}")
