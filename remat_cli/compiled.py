"""Functions that numba compiles; where it cannot, or cannot keep its work, that is a note and never an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


COMPILE = "`remat planners --compile`, once"


class Trouble(NamedTuple):
    """Why functions are not compiled, or compiled anew by every process.

    Attributes:
        reason: in a clause.
        remedy: what to do about it.
    """

    reason: str
    remedy: str


def trouble() -> Trouble | None:
    """Return what keeps functions from being compiled once and for all; None where nothing does."""
    compiler = _compiler()
    return compiler if isinstance(compiler, Trouble) else _failures[0] if _failures else None


def can_compile() -> bool:
    """Tell whether functions are compiled, be it for this process alone."""
    return not isinstance(_compiler(), Trouble)


def compiled(function: Function) -> Function:
    """Return the function, compiled when it is first called; the function as it is where it cannot be compiled."""
    numba = _compiler()
    if isinstance(numba, Trouble):
        return function
    dispatcher = numba.njit(function)
    kept = _cache_of(function)
    if kept is not None:
        dispatcher._cache = kept
    return cast(Function, dispatcher)


def is_kept(function: Callable[..., Any]) -> bool:
    """Tell whether a function of `compiled` lies on disk for this processor: loading takes far less than compiling."""
    caches = getattr(getattr(function, "_cache", None), "readable", ())
    return any(_has_code(each) for each in caches)


def is_at_hand(function: Callable[..., Any]) -> bool:
    """Tell whether a first call of a function of `compiled` waits for no compiler: it is plain, compiled, or kept."""
    return not can_compile() or bool(getattr(function, "signatures", ())) or is_kept(function)


# What went wrong with caches; the first is told.
_failures: list[Trouble] = []


def _note(what: str) -> None:
    _failures.append(Trouble(what, f"set NUMBA_CACHE_DIR to a folder that can be written, then {COMPILE}"))


@cache
def _compiler() -> ModuleType | Trouble:
    """Return numba, or why there is none."""
    if find_spec("numba") is None:
        return Trouble("numba, which compiles, is not installed", f"`pip install numba`, then {COMPILE}")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return Trouble("NUMBA_DISABLE_JIT is set, so that numba compiles nothing", "unset it")
    try:
        import numba
    except Exception as error:  # it refuses releases of numpy, and its library those of the system
        return Trouble(f"numba cannot be imported: {error}", "install releases of numba and numpy that go together")
    return numba


def _cache_of(function: Callable[..., Any]) -> Any:
    """Return the cache of a function; None where there can be none."""
    try:
        return _cache_class()(function)
    except Exception as error:  # that class of numba's is private: a release without it costs the cache alone
        _note(f"compiled functions cannot be kept: {error}")
        return None


def _has_code(cache: Any) -> bool:
    from numba.core.registry import cpu_target

    try:
        processor = cpu_target.target_context.codegen().magic_tuple()
        return any(key[1] == processor for key in cache._cache_file._load_index())
    except Exception as error:  # half a file, or another user's
        _note(f"compiled functions in {cache.cache_path} cannot be used: {error}")
        return False


@cache
def _cache_class() -> Callable[..., Any]:
    """Return what makes caches, which needs numba."""
    from numba.core import caching

    class Installed(caching.InTreeCacheLocator):
        """Beside the source, even where this user cannot write: what was compiled as an image was built."""

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            return cls(py_func, py_file)

    class InstalledCode(caching.CompileResultCacheImpl):
        _locator_classes = [Installed]  # noqa: RUF012

    class InstalledCache(caching.FunctionCache):
        _impl_class = InstalledCode

    return partial(_FunctionCaches, of_user=caching.FunctionCache, installed=InstalledCache)


class _FunctionCaches:
    """The code of a function on disk, beside the source and of this user; a file that fails is passed over."""

    def __init__(
        self, function: Callable[..., Any], of_user: Callable[..., Any], installed: Callable[..., Any]
    ) -> None:
        self._written = None
        with suppress(RuntimeError):  # no folder can be written
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
            except Exception as error:  # half a file, or another user's
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
