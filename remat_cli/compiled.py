"""Functions that numba compiles when they are first called, and keeps on disk for the next time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiler() -> ModuleType | None:
    """Return numba; None where it is switched off (as in tests) or does not go with the numpy that is installed."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    try:
        import numba
    except ImportError:
        return None
    return numba


_NUMBA = _compiler()
# Without it, functions stay as they are: slower by far, and of the same results.
IS_COMPILED = _NUMBA is not None


def compiled(function: Function) -> Function:
    """Return the function, compiled when it is first called."""
    if _NUMBA is None:
        return function
    try:
        return cast(Function, _NUMBA.njit(cache=True)(function))
    except RuntimeError:  # no folder can be written: it is compiled anew by each process
        return cast(Function, _NUMBA.njit(function))


def is_kept(function: Callable[..., Any]) -> bool:
    """Tell whether a function of `compiled` was compiled before, or is plain Python: a first call takes no long."""
    if not IS_COMPILED:
        return True
    dispatcher: Any = function
    folder, code = dispatcher.stats.cache_path, f"{function.__module__.rpartition('.')[2]}.{function.__name__}-*.nbc"
    return bool(dispatcher.signatures) or (folder is not None and any(Path(folder).glob(code)))
