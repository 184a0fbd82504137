"""Functions that numba compiles."""
from __future__ import annotations
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast
Function = TypeVar("Function", bound=Callable[..., Any])
IS_COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
def compiled(function: Function) -> Function:
    if not IS_COMPILED:
        return function
    import numba
    return cast(Function, numba.njit(cache=True)(function))
