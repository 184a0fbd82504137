"""remat: plans the rematerialization of a computation graph under a memory budget, and proves the plan.

What Python code may call, `remat_cli.api` says.
"""

from __future__ import annotations

# Nothing is imported here: `__main__` is to catch Ctrl-C as early as it can. Type checkers know this name as true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

# Imported when they are asked for, so that the command line starts at once.
_HOMES = {
    **dict.fromkeys(("Planning", "Prepared", "plan", "read", "replay", "verify"), "remat_cli.api"),
    "session_options": "remat_cli.runtime.onnx.session",
}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
