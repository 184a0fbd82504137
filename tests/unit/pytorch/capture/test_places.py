"""Names and places of a user's code, as torch tells them."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from remat_cli.pytorch.capture.places import innermost, module_of, readable, root_of

USER = [("/code/train.py", 3), ("/code/net.py", 7)]
TORCH = [(torch.nn.functional.__file__, 5)]


@pytest.mark.parametrize(
    ("frames", "place"),
    [([], None), (USER, "/code/net.py:7"), (USER + TORCH, "/code/net.py:7"), (TORCH, "torch/nn/functional.py:5")],
)
def test_an_op_comes_from_the_innermost_line_of_the_user(frames: list[tuple[str, int]], place: str | None) -> None:
    assert innermost(frames) == place


@pytest.mark.parametrize(
    ("source", "root", "path"),
    [
        ("L['self']._modules['a']._parameters['b']", "self", "a.b"),
        ("L['self']._modules['blocks']._modules['0']", "self", "blocks.0"),
        ("L['self']", "self", ""),
        ("L['model']._modules['a']", "", "model.a"),
        ("L['heads'][1]", "", "heads.1"),
    ],
)
def test_a_source_is_read_as_a_path(source: str, root: str, path: str) -> None:
    assert readable(source, root) == path


def test_an_op_is_of_its_innermost_module_a_backward_op_of_its_forward_ops() -> None:
    graph = fx.Graph()
    stack = {"0": ("L['self']", object), "1": ("L['self']._modules['a']", object), "2": ("L['self'].a.b", object)}
    node = graph.placeholder("x")
    assert module_of(node, "self") is None
    for key in ("fwd_nn_module_stack", "nn_module_stack"):
        node.meta = {key: stack}
        assert module_of(node, "self") == "a.b"


def test_the_model_is_what_parameters_hang_on() -> None:
    assert root_of(("L['x']", "L['net']._modules['a']._parameters['b']")) == "net"
    assert root_of(("L['x']",)) == ""
