"""Functions that numba compiles when they are first called, and keeps on disk for the next time."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

# NUMBA_DISABLE_JIT=1 leaves functions as they are, and so do tests.
IS_COMPILED = find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def compiled(function: Function) -> Function:
    """Return the function, compiled when it is first called if numba is there."""
    if not IS_COMPILED:
        return function
    import numba

    return cast(Function, numba.njit(cache=True)(function))


def is_kept(function: Callable[..., Any]) -> bool:
    """Tell whether a function of `compiled` was compiled before, or is plain Python: a first call takes no long."""
    if not IS_COMPILED:
        return True
    dispatcher: Any = function
    code = f"{function.__module__.rpartition('.')[2]}.{function.__name__}-*.nbc"
    return bool(dispatcher.signatures) or any(Path(dispatcher.stats.cache_path).glob(code))
