"""Reading PyTorch: a Python function that returns a model and its inputs becomes the graph of one training step.

`formats.functions` names the function and calls it, `step` says what it may return, `weightless` builds the model
without memory, `internals` has torch.compile hand over the joint graph of forward and backward pass, `joint` resolves
in it who shares memory with whom, `convert` makes of that a `Graph`. Of many equal blocks few are traced (`blocks`),
and what all of them would give is worked out (`lines`). Nothing here loads torch before a function is named.
"""

from __future__ import annotations

from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.interruption import nothing_to_lose

__all__ = ["check_installed", "read"]


def check_installed() -> None:
    """Check that torch can be imported.

    Raises:
        UsageError: it cannot.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"a PyTorch step needs torch, which cannot be imported: {error}", hint="pip install 'remat[torch]'"
        ) from None


def read(reference: Path, options: ReadOptions) -> Reading:
    """Read the training step that `FILE.py:NAME` or `package.module:NAME` describes.

    Raises:
        UsageError: there is no such function, it does not take the dims, torch is missing or not supported.
        GraphError: what the function returns is no training step, or it cannot be captured as one graph.
    """
    with nothing_to_lose():
        check_installed()
    from remat_cli.pytorch.capture.reader import read_step

    return read_step(str(reference), options)
