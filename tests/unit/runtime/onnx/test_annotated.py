"""The user's model with a plan in the metadata of its nodes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from remat_cli.errors import UsageError
from remat_cli.runtime.onnx.annotated import annotated_model, check_can_annotate
from tests.places import GRAPHS

RESNET = GRAPHS / "resnet50.onnx"


def test_only_the_metadata_of_nodes_changes() -> None:
    before = onnx.load(str(RESNET), load_external_data=False)
    first, second = (node.output[0] for node in before.graph.node[:2])
    facts = {first: {"decision": "keep", "bytes": "4"}, second: {"decision": "recompute", "recomputed_at": "step 3"}}
    once = annotated_model(RESNET, None, facts)
    after = onnx.load_model_from_string(once)
    said = [{entry.key: entry.value for entry in node.metadata_props} for node in after.graph.node]
    assert said[0] == {"remat.decision": "keep", "remat.bytes": "4"}
    assert said[1] == {"remat.decision": "recompute", "remat.recomputed_at": "step 3"}
    for node in after.graph.node:
        del node.metadata_props[:]
    for node in before.graph.node:
        del node.metadata_props[:]
    assert after == before


def test_what_an_earlier_plan_said_goes(tmp_path: Path) -> None:
    first = onnx.load(str(RESNET), load_external_data=False).graph.node[0].output[0]
    path = tmp_path / "m.onnx"
    path.write_bytes(annotated_model(RESNET, None, {first: {"decision": "recompute", "recomputed_at": "step 3"}}))
    again = onnx.load_model_from_string(annotated_model(path, None, {first: {"decision": "keep"}}))
    assert [(entry.key, entry.value) for entry in again.graph.node[0].metadata_props] == [("remat.decision", "keep")]


@pytest.mark.parametrize("name", ["resnet50.json", "gpt.py:step"])
def test_what_is_no_model_has_no_nodes(name: str) -> None:
    with pytest.raises(UsageError, match="is no ONNX model"):
        check_can_annotate(GRAPHS / name)
