"""What backward passes show of outputs: which get gradients, and which callers let go of."""

from __future__ import annotations

from typing import Any

import torch

from remat_cli.pytorch.capture.outputs import OutputGradients, Released, _node_of

FORM = ((0, 0, torch.float32), (1, 2, torch.float32), (2, 2, torch.float32))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return 2 * gradients[0]


def test_an_output_is_known_as_let_go_of_when_all_backward_passes_showed_it() -> None:
    gradients = OutputGradients()
    released = Released(gradients, FORM, {1: 4, 2: 5})

    def seen() -> tuple[list[int], list[int]]:
        return sorted(released.known), sorted(released.possible)

    assert seen() == ([], [4, 5])
    gradients.hold(FORM, 1, held=False)
    assert seen() == ([4], [4, 5])
    gradients.hold(FORM, 2, held=True)
    assert seen() == ([4], [4])
    gradients.hold(FORM, 1, held=True)
    gradients.hold(FORM, 1, held=False)
    assert seen() == ([], [])


def test_a_scalar_is_taken_for_the_loss_until_gradients_arrive() -> None:
    gradients = OutputGradients()
    assert gradients.expected(FORM) == {0}
    assert gradients.expected(FORM[1:]) == {1, 2}
    gradients.arrive(FORM, [1])
    assert gradients.expected(FORM) == {1}
    gradients.arrive(FORM, [2])
    assert gradients.expected(FORM) == {1, 2}


def test_the_node_of_a_captured_function_is_found_behind_views() -> None:
    result: Any = Doubled.apply(torch.ones(4, requires_grad=True))  # type: ignore[no-untyped-call]
    assert _node_of(result.view(2, 2).t().grad_fn) is result.grad_fn
    assert _node_of(torch.ones(4, requires_grad=True).view(2, 2).grad_fn) is None
