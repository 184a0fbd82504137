"""The example graphs are what their scripts make, and are what their descriptions say."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path

import onnx
import pytest

from remat_cli.config import GraphOptions
from remat_cli.formats import read_graph
from remat_cli.formats.native import graph_bytes
from remat_cli.prepare import prepare
from tests.places import GRAPHS

ONNX_FILES = ("gpt.onnx", "long_skip.onnx", "resnet50.onnx", "unet.onnx")
JSON_FILES = ("gpt.json", "long_skip.json", "resnet50.json", "skip_chain.json", "unet.json")
TABLE1_FILES = tuple(
    f"table1/{name}.json" for name in ("densenet161", "googlenet", "pspnet", "resnet152", "resnet50", "unet", "vgg19")
)


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    subprocess.run([sys.executable, str(GRAPHS / "rebuild.py"), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", [*ONNX_FILES, *JSON_FILES, *TABLE1_FILES])
def test_rebuilding_gives_the_committed_bytes(rebuilt: Path, name: str) -> None:
    assert (rebuilt / name).read_bytes() == (GRAPHS / name).read_bytes()


def test_no_example_is_left_out_of_the_rebuild(rebuilt: Path) -> None:
    committed = {path.relative_to(GRAPHS) for path in GRAPHS.rglob("*") if path.suffix in (".onnx", ".json")}
    committed.remove(Path("remat.baseline.json"))  # no graph: what `remat check` measured of them
    assert {path.relative_to(rebuilt) for path in rebuilt.rglob("*") if path.is_file()} == committed


@pytest.mark.parametrize("name", [*ONNX_FILES, *JSON_FILES, *TABLE1_FILES])
def test_examples_stay_small(name: str) -> None:
    assert (GRAPHS / name).stat().st_size < 150_000


@pytest.mark.parametrize("name", ONNX_FILES)
def test_shape_inference_sizes_every_value_without_weights(name: str) -> None:
    model = onnx.load(GRAPHS / name, load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = {"batch": 2, "seq": 128, "height": 32, "width": 48}[dim.dim_param]
    onnx.checker.check_model(_weights_as_inputs(model), full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    sized = {
        value.name
        for value in (*inferred.graph.value_info, *inferred.graph.output)
        if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    assert sized == {output for node in model.graph.node for output in node.output}


def _weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The checker opens the file of external weights; inputs of the same shape stand in for them."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    del checked.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            checked.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            checked.graph.initializer.append(tensor)
    return checked


# The first two are the counts published for these models; the last is 6 layers of 3152384, two tables of 32000 x 512,
# one of 1024 x 512, and 1024 of the final norm.
@pytest.mark.parametrize(
    ("name", "parameters"), [("unet.onnx", 31_037_698), ("resnet50.onnx", 25_557_032), ("gpt.onnx", 52_207_616)]
)
def test_the_model_has_its_number_of_parameters(name: str, parameters: int) -> None:
    model = onnx.load(GRAPHS / name, load_external_data=False)
    weights = [tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert sum(prod(tensor.dims) for tensor in weights if "running" not in tensor.name) == parameters


def test_the_skip_chain_has_skips_from_every_block_down_to_its_block_up() -> None:
    graph = read_graph(GRAPHS / "skip_chain.json").graph
    assert len(graph.ops) == 44
    assert graph.inputs == ("x", "target")
    for block in range(1, 9):
        readers = [op.name for op in graph.consumers[f"down{block}.relu"]]
        assert readers[-1] == f"up{block}.add"


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("unet", {"batch": 8}),
        ("resnet50", {"batch": 32}),
        ("gpt", {"batch": 8, "seq": 512}),
        ("long_skip", {"batch": 1, "height": 512, "width": 512}),
    ],
)
def test_the_native_form_plans_as_the_model_does(name: str, dims: dict[str, int]) -> None:
    model = prepare(GRAPHS / f"{name}.onnx", GraphOptions(dims=dims))
    native = prepare(GRAPHS / f"{name}.json", GraphOptions())
    assert graph_bytes(model.graph) == graph_bytes(native.graph)
