"""Releases of torch with which remat works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remat_cli.errors import UsageError

TESTED_VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")


def unsupported(fault: str) -> UsageError:
    """Return the error that says that this torch does not work as expected."""
    import torch

    tested = ", ".join(TESTED_VERSIONS)
    return UsageError(
        f"torch {torch.__version__} does not work with this version of remat: {fault}",
        hint=f"remat was tested with torch {tested}; install one of these, or a newer remat",
    )


@contextmanager
def explained_as_unsupported() -> Iterator[None]:
    """Turn errors over missing parts of torch into advice.

    Raises:
        UsageError: torch has moved or dropped a part.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise
        raise unsupported(str(error)) from error
    except (ImportError, AttributeError) as error:
        raise unsupported(str(error)) from error
