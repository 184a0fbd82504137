"""What a new release of torch does otherwise is found at first use, and named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture import joint_capture
from remat_cli.pytorch.unstable import (
    autograd,
    decompositions,
    dispatch,
    fakes,
    inductor,
    modules,
    ops,
    probes,
    pytree,
    tensors,
)
from remat_cli.pytorch.unstable.masks import packing_looked_for
from remat_cli.pytorch.unstable.versions import explained_as_unsupported


def none(*_: Any, **__: Any) -> None:
    """Return None, whatever is asked."""


def test_this_release_has_no_fault() -> None:
    assert probes.fault() == ""


# For each fault, what of ours would be broken, and how.
BROKEN: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "nested containers are flattened in another order": (pytree, "tree_leaves", lambda tree: [4, 3, 2, 1]),
    "nodes of autograd are numbered otherwise": (autograd, "_next_number", lambda: 0),
    "a backward pass does not tell its nodes or its end": (autograd, "_current_node", none),
    "tensors do not say whether they share memory or have changed": (tensors, "key_of", lambda storage: 0),
    "arguments of Tensor.to are read otherwise": (tensors, "moved_to", lambda *_: (None, None)),
    "storages change their size unseen": (probes, "tell_of_resizes", none),
    "ops declare their arguments otherwise": (ops, "name_of", lambda op: "add"),
    "calls of modules cannot be replaced": (modules, "set_call_instead", none),
    "modules keep their parameters and buffers elsewhere": (modules, "own_tensors", lambda module: ({}, {})),
    "hooks of all modules are kept elsewhere": (modules, "GLOBAL_HOOKS", ()),  # type: ignore[dict-item]
    "functions that make tensors are not listed": (modules, "_device_constructors", set),
    "tensors without data behave otherwise": (fakes, "is_fake", lambda value: False),
    "dispatch modes are not listed, or cannot be left out": (dispatch, "_disable_current_modes", nullcontext),
    "rules by which ops are traced cannot be put aside": (decompositions, "_ROUNDED_DIFFERENTLY", ()),  # type: ignore[dict-item]
    "ops cannot be overridden for a while": (probes, "overridden", lambda *_: nullcontext()),
    "shards of a model are kept elsewhere": (probes, "FSDPModule", object),
}


def test_every_probe_is_tried() -> None:
    assert BROKEN.keys() == probes.PROBES.keys()


@pytest.mark.parametrize("fault", BROKEN)
def test_what_a_release_breaks_is_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead = BROKEN[fault]
    monkeypatch.setattr(where, name, instead)
    assert probes.fault().startswith(fault)
    joint_capture.check_supported.cache_clear()
    try:
        with pytest.raises(UsageError, match=f"does not work with this version of remat: {fault}"):
            joint_capture.check_supported()
    finally:
        joint_capture.check_supported.cache_clear()


def test_an_error_in_a_probe_is_told() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(autograd, "number_of", lambda node: node.number)
        assert "AttributeError" in probes.fault()


@pytest.mark.parametrize(
    "statement", ["from torch._dynamo import nothing", "import torch._nothing", "import torch; torch._nothing"]
)
def test_a_missing_part_is_told(statement: str) -> None:
    with (
        pytest.raises(UsageError, match=r"does not work with this version of remat: .*nothing"),
        explained_as_unsupported(),
    ):
        exec(statement)


def test_a_missing_torch_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="torch"), explained_as_unsupported():
        exec("import torch")


def test_missing_parts_of_the_compiler_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.decomposition as moved

    monkeypatch.delattr(moved, "select_decomp_table")
    with pytest.raises(UsageError, match="select_decomp_table"):
        inductor.decompositions()


def test_masks_are_looked_for_in_given_positions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Masking:
        @staticmethod
        def find_packed_sequence_indices(position_ids: torch.Tensor) -> str:
            return "packed"

    monkeypatch.setitem(sys.modules, "transformers.masking_utils", Masking)
    looks, given, made = Masking.find_packed_sequence_indices, torch.ones(1), torch.ones(1)
    with packing_looked_for(lambda position_ids: position_ids is given):
        assert Masking.find_packed_sequence_indices(given) == "packed"
        assert Masking.find_packed_sequence_indices(made) is None
    assert Masking.find_packed_sequence_indices is looks
