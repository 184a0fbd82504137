"""remat: plans the rematerialization of a computation graph under a memory budget, and proves the plan."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "session_options"]


def __getattr__(name: str) -> Any:
    # What users' own code calls; imported when it is asked for, so that the command line starts at once.
    if name == "session_options":
        from importlib import import_module

        return import_module("remat_cli.runtime.onnx.session").session_options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
