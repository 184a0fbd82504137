"""remat: plans the rematerialization of a computation graph under a memory budget, and proves the plan.

What Python code may call, `remat_cli.api` says.
"""

from importlib import import_module
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
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
