"""Reading PyTorch: training steps captured as graphs.

The step's model and inputs come from a Python function.

`formats.functions` names the function and calls it, `step` defines the function's results, `weightless` builds the
model without memory, `joint_capture` gets the joint graph of forward and backward pass from torch.compile, `joint`
resolves shared memory there, `convert` turns the result into a `Graph`. Of many equal blocks few are traced (`blocks`),
and the graph of all is computed (`lines`). Nothing here loads torch before a function is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remat_cli.errors import UsageError
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.machine.interruption import nothing_to_lose

if TYPE_CHECKING:
    from remat_cli.pytorch.capture.reader import TakenStep

__all__ = ["check_installed", "read", "take"]


def check_installed() -> None:
    """Check that torch can be imported.

    Raises:
        UsageError: torch cannot be imported.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"a PyTorch step needs torch, which cannot be imported: {error}", hint="pip install 'remat[torch]'"
        ) from None


def take(reference: Path, options: ReadOptions) -> TakenStep:
    """Capture a training step of eager's ops, whose regions can run in parts.

    Args:
        reference: the reference, as `read` takes it.
        options: the options of `read`.

    Raises:
        UsageError: see `read`.
        GraphError: see `read`.
    """
    check_installed()
    from remat_cli.pytorch.capture.reader import take_step

    return take_step(str(reference), options, to_split=True)


def read(reference: Path, options: ReadOptions) -> Reading:
    """Read the training step of a Python function.

    The function is given as `FILE.py:NAME` or `package.module:NAME`.

    Raises:
        UsageError: there is no such function, it does not take the dims, torch is missing or not supported.
        GraphError: the function returns no training step, or the step cannot be captured as one graph.
    """
    with nothing_to_lose():
        check_installed()
    from remat_cli.pytorch.capture.reader import read_step

    return read_step(str(reference), options)
