"""Unknown ops are kept going with flagged estimates; --strict refuses them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from remat_cli.errors import GraphError, UsageError
from tests.unit.formats.onnx.models import Model, body, float_input, integers, node, tensor, value, weight

ACME = {"com.acme": 1}


def custom(*following: object, **changes: object) -> Model:
    """Return a model whose first node, "custom", reads x and w by an op that onnx does not know."""
    first = node("Frobnicate", ["x", "w"], ["h"], name="custom", domain="com.acme")
    nodes = [first, *(following or [node("Relu", ["h"], ["y"])])]
    return Model(nodes, stored=[weight("w", 100)], other_opsets=ACME, **changes)  # type: ignore[arg-type]


def test_unknown_op_is_sized_like_its_largest_activation(tmp_path: Path) -> None:
    reading = custom().read(tmp_path)
    assert tensor(reading, "h").shape == (2, 3)
    assert tensor(reading, "y").shape == (2, 3)
    assert reading.graph.ops[0].type == "com.acme.Frobnicate"


def test_unknown_op_is_flagged_once_and_what_follows_is_not(tmp_path: Path) -> None:
    reading = custom().read(tmp_path)
    assert reading.estimated == ("custom",)
    assert [note for note in reading.notes if "'custom'" in note and "not known to onnx" in note] == [reading.notes[0]]


def test_unknown_op_without_activations_is_sized_like_its_largest_input(tmp_path: Path) -> None:
    model = Model(
        [node("Frobnicate", ["w"], ["h"], domain="com.acme"), node("Neg", ["x"], ["y"])],
        stored=[weight("w", 100)],
        outputs=["h", "y"],
        other_opsets=ACME,
    )
    assert tensor(model.read(tmp_path), "h").shape == (100,)


def test_unknown_op_without_inputs_needs_a_shape(tmp_path: Path) -> None:
    model = Model([node("Make", [], ["h"], domain="com.acme"), node("Add", ["h", "x"], ["y"])], other_opsets=ACME)
    with pytest.raises(UsageError, match=r"'h' .* Make"):
        model.read(tmp_path)
    assert tensor(model.read(tmp_path, value_shapes={"h": (2, 1)}), "h").bytes == 8


def test_value_info_sizes_an_unknown_op(tmp_path: Path) -> None:
    reading = custom(declared=[value("h", [9], TensorProto.FLOAT16)]).read(tmp_path)
    assert tensor(reading, "y").bytes == 18
    assert reading.estimated == ("custom",)


def test_given_shape_wins_over_value_info(tmp_path: Path) -> None:
    reading = custom(declared=[value("h", [9], TensorProto.FLOAT16)]).read(tmp_path, value_shapes={"h": (4, 4)})
    assert tensor(reading, "y").bytes == 32


def test_op_that_does_not_fit_an_estimate_is_an_estimate_too(tmp_path: Path) -> None:
    reading = custom(node("MatMul", ["h", "w"], ["y"], name="after")).read(tmp_path)
    assert tensor(reading, "y").shape == (2, 3)
    assert reading.estimated == ("custom", "after")


def test_estimates_are_followed_through_ops_that_onnx_knows(tmp_path: Path) -> None:
    after = [node("Relu", ["h"], ["r"]), node("MatMul", ["r", "w"], ["y"], name="after")]
    assert custom(*after).read(tmp_path).estimated == ("custom", "after")


def test_shape_that_depends_on_estimated_data_is_an_estimate_too(tmp_path: Path) -> None:
    reading = custom(node("NonZero", ["h"], ["y"], name="after")).read(tmp_path)
    assert reading.estimated == ("custom", "after")


def test_given_shape_corrects_what_follows_an_estimate(tmp_path: Path) -> None:
    assert tensor(custom().read(tmp_path, value_shapes={"y": (7,)}), "y").shape == (7,)


@pytest.mark.parametrize("opset_import", [ACME, {}])
def test_domain_need_not_be_imported(tmp_path: Path, opset_import: dict[str, int]) -> None:
    model = Model([node("Frobnicate", ["x"], ["y"], domain="com.acme")], other_opsets=opset_import)
    assert model.read(tmp_path).estimated == ("Frobnicate_0",)


def test_misspelt_op_of_onnx_s_own_domain_is_unknown(tmp_path: Path) -> None:
    assert Model([node("Rleu", ["x"], ["y"])]).read(tmp_path).estimated == ("Rleu_0",)


def test_op_that_is_newer_than_the_opset_is_unknown(tmp_path: Path) -> None:
    assert Model([node("Gelu", ["x"], ["y"])], opset=13).read(tmp_path).estimated == ("Gelu_0",)


def test_strict_names_the_op(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as caught:
        custom().read(tmp_path, strict=True)
    assert "strict forbids it" in caught.value.message
    assert "'custom'" in caught.value.message
    assert "--strict" in caught.value.hint


def test_strict_accepts_a_model_without_estimates(tmp_path: Path) -> None:
    assert tensor(Model([node("Relu", ["x"], ["y"])]).read(tmp_path, strict=True), "y").bytes == 24


def test_result_that_is_a_map(tmp_path: Path) -> None:
    model = Model(
        [node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])],
        other_opsets={"ai.onnx.ml": 3},
    )
    reading = model.read(tmp_path)
    assert tensor(reading, "y").bytes == 24
    assert reading.estimated == ("ZipMap_0",)


def test_strings_are_flagged_and_not_recomputed(tmp_path: Path) -> None:
    model = Model(
        [node("Identity", ["s"], ["t"]), node("Relu", ["x"], ["y"])],
        inputs=[float_input("x", 2), value("s", [3], TensorProto.STRING)],
        outputs=["t", "y"],
    )
    reading = model.read(tmp_path)
    assert tensor(reading, "t").bytes == 3 * 32
    assert reading.estimated == ("Identity_0",)
    assert [one.recomputable for one in reading.graph.ops] == [False, True]
    assert any("'s'" in note for note in reading.notes)


def test_many_estimates_are_shortened_in_the_note(tmp_path: Path) -> None:
    names = ["x", *(f"h{index}" for index in range(8)), "y"]
    nodes = [node("Frobnicate", [source], [result], domain="com.acme") for source, result in pairwise(names)]
    note, types = Model(nodes, other_opsets=ACME).read(tmp_path).notes
    assert types.endswith("'h0' (float32), 'h1' (float32), 'h2' (float32) and 5 more")
    assert "'Frobnicate_4' and 4 more" in note


def test_guesses_name_the_ops_that_are_not_known_also_in_bodies(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": body([node(op_type, ["x"], [name], op_type, domain=domain)], outputs=[name])
        for name, op_type, domain in (("then", "Blur", "com.acme"), ("else", "Exp", ""))
    }
    model = Model([node("If", ["c"], ["y"], "if", **branches)], inputs=[float_input("x", 2, 3), value("c", [], 9)])
    guessed = model.read(tmp_path).guessed
    assert guessed is not None
    assert "'if/Blur'" in guessed[0]
    assert "Exp" not in guessed[0]


@pytest.mark.parametrize("value_shapes", [{}, {"h": (2, 3)}])
def test_elements_of_an_unknown_op_are_those_that_its_readers_take(
    tmp_path: Path, value_shapes: dict[str, tuple[int, ...]]
) -> None:
    """Whether its shape is given or not."""
    after = [node("Unsqueeze", ["h", "axis"], ["u"]), node("Gather", ["w", "u"], ["y"])]
    model = Model(
        [node("Frobnicate", ["x"], ["h"], name="custom", domain="com.acme"), *after],
        stored=[weight("w", 100), integers("axis", 0)],
        other_opsets=ACME,
    )
    reading = model.read(tmp_path, value_shapes=value_shapes)
    assert [tensor(reading, name).bytes for name in ("h", "y")] == [2 * 3 * 8, 2 * 3 * 4]
    assert tensor(reading, "y").shape == (1, 2, 3)
    assert any(note.endswith("'h' (int64)") for note in reading.notes)


def test_given_shape_of_an_unknown_op_must_fit_its_readers(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"'after' .*does not fit"):
        custom(node("MatMul", ["h", "w"], ["y"], name="after")).read(tmp_path, value_shapes={"h": (2, 3)})


@pytest.mark.parametrize("tokens", ["n", "t"])
def test_pipeline_of_text_is_read(tmp_path: Path, tokens: str) -> None:
    """With and without a tokenizer, whose result is not known to hold strings."""
    terms: dict[str, Any] = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    grams: dict[str, Any] = {"ngram_counts": [0], "ngram_indexes": [0, 1], "pool_strings": ["A", "B"]}
    nodes = [
        node("StringNormalizer", ["x"], ["n"], case_change_action="UPPER", stopwords=["THE"]),
        node("Tokenizer", ["n"], ["t"], domain="com.microsoft"),
        node("TfIdfVectorizer", [tokens], ["v"], **terms, **grams),
        node("TreeEnsembleClassifier", ["v"], ["label", "y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    inputs = [value("x", [4], TensorProto.STRING)]
    reading = Model(nodes, inputs=inputs, other_opsets={"ai.onnx.ml": 1, "com.microsoft": 1}).read(tmp_path)
    assert tensor(reading, "n").shape == (4,)
    assert tensor(reading, "v").bytes == 2 * 4
    assert tensor(reading, "y").bytes == 3 * 4
