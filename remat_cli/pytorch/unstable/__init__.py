"""Parts of torch and its companions without a promise of stability.

Only modules of this room import them, and offer each as a function or a name of ours. What a new release of torch has
moved is told at the first use of the room, as torch is loaded; what behaves otherwise, by the probes in `probes`.
"""

from __future__ import annotations

from remat_cli.pytorch.unstable.versions import explained_as_unsupported

with explained_as_unsupported():
    from remat_cli.pytorch.unstable import (  # noqa: F401
        autograd,
        decompositions,
        dispatch,
        fakes,
        front_end,
        joint_graphs,
        modules,
        ops,
        overrides,
        pytree,
        ranks,
        tensors,
    )
