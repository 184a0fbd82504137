"""Names, definitions and order."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.errors import GraphError
from tests.unit.formats.onnx.models import Model, body, float_input, node, op, op_types, value, weight


def names(model: Model, folder: Path) -> list[str]:
    return [one.name for one in model.read(folder).graph.ops]


def chain(*node_names: str) -> Model:
    """Return a chain of Relu nodes with these names."""
    last = len(node_names) - 1
    values = ["x", *(f"v{index}" for index in range(last)), "y"]
    return Model(
        [node("Relu", [values[index]], [values[index + 1]], name=name) for index, name in enumerate(node_names)]
    )


def test_nodes_without_a_name_are_called_by_type_and_index(tmp_path: Path) -> None:
    assert names(chain("", "middle", ""), tmp_path) == ["Relu_0", "middle", "Relu_2"]


def test_repeated_names_are_numbered(tmp_path: Path) -> None:
    assert names(chain("a", "a", "a"), tmp_path) == ["a", "a_2", "a_3"]


def test_given_names_win_over_made_ones(tmp_path: Path) -> None:
    assert names(chain("", "Relu_0", "a", "a_2", "a"), tmp_path) == ["Relu_0_2", "Relu_0", "a", "a_2", "a_3"]


def test_two_definitions_of_one_value(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="'y' is defined twice, by op 'Relu_0' and by op 'Neg_1'"):
        Model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]).read(tmp_path)


def test_node_that_defines_an_input(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="'x' is defined twice"):
        Model([node("Relu", ["y"], ["x"]), node("Neg", ["x"], ["y"])]).read(tmp_path)


def test_two_inputs_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="2 inputs named 'x'"):
        Model([node("Relu", ["x"], ["y"])], inputs=[float_input("x", 2), float_input("x", 3)]).read(tmp_path)


def test_two_initializers_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="initializer 'w' is defined twice"):
        Model([node("Add", ["x", "w"], ["y"])], stored=[weight("w", 3), weight("w", 3)]).read(tmp_path)


def test_value_that_nothing_defines_gets_a_guess(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as caught:
        Model([node("Relu", ["x"], ["hidden"]), node("Neg", ["hiden"], ["y"])]).read(tmp_path)
    assert "op 'Neg_1' reads 'hiden', which nothing defines" in caught.value.message
    assert caught.value.hint == "did you mean 'hidden'?"


def test_value_that_only_a_body_reads_and_nothing_defines(tmp_path: Path) -> None:
    branch = body([node("Relu", ["missing"], ["b"])], outputs=["b"])
    model = Model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        inputs=[float_input("x", 2), value("c", [], 9)],
    )
    with pytest.raises(GraphError, match="reads 'missing', which nothing defines"):
        model.read(tmp_path)


def test_output_that_nothing_defines(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="output 'z' is defined by nothing"):
        Model([node("Relu", ["x"], ["y"])], outputs=["z"]).read(tmp_path)


def test_cycle_is_printed(tmp_path: Path) -> None:
    model = Model([node("Add", ["x", "b"], ["a"], name="first"), node("Neg", ["a"], ["b"], name="second")])
    with pytest.raises(GraphError, match=r"cycle: (first -> second -> first|second -> first -> second)"):
        Model(model.nodes, outputs=["b"]).read(tmp_path)


def test_nodes_out_of_order_are_sorted_with_a_note(tmp_path: Path) -> None:
    model = Model([node("Neg", ["h"], ["y"]), node("Relu", ["x"], ["h"])])
    reading = model.read(tmp_path)
    assert op_types(reading) == ["Relu", "Neg"]
    assert any("sorted" in note for note in reading.notes)


def test_sorting_moves_as_little_as_needed(tmp_path: Path) -> None:
    model = Model(
        [
            node("Relu", ["x"], ["a"], name="0"),
            node("Add", ["late", "a"], ["y"], name="1"),
            node("Neg", ["a"], ["b"], name="2"),
            node("Abs", ["b"], ["late"], name="3"),
            node("Exp", ["a"], ["z"], name="4"),
        ],
        outputs=["y", "z"],
    )
    assert names(model, tmp_path) == ["0", "2", "3", "1", "4"]


def test_order_of_the_file_is_kept_without_a_note(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["b"]), node("Neg", ["x"], ["a"]), node("Add", ["a", "b"], ["y"])])
    reading = model.read(tmp_path)
    assert op_types(reading) == ["Relu", "Neg", "Add"]
    assert not reading.notes


def test_what_a_body_reads_is_produced_before_it(tmp_path: Path) -> None:
    branch = body([node("Neg", ["h"], ["b"])], outputs=["b"])
    model = Model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch), node("Relu", ["x"], ["h"])],
        inputs=[float_input("x", 2), value("c", [], 9)],
    )
    reading = model.read(tmp_path)
    assert op_types(reading) == ["Relu", "If"]
    assert op(reading, "If").inputs == ("c", "h")


@pytest.mark.parametrize(
    ("note", "name"),
    [
        ("['', 'layer1', 'layer1.0', 'layer1.0.act', 'relu_3']", "layer1.0.act/Relu"),
        ("['', 'relu']", "node_Relu_887"),
        ("['layer1', 3]", "node_Relu_887"),
        ("layer1.0", "node_Relu_887"),
        ("[" * 5000, "node_Relu_887"),
        ("'" + "x" * 20_000 + "'", "node_Relu_887"),
    ],
)
def test_a_node_is_named_after_the_module_that_the_exporter_noted(tmp_path: Path, note: str, name: str) -> None:
    relu = node("Relu", ["x"], ["y"], "node_Relu_887")
    relu.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=note)
    assert [op.name for op in Model([relu]).read(tmp_path).graph.ops] == [name]


def test_nodes_of_one_module_are_numbered(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    for one in nodes:
        one.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'mlp', 'f']")
    assert [op.name for op in Model(nodes).read(tmp_path).graph.ops] == ["mlp/Relu", "mlp/Exp", "mlp/Relu_2"]
