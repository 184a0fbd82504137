"""References to weights in other files, for a model that is written to another folder."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from remat_cli.errors import UsageError
from remat_cli.formats.onnx.external_data import absent_files, external_tensors, location_of, rebase
from tests.unit.formats.onnx.models import Model, body, elsewhere, float_input, node, scalar


def model(location: str = "weights.bin") -> onnx.ModelProto:
    """A model with weights elsewhere: in the graph, in a body, and in an attribute."""
    constant = node("Constant", [], ["c"])
    constant.attribute.append(helper.make_attribute("value", elsewhere("c", [2, 3], location)))
    branch = body([node("Add", ["x", "inner"], ["z"])], outputs=["z"], stored=[elsewhere("inner", [2, 3], location)])
    return Model(
        [constant, node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)],
        inputs=[float_input("x", 2, 3)],
        stored=[elsewhere("outer", [2, 3], location), scalar("condition", True)],
    ).proto()


def locations(proto: onnx.ModelProto) -> set[str]:
    return {location_of(tensor) for tensor in external_tensors(proto)}


def test_all_of_them_are_found() -> None:
    assert sorted(tensor.name for tensor in external_tensors(model())) == ["c", "inner", "inner", "outer"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.bin").write_bytes(b"weights")
    (tmp_path / "other").mkdir()
    return tmp_path


def test_beside_the_weights_nothing_changes(folder: Path) -> None:
    proto = model()
    rebase(proto, folder / "models" / "m.onnx", folder / "other" / ".." / "models" / "planned.onnx")
    assert proto == model()


def test_above_the_weights_they_lead_down(folder: Path) -> None:
    proto = model()
    rebase(proto, folder / "models" / "m.onnx", folder / "planned.onnx")
    assert locations(proto) == {"models/weights.bin"}


@pytest.mark.parametrize("place", ["other/planned.onnx", "models/below/planned.onnx"])
def test_anywhere_else_is_refused_with_the_place_to_write_to(folder: Path, place: str) -> None:
    (folder / "models" / "below").mkdir()
    with pytest.raises(UsageError) as refused:
        rebase(model(), folder / "models" / "m.onnx", folder / place)
    assert "models/weights.bin" in refused.value.message
    assert refused.value.hint.endswith("-o " + str(folder / "models" / "planned.onnx"))


@pytest.mark.parametrize("location", ["../models/weights.bin", "ABSOLUTE"])
def test_a_reference_that_leads_out_of_its_folder_is_not_followed(folder: Path, location: str) -> None:
    location = location.replace("ABSOLUTE", str(folder / "models" / "weights.bin"))
    with pytest.raises(UsageError):
        rebase(model(location), folder / "models" / "m.onnx", folder / "planned.onnx")


def test_weights_that_are_not_there_have_to_be_put_beside_either(folder: Path) -> None:
    proto = model("absent.bin")
    rebase(proto, folder / "models" / "m.onnx", folder / "other" / "planned.onnx")
    assert locations(proto) == {"absent.bin"}


def test_files_that_are_not_there_are_told(folder: Path) -> None:
    assert absent_files(model(), folder / "models" / "m.onnx") == []
    assert absent_files(model(), folder / "other" / "m.onnx") == ["weights.bin"]


def test_a_link_to_the_folder_is_the_folder(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "models")
    proto = model()
    rebase(proto, folder / "models" / "m.onnx", folder / "link" / "planned.onnx")
    assert locations(proto) == {"weights.bin"}
