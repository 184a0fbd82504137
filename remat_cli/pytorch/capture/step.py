"""The training step that a user's function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import GraphError

SHAPES = "return (model, inputs), (model, inputs, keyword_inputs), a dict with these names, or remat_cli.torch.Step"


@dataclass(frozen=True)
class Step:
    """A training step: what is called, and with what. The gradients are those of its loss.

    That is what a dict has by the name of "loss", else the scalars among what is returned, else all of that. Whoever
    calls it lets go of the rest before the backward pass.

    Attributes:
        model: a `torch.nn.Module`, or a function; the loss is inside it or computed by it. A function may take the
            module among its inputs: `def loss(model, x, y): return cross_entropy(model(x), y)`.
        inputs: positional arguments.
        keyword_inputs: keyword arguments.
        optimizer: a `torch.optim.Optimizer` over the model's parameters, or the name of one, such as "adamw". Its state
            is counted as resident.
    """

    model: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    keyword_inputs: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Any = None


def losses_in(returned: Any, tensors: Sequence[Any]) -> list[Any]:
    """Return the outputs of a step that get a gradient.

    Args:
        returned: results of the model.
        tensors: the differentiable tensors in it.

    Returns:
        The value named "loss", as in models of transformers; else the scalars; else all values.
    """
    loss = returned.get("loss") if isinstance(returned, Mapping) else None
    if getattr(loss, "requires_grad", False):
        return [loss]
    return [tensor for tensor in tensors if tensor.dim() == 0] or list(tensors)


def as_step(returned: Any, where: str) -> Step:
    """Return the result of a user's function as a `Step`.

    Args:
        returned: a `Step`; a tuple of a model and its inputs, and keyword inputs after these; a model and one mapping,
            which are keyword inputs; or a dict of `Step`'s fields by name.
        where: the function's name, for messages.

    Raises:
        GraphError: the object is none of these.
    """
    if isinstance(returned, Step):
        step = returned
    elif isinstance(returned, tuple | list):
        step = _of_sequence(returned, where)
    elif isinstance(returned, Mapping):
        unknown = returned.keys() - {"model", "inputs", "keyword_inputs", "optimizer"}
        if unknown or "model" not in returned:
            what = f"has {sorted(map(str, unknown))[0]!r}" if unknown else "has no 'model'"
            raise GraphError(f"{where}: the dict that it returns {what}", hint=SHAPES)
        step = Step(**{"inputs": (), **returned})
    else:
        raise GraphError(f"{where}: what it returns is {_kind(returned)}, not a model and its inputs", hint=SHAPES)
    if not callable(step.model):
        raise GraphError(f"{where}: the model that it returns is {_kind(step.model)}", hint=SHAPES)
    if not isinstance(step.keyword_inputs, Mapping):
        raise GraphError(f"{where}: its keyword inputs are {_kind(step.keyword_inputs)}, not a dict", hint=SHAPES)
    return Step(step.model, _as_tuple(step.inputs), dict(step.keyword_inputs), step.optimizer)


def _of_sequence(returned: Sequence[Any], where: str) -> Step:
    if len(returned) == 2:
        model, inputs = returned
        return Step(model, (), inputs) if isinstance(inputs, Mapping) else Step(model, inputs)
    if len(returned) == 3:
        return Step(*returned)
    raise GraphError(f"{where} returned {len(returned)} things, not a model and its inputs", hint=SHAPES)


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    """Return positional inputs as a tuple: one that is given alone is one input."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__!r}"
