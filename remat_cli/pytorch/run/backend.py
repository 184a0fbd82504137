"""The backend "remat" of torch.compile.

`torch.compile(model, backend="remat", options={"budget": "8GB"})` plans a model in the way that users of PyTorch know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

from torch import fx

from remat_cli.errors import GraphError, RematError, UsageError
from remat_cli.pytorch.capture.joint_capture import divided_by
from remat_cli.pytorch.capture.places import innermost
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.run.planned import planned, source_within

# Arguments of `planned` that the backend lacks: torch calls the model here, and no later step is refused.
_OF_PLANNED_ALONE = {"model", "schedule", "regions", "strict"}
_EXAMPLE = 'torch.compile(model, backend="remat", options={"budget": "8GB", "fused": True})'


def remat(module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """Plan a graph captured by torch.compile; return its runner.

    The runner has a backward pass, too.

    Args:
        module: the captured graph.
        inputs: arguments of the graph.
        options: "budget", "fused" (False without it), and other arguments of `planned` about the plan, except a
            schedule from a file and regions.

    Raises:
        UsageError: an option is missing or wrong.
        GraphError: the model breaks into several graphs, which have no common plan, or cannot be planned.
        DoesNotFit: no plan fits the budget.
    """
    try:
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            place = innermost([(frame.filename, frame.lineno or 0) for frame in reason.user_stack])
            where = f" at {place}" if place else ""
            raise GraphError(
                f"the model breaks into several graphs{where}, and a budget is planned for one",
                hint="torch.compile(..., fullgraph=True) says where; planned(model, budget=..., regions='auto') plans "
                "the blocks",
            )
        call = _call(module, dict(options or {}))
        return divided_by(module, inputs, call.divide, call.gradients, fused=call.source.is_decomposed)
    except RematError as error:
        if error.hint:  # torch.compile shows the text of `str`
            error.args = (f"{error.message}\nhint: {error.hint}",)
        raise


def _call(module: fx.GraphModule, options: dict[str, Any]) -> PlannedCall:
    if options.get("budget") is None:
        raise UsageError("backend 'remat' needs a budget", hint=_EXAMPLE)
    known = set(signature(planned).parameters) - _OF_PLANNED_ALONE
    if unknown := sorted(options.keys() - known):
        raise UsageError(f"backend 'remat' has no option {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}")
    call = PlannedCall(module, source_within(**options))
    call.record.run_context = nullcontext  # the end of a step is not seen from here: it is not measured
    call.record.at_backward = lambda: None
    return call
