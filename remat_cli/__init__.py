"""remat: plans rematerialization under a memory budget, with proof.

The plans are for computation graphs, and every plan is proven by simulation. The public Python API is in
`remat_cli.api`.
"""

from __future__ import annotations

# No imports here: `__main__` must catch Ctrl-C as early as it can. Type checkers know this name as true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

# Imported at first use, so that the command line starts at once.
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
