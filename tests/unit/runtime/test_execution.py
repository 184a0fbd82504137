"""What is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from remat_cli.config import GraphOptions
from remat_cli.core.schedule import Schedule
from remat_cli.errors import UsageError
from remat_cli.formats import Aliasing
from remat_cli.prepare import prepare
from remat_cli.runtime.execution import check_can_execute, check_is_predicted, execute_as_it_is
from tests.unit.formats.onnx.models import Model, node, value


@pytest.mark.parametrize("path", ["train.py:step", "model.onnx"])
def test_a_plan_for_sharded_parameters_is_not_run(path: str) -> None:
    with pytest.raises(UsageError, match="simulated; nothing here runs it yet") as error:
        check_can_execute(Path(path), GraphOptions(ranks=8), Schedule(()))
    assert "without ranks" in str(error.value.hint)


class TestHalf:
    """A model of float16, whose ops onnxruntime runs in float32 on the CPU."""

    @pytest.fixture
    def half(self, tmp_path: Path) -> Path:
        proto = Model([node("Exp", ["x"], ["y"])], [value("x", [512], TensorProto.FLOAT16)]).proto()
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
        path = tmp_path / "half.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    def test_it_is_not_run(self, half: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot run as predicted: 1 ops? of float16 \(Exp") as error:
            execute_as_it_is(half, prepare(half, GraphOptions(mode="inference")))
        assert "remat fuse" in str(error.value.hint)

    def test_its_plan_says_so(self, half: Path) -> None:
        notes = prepare(half, GraphOptions(mode="inference")).notes
        assert any("'remat verify --execute' refuses this one" in note for note in notes)

    def test_where_memory_is_not_that_of_onnxruntime_nothing_is_refused(self, half: Path) -> None:
        check_is_predicted(prepare(half, GraphOptions(mode="inference", aliasing=Aliasing.NONE)))
