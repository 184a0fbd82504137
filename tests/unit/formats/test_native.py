"""The native format: what is read, what is refused and with which words, and what is written."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.errors import GraphError
from remat_cli.formats import native, read_graph
from remat_cli.formats.native import from_document, graph_bytes, graph_sha256
from tests.graphs import small_graphs


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "remat.graph/1",
        "name": "two convolutions",
        "kind": "forward",
        "tensors": [{"name": "x", "bytes": 4}, {"name": "y", "bytes": 8}, {"name": "z", "bytes": 16}],
        "ops": [
            {"name": "a", "type": "Conv", "inputs": ["x"], "outputs": ["y"], "time": 3},
            {"name": "b", "inputs": ["y"], "outputs": ["z"], "time": 5},
        ],
        **changes,
    }


def with_op(**changes: Any) -> dict[str, Any]:
    changed = document()
    changed["ops"][0] |= changes
    return changed


def with_tensor(**changes: Any) -> dict[str, Any]:
    changed = document()
    changed["tensors"][0] |= changes
    return changed


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "graph.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_reads_fields_and_defaults() -> None:
    graph = from_document(document(), "g.json").graph
    assert (graph.name, graph.kind, graph.time_unit, graph.resident_bytes) == (
        "two convolutions",
        Kind.FORWARD,
        "unit",
        0,
    )
    assert graph.inputs == ("x",)
    assert graph.outputs == ("z",)
    first, second = graph.ops
    assert (first.type, first.time, first.recomputable, first.phase, first.saves) == (
        "Conv",
        3,
        True,
        Phase.FORWARD,
        None,
    )
    assert second.type == ""


def test_an_operand_that_is_read_twice_is_one_tensor() -> None:
    assert from_document(with_op(inputs=["x", "x"]), "g.json").graph.ops[0].inputs == ("x",)


def test_a_view_is_resolved_while_reading() -> None:
    graph = from_document(
        document(
            tensors=[
                {"name": "x", "bytes": 4},
                {"name": "y", "bytes": 8},
                {"name": "v", "bytes": 0, "view_of": "y"},
                {"name": "z", "bytes": 16},
            ],
            ops=[
                {"name": "a", "inputs": ["x"], "outputs": ["y"], "time": 3},
                {"name": "reshape", "inputs": ["y"], "outputs": ["v"], "time": 0},
                {"name": "b", "inputs": ["v"], "outputs": ["z"], "time": 5},
            ],
        ),
        "g.json",
    ).graph
    assert graph.op["b"].inputs == ("v", "y")
    assert graph.op["b"].grad_inputs == ("v",)


def test_an_unknown_field_is_told_and_ignored() -> None:
    reading = from_document(with_op(workspace_byte=7), "g.json")
    assert reading.notes == ("g.json: ops[0]: unknown field 'workspace_byte' is ignored",)
    assert reading.graph.ops[0].workspace_bytes == 0


def test_of_many_unknown_fields_ten_are_told_and_the_rest_counted() -> None:
    reading = from_document({**document(), **{f"field{i:04}": i for i in range(1500)}}, "g.json")
    assert len(reading.notes) == 11
    assert reading.notes[9] == "g.json: unknown field 'field0009' is ignored"
    assert reading.notes[10] == "and 1,490 more unknown fields"


@given(graph=small_graphs())
def test_what_is_written_is_read_back_the_same(graph: Graph) -> None:
    content = graph_bytes(graph)
    assert graph_bytes(from_document(json.loads(content), "g.json").graph) == content


def test_the_file_has_sorted_keys_no_white_space_and_the_hash_is_of_its_bytes() -> None:
    graph = from_document(document(), "g.json").graph
    content = graph_bytes(graph)
    assert content == json.dumps(json.loads(content), sort_keys=True, separators=(",", ":")).encode()
    assert graph_sha256(graph) == sha256(content).hexdigest()


def test_fields_that_hold_their_default_are_not_written() -> None:
    first = json.loads(graph_bytes(from_document(document(), "g.json").graph))["ops"][0]
    assert first == {"name": "a", "type": "Conv", "inputs": ["x"], "outputs": ["y"], "time": 3}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown version": (document(format="remat.graph/2"), "unknown format version 'remat.graph/2'"),
    "unknown kind": (document(kind="backwards"), "kind: 'backwards' is not known"),
    "unknown time unit": (document(time_unit="hour"), "time_unit: 'hour' is not known"),
    "no ops": (document(ops=[]), "has no ops"),
    "ops missing": ({k: v for k, v in document().items() if k != "ops"}, "'ops' is missing"),
    "ops no list": (document(ops={"a": 1}), "is not a list"),
    "op no object": (document(ops=["a"]), 'ops[0]: expected an object, found "a"'),
    "time missing": (document(ops=[{"name": "a", "inputs": [], "outputs": ["y"]}]), "ops[0]: 'time' is missing"),
    "time fractional": (with_op(time=1.5), "ops[0].time: 1.5 is not a whole number"),
    "time negative": (with_op(time=-1), "ops[0].time: -1 is not a whole number"),
    "time true": (with_op(time=True), "ops[0].time: true is not a whole number"),
    "size text": (with_tensor(bytes="4"), 'tensors[0].bytes: "4" is not a whole number'),
    "size negative": (with_tensor(bytes=-4), "tensors[0].bytes: -4 is not a whole number"),
    "name number": (with_tensor(name=7), "tensors[0].name: 7 is not text"),
    "name with half a surrogate pair": (with_op(name="\ud800"), "cannot be written as UTF-8"),
    "inputs text": (with_op(inputs="x"), 'ops[0].inputs: "x" is not a list of names'),
    "inputs object": (with_op(inputs={"x": 1}), 'ops[0].inputs: {"x": 1} is not a list of names'),
    "saves text": (with_op(saves="x"), 'ops[0].saves: "x" is not a list of names'),
    "size a round fraction": (with_tensor(bytes=4.0), "tensors[0].bytes: 4.0 is not a whole number"),
    "recomputable number": (with_op(recomputable=1), "ops[0].recomputable: 1 is not true or false"),
    "inputs numbers": (with_op(inputs=[1]), "ops[0].inputs: [1] is not a list of names"),
    "phase unknown": (with_op(phase="sideways"), "ops[0].phase: 'sideways' is not known"),
    "recomputable text": (with_op(recomputable="no"), 'ops[0].recomputable: "no" is not true or false'),
    "shape negative": (with_tensor(shape=[-1, 2]), "tensors[0].shape: [-1, 2] is not a list of whole numbers"),
    "unknown tensor": (with_op(inputs=["q"]), "op 'a' reads 'q', which is not in the graph"),
    "op twice": (with_op(name="b"), "op 'b' is defined twice"),
    "tensor twice": (with_tensor(name="y"), "tensor 'y' is defined twice"),
    "unknown output": (document(outputs=["zz"]), "the outputs name 'zz'"),
    "grad_of unknown": (with_op(grad_of="zz"), "op 'a' has grad_of 'zz'"),
    "cycle": (
        document(
            ops=[
                {"name": "a", "inputs": ["z"], "outputs": ["y"], "time": 1},
                {"name": "b", "inputs": ["y"], "outputs": ["z"], "time": 1},
            ]
        ),
        "the graph has a cycle: ",
    ),
    "size of 400 digits": (with_tensor(bytes=10**400), "add up to about 10^400, more than 2^60"),
    "sizes that add up to more digits than Python writes": (
        document(tensors=[{**tensor, "bytes": 9 * 10**4299} for tensor in document()["tensors"]]),
        "add up to about 10^4300, more than 2^60",
    ),
    "work of 400 digits": (with_op(flops=10**400), "flops of op 'a' is about 10^400, more than 2^100"),
    "bytes moved of 400 digits": (with_op(moved_bytes=10**400), "moved_bytes of op 'a' is about 10^400"),
    "sizes beyond 2^60": (with_tensor(bytes=2**61), "more than 2^60"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place_and_a_remedy(fault: str) -> None:
    changed, message = FAULTS[fault]
    with pytest.raises(GraphError) as caught:
        from_document(deepcopy(changed), "g.json")
    assert message in caught.value.message
    assert caught.value.message.startswith("g.json")
    assert caught.value.hint


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_file_is_told_in_the_same_words(fault: str, tmp_path: Path) -> None:
    changed, message = FAULTS[fault]
    path = written(tmp_path, json.dumps(changed))
    with pytest.raises(GraphError) as caught:
        read_graph(path)
    assert message in caught.value.message
    assert caught.value.message.startswith(str(path))


BROKEN_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty"),
    "truncated": ('{"format": "remat.graph/1", "ops": [', "the JSON ends too early"),
    "malformed": ('{"format": remat}', ":1:12: no valid JSON"),
    "nan": ('{"format": "remat.graph/1", "time": NaN}', "holds NaN"),
    "infinity": ('{"format": "remat.graph/1", "time": -Infinity}', "holds -Infinity"),
    "not utf-8": (b'{"format": "\xff"}', "no valid UTF-8 at byte 12"),
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "a list": ("[1, 2]", "holds a JSON list, not an object"),
    "no graph": ('{"a": 1}', "the JSON in it is no graph"),
    "a number of 5000 digits": ('{"nodes": ' + "9" * 5000 + "}", "digits"),
    "a schedule": ('{"format": "remat.schedule/1"}', "is a schedule, not a graph"),
    "a text with a line break": (
        '{"format": "remat.graph/1", "name": "a\nb"}',
        ":1:39: no valid JSON: Invalid control",
    ),
    "more than one document": (json.dumps(document()) + "{}", "no valid JSON: Extra data"),
    "graph, not utf-8": (b'{"format": "remat.graph/1", "name": "\xff"}', "no valid UTF-8 at byte 37"),
    "graph, nested too deeply": ('{"format": "remat.graph/1", "ops": ' + "[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("fault", BROKEN_FILES)
def test_a_broken_file_is_refused(fault: str, tmp_path: Path) -> None:
    content, message = BROKEN_FILES[fault]
    path = written(tmp_path, content)
    with pytest.raises(GraphError) as caught:
        read_graph(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="is a directory"):
        read_graph(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no such file"):
        read_graph(tmp_path / "nothing.json")


VIEW = [{"name": "x", "bytes": 0, "view_of": "w"}, {"name": "w", "bytes": 3}]
MADE = document()["tensors"][1:]
ODD_FILES: dict[str, str] = {
    "nothing odd": json.dumps(document()),
    "another order of keys": json.dumps(document(), sort_keys=True, indent=3),
    "escapes": json.dumps(with_op(name="\u00e9\U0001f600/\\")).replace("/", "\\/"),
    "null in place of a default": json.dumps(with_op(saves=None, phase=None, recomputable=None, type=None)),
    "unknown fields": json.dumps({**with_op(grad_flops=None, x=1), "y": {"z": 2.5}}),
    "an unknown field of a tensor": json.dumps(with_tensor(z=[])),
    "an unknown number of 400 digits": json.dumps(document(more=10**400)),
    "an operand that is read twice": json.dumps(with_op(inputs=["x", "x"])),
    "roles": json.dumps(with_op(inplace="x", saves=["x", "x", "y"], grad_inputs=["x", "x"], grad_time=3, flops=2**70)),
    "what is for people": json.dumps(with_op(module="m", source="f.py:3", signature="s")),
    "a shape": json.dumps(with_tensor(shape=[2**40, 0], dtype="float16")),
    "a view": json.dumps(document(tensors=[*VIEW, *MADE])),
    "outputs": json.dumps(document(outputs=["z", "y"], resident_bytes=9, time_unit="ns")),
    "a negative zero": json.dumps(with_op(time="t")).replace('"t"', "-0"),
}


@pytest.mark.parametrize("odd", ODD_FILES)
def test_a_file_is_read_at_once_as_one_by_one(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, ODD_FILES[odd])
    at_once = read_graph(path)
    monkeypatch.setattr(native, "tensors_in", lambda _: None)
    monkeypatch.setattr(native, "ops_in", lambda _: None)
    one_by_one = read_graph(path)
    assert at_once.notes == one_by_one.notes
    assert vars(at_once.graph.edited()) == vars(one_by_one.graph.edited())


def test_objects_in_which_all_is_well_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> None:
        raise AssertionError("read field by field")

    monkeypatch.setattr(native, "_tensor", look)
    monkeypatch.setattr(native, "_op", look)
    assert from_document(document(), "g.json").graph.outputs == ("z",)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbf" + json.dumps(document()).encode())
    assert read_graph(path).graph.name == "two convolutions"


def test_the_format_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "graph.onnx"
    path.write_text(json.dumps(document()))
    assert read_graph(path).graph.name == "two convolutions"


@given(small_graphs())
def test_a_graph_is_written_as_one_canonical_document_however_large_the_lots(graph: Graph) -> None:
    content = graph_bytes(graph)
    as_one = json.dumps(json.loads(content), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert content == as_one.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_LOT", 2)
        assert graph_bytes(graph) == content
        graph_sha256.cache_clear()
        small = graph_sha256(graph)
    graph_sha256.cache_clear()
    assert small == graph_sha256(graph)


def test_an_object_with_nulls_and_unknown_fields_is_read_as_one_without() -> None:
    usual = from_document(document(), "g.json").graph
    odd = from_document(with_op(saves=None, phase=None, grad_flops=3), "g.json")
    assert odd.notes == ("g.json: ops[0]: unknown field 'grad_flops' is ignored",)
    assert odd.graph.ops == usual.ops
    assert odd.graph.ops[0].grad_flops is None


def test_a_name_is_kept_once_however_often_it_is_read() -> None:
    graph = from_document(json.loads(json.dumps(document())), "g.json").graph
    assert graph.ops[1].inputs[0] is graph.tensors["y"].name is graph.ops[0].outputs[0]


def test_what_was_parsed_is_let_go_of_as_it_is_read() -> None:
    parsed = document()
    from_document(parsed, "g.json")
    assert (parsed["tensors"], parsed["ops"]) == ([], [])


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("bytes", -1, "tensors[1].bytes: -1 is not a whole number, 0 or more"),
        ("shape", [2, -1], "tensors[1].shape: [2, -1] is not a list of whole numbers"),
        ("inputs", [3], "ops[1].inputs: [3] is not a list of names"),
        ("time", True, "ops[1].time: true is not a whole number, 0 or more"),
    ],
)
def test_a_fault_is_found_in_an_object_of_a_form_that_held_before(field: str, value: object, place: str) -> None:
    tensors: list[dict[str, object]] = [{"name": name, "bytes": 4, "shape": [2, 2]} for name in ("a", "b")]
    ops: list[dict[str, object]] = [
        {"name": name, "inputs": [], "outputs": [name], "time": 1, "workspace_bytes": 0} for name in ("a", "b")
    ]
    (tensors if place.startswith("tensors") else ops)[1][field] = value
    document = {"format": "remat.graph/1", "kind": "inference", "tensors": tensors, "ops": ops}
    with pytest.raises(GraphError, match=re.escape(place)):
        from_document(document, "g.json")


def updating() -> dict[str, Any]:
    """Return a training step whose op `update` writes the parameter `w` and its state `s`."""
    return {
        "format": "remat.graph/1",
        "kind": "training",
        "tensors": [{"name": name, "bytes": 4} for name in "wgs"] + [{"name": "done", "bytes": 0}],
        "residents": {"w": "parameter", "s": "state"},
        "ops": [
            {"name": "use", "inputs": ["w"], "outputs": ["g"], "time": 1},
            {
                "name": "update",
                "inputs": ["w", "g", "s"],
                "outputs": ["done"],
                "time": 2,
                "phase": "update",
                "recomputable": False,
                "writes": ["w", "s", "w"],
            },
        ],
    }


@pytest.mark.parametrize("at_once", [True, False])
def test_residents_and_updates_are_read_and_written(at_once: bool) -> None:
    changes: dict[str, Any] = {} if at_once else {"unusual": 1}
    given = updating()
    given["ops"][0] |= changes
    given["tensors"][0] |= changes
    graph = from_document(given, "g.json").graph
    assert {name: graph.tensors[name].resident for name in graph.residents} == {
        "w": Residency.PARAMETER,
        "s": Residency.STATE,
    }
    assert (graph.op["update"].writes, graph.op["update"].phase) == (("w", "s"), Phase.UPDATE)
    content = graph_bytes(graph)
    assert json.loads(content)["residents"] == {"s": "state", "w": "parameter"}
    assert graph_bytes(from_document(json.loads(content), "g.json").graph) == content


@pytest.mark.parametrize(
    ("residents", "message"),
    [
        (["w"], 'g.json.residents: ["w"] is not an object of names'),
        ({"w": 3}, 'g.json.residents: {"w": 3} is not an object of names'),
        ({"w": "weight"}, "g.json: residents.w: 'weight' is not known"),
        ({"q": "state"}, "g.json: residents: 'q' is not in the graph"),
        ({"w": "parameter", "g": "state"}, "g.json: resident 'g' is a view, or an op produces it"),
    ],
)
def test_residents_that_cannot_be_are_refused(residents: object, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        from_document(updating() | {"residents": residents}, "g.json")
    assert caught.value.message == message


def test_role_of_a_tensor_is_part_of_the_hash() -> None:
    one, other = (
        from_document(updating() | {"residents": {"w": role, "s": "state"}}, "g.json").graph
        for role in ("parameter", "state")
    )
    assert graph_sha256(one) != graph_sha256(other)
