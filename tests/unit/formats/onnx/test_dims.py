"""Binding of symbolic dimensions."""

from __future__ import annotations

from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest

from remat_cli.config import GraphOptions
from remat_cli.errors import GraphError, UsageError
from remat_cli.prepare import prepare
from tests.unit.formats.onnx.models import Dims, Model, float_input, node, tensor, value, weight


def adder(first: Dims, second: Dims = (1,)) -> Model:
    """Return a model that adds inputs x and z of these shapes."""
    return Model([node("Add", ["x", "z"], ["y"])], inputs=[value("x", first), value("z", second)])


def test_symbols_take_the_given_values(tmp_path: Path) -> None:
    reading = adder(["batch", 3], ["batch", 1]).read(tmp_path, dims={"batch": 7})
    assert tensor(reading, "x").shape == (7, 3)
    assert tensor(reading, "y").shape == (7, 3)


def test_input_shape_binds_its_symbols_for_all_inputs(tmp_path: Path) -> None:
    reading = adder(["batch", "seq"], ["batch", 1]).read(tmp_path, input_shapes={"x": (5, 6)})
    assert tensor(reading, "z").shape == (5, 1)


def test_input_shape_gives_a_rank_that_the_file_leaves_open(tmp_path: Path) -> None:
    assert tensor(adder(None).read(tmp_path, input_shapes={"x": (4, 1)}), "y").shape == (4, 1)


def test_input_shape_of_a_scalar(tmp_path: Path) -> None:
    assert tensor(adder(None).read(tmp_path, input_shapes={"x": ()}), "x").shape == ()


def test_unbound_symbols_are_listed_with_every_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        adder(["batch", "seq"], ["batch", 1]).read(tmp_path)
    assert "batch (input 'x', axis 0; input 'z', axis 0)" in caught.value.message
    assert "seq (input 'x', axis 1)" in caught.value.message
    assert caught.value.hint == "bind them: --dim batch=8 --dim seq=8"


def test_nameless_and_shapeless_inputs_are_listed_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        adder([3, None]).read(tmp_path)
    assert "input 'x', axis 1 (no name)" in caught.value.message
    assert "--input-shape x:3,8" in caught.value.hint
    with pytest.raises(UsageError, match="the shape of input 'x'"):
        adder(None).read(tmp_path)


def test_unknown_symbol_gets_a_guess_and_the_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        adder(["batch", "seq"]).read(tmp_path, dims={"btach": 8})
    assert "'btach'" in caught.value.message
    assert caught.value.hint == "did you mean 'batch'? its symbols are batch, seq"


def test_symbol_for_a_model_of_fixed_sizes(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        adder([2, 3]).read(tmp_path, dims={"batch": 8})
    assert "fixed" in caught.value.hint


def test_negative_value_of_a_symbol(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'batch' is bound to -1"):
        adder(["batch"]).read(tmp_path, dims={"batch": -1})


def test_shape_of_an_unknown_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        adder(["batch"]).read(tmp_path, input_shapes={"X": (8,)})
    assert "no input 'X'" in caught.value.message
    assert "x, z" in caught.value.hint


def test_shape_of_the_wrong_rank(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"2 dimensions, \[batch,3\], but the given shape has 3"):
        adder(["batch", 3]).read(tmp_path, input_shapes={"x": (8, 3, 1)})


def test_shape_that_contradicts_a_fixed_size(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="axis 1 of input 'x' is fixed to 3"):
        adder(["batch", 3]).read(tmp_path, input_shapes={"x": (8, 4)})


def test_shape_that_contradicts_dim(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'batch' 4, but it is 8 elsewhere"):
        adder(["batch"]).read(tmp_path, dims={"batch": 8}, input_shapes={"x": (4,)})


def test_shapes_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="elsewhere"):
        adder(["batch"], ["batch"]).read(tmp_path, input_shapes={"x": (4,), "z": (5,)})


def test_negative_size_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"input 'x' has shape \[-2,3\], with a negative dimension"):
        adder([-2, 3]).read(tmp_path)


@pytest.mark.parametrize("placeholder", ["?", "", "-1", -1, None])
def test_placeholders_are_sizes_of_their_own(tmp_path: Path, placeholder: str | int | None) -> None:
    reading = adder([placeholder, 3, placeholder], [placeholder]).read(
        tmp_path, input_shapes={"x": (6, 3, 48), "z": (1,)}
    )
    assert tensor(reading, "y").shape == (6, 3, 48)


def test_counted_placeholders_are_no_names_for_each_other(tmp_path: Path) -> None:
    model = adder(["unk__1", 3], ["unk__1"])
    assert tensor(model.read(tmp_path, input_shapes={"x": (6, 3), "z": (1,)}), "y").shape == (6, 3)
    assert tensor(model.read(tmp_path, input_shapes={"x": (6, 3)}, dims={"unk__1": 3}), "z").shape == (3,)


@pytest.mark.parametrize("dims", [{}, {"*": 8}, {"?": 8}])
def test_the_hint_for_a_placeholder_names_the_shape(tmp_path: Path, dims: dict[str, int]) -> None:
    with pytest.raises(UsageError) as caught:
        adder(["?", 3, "?"]).read(tmp_path, dims=dims)
    assert "--input-shape x:8,3,8" in caught.value.hint
    assert "--dim" not in caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2*N", 16),
        ("floor(L/2)", 3),
        ("N + 1", 9),
        ("N - 1", 7),
        ("-N + 20", 12),
        ("N//3", 2),
        ("(N + L)/3", 5),
        ("N**2", 64),
        ("Max(1, N, L)", 8),
        ("Min(512, N)", 8),
        ("ceiling(L/2)", 4),
        ("Mod(L, 4)", 3),
        ("FloorDiv(N*L, 10)", 5),
        ("6", 6),
    ],
)
def test_an_expression_follows_from_its_symbols(tmp_path: Path, text: str, size: int) -> None:
    named = {"N": 8, "L": 7}
    model = adder(["N", "L", text], [text])
    assert tensor(model.read(tmp_path, dims=named), "x").shape == (8, 7, size)
    model.read(tmp_path, dims=named | ({} if text.isdecimal() else {text: size}))


@pytest.mark.parametrize("text", ["batch-size", "a.b", "f(N)", "N +", "__import__('os')", "x y", "N if N else 1", "é"])
def test_other_texts_are_names(tmp_path: Path, text: str) -> None:
    assert tensor(adder([text]).read(tmp_path, dims={text: 4}), "x").shape == (4,)


def test_an_expression_alone_takes_a_size_of_its_own(tmp_path: Path) -> None:
    assert tensor(adder(["past + seq"]).read(tmp_path, dims={"past + seq": 4}), "x").shape == (4,)
    assert tensor(adder(["2*N"]).read(tmp_path, input_shapes={"x": (5,)}), "x").shape == (5,)


def test_the_symbols_of_an_expression_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        adder(["2*N + M"], ["N"]).read(tmp_path)
    assert "N (input 'x', axis 0: 2*N + M; input 'z', axis 0), M (" in caught.value.message
    assert caught.value.hint == "bind them: --dim N=8 --dim M=8"


@pytest.mark.parametrize("given", [{"dims": {"N": 64, "2*N": 100}}, {"dims": {"N": 64}, "input_shapes": {"x": (100,)}}])
def test_an_expression_that_contradicts_its_symbols(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"'2\*N' is given as 100, but it is 128 where N is 64"):
        adder(["2*N"], ["N"]).read(tmp_path, **given)


@pytest.mark.parametrize("text", ["N/2", "N - 5", "3/(N - 3)", "(10**9*N)**9"])
def test_an_expression_that_is_no_size(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is no size where N is 3"):
        adder([text]).read(tmp_path, dims={"N": 3})


def test_an_expression_sizes_what_an_unknown_op_makes(tmp_path: Path) -> None:
    model = Model(
        [node("Mystery", ["x"], ["h"], domain="mine"), node("Neg", ["h"], ["y"])],
        inputs=[float_input("x", "N")],
        declared=[value("h", ["2*N"])],
    )
    assert tensor(model.read(tmp_path, dims={"N": 8}), "y").shape == (16,)


def test_negative_size_in_the_file_is_settled_by_a_given_shape(tmp_path: Path) -> None:
    assert tensor(adder([-1, 3]).read(tmp_path, input_shapes={"x": (5, 3)}), "y").shape == (5, 3)


def test_negative_size_in_a_given_shape(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="negative size"):
        adder(["batch"]).read(tmp_path, input_shapes={"x": (-4,)})


def test_zero_sizes_are_legal(tmp_path: Path) -> None:
    assert tensor(adder(["batch", 3]).read(tmp_path, dims={"batch": 0}), "y").bytes == 0


def test_scalar_input_needs_no_binding(tmp_path: Path) -> None:
    reading = adder([]).read(tmp_path)
    assert tensor(reading, "x").shape == ()
    assert tensor(reading, "x").bytes == 4


@pytest.mark.parametrize("expression", ["Min(512, seq)", "seq*12", "other"])
def test_expressions_on_other_values_are_no_symbols(tmp_path: Path, expression: str) -> None:
    model = Model(
        [node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])],
        inputs=[float_input("x", "seq")],
        declared=[value("h", [expression])],
    )
    assert tensor(model.read(tmp_path, dims={"seq": 6}), "h").shape == (6,)


@pytest.mark.parametrize("ir_version", [3, 10])
def test_initializers_among_the_inputs_are_not_bound(tmp_path: Path, ir_version: int) -> None:
    model = Model(
        [node("Add", ["x", "w"], ["y"])],
        inputs=[float_input("x", 2, 3), float_input("w", "rows", 3)],
        stored=[weight("w", 2, 3)],
        opset=8,
        ir_version=ir_version,
    )
    reading = model.read(tmp_path)
    assert reading.graph.inputs == ("x",)
    assert reading.graph.resident_bytes == 24


@pytest.mark.parametrize("dims", [[2**40, 2**40], [2**63 - 1]])
def test_sizes_beyond_2_to_the_60(tmp_path: Path, dims: list[int]) -> None:
    with pytest.raises(GraphError, match=r"input 'x' .* more than 2\^60"):
        adder(dims).read(tmp_path)


def test_a_shape_whose_product_has_more_digits_than_python_writes(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as caught:
        adder([2**62] * 300).read(tmp_path)
    assert caught.value.message.endswith(",... 300 dimensions]: about 10^5600 bytes, more than 2^60")
    assert len(caught.value.message) < 500


def test_work_with_more_digits_than_floating_point_takes(tmp_path: Path) -> None:
    """One multiply-add for each combination of 40 indices."""
    letters = ascii_letters[:40]
    inputs = [float_input(f"x{letter}", 2**50) for letter in letters]
    contract = node("Einsum", [f"x{letter}" for letter in letters], ["y"], equation=f"{','.join(letters)}->")
    path = Model([contract], inputs=inputs).save(tmp_path)
    with pytest.raises(GraphError, match=r"flops of op 'Einsum_0' is about 10\^602, more than 2\^100"):
        prepare(path, GraphOptions(mode="inference"))


def test_sizes_that_only_add_up_to_more_than_2_to_the_60(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])], inputs=[float_input("x", 2**57)])
    with pytest.raises(GraphError, match=r"add up to .* more than 2\^60"):
        model.read(tmp_path)
