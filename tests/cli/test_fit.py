"""`remat fit` as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from remat_cli.formats.native import graph_bytes
from remat_cli.planners.dtr.planner import DTR
from tests.cli.calls import Remat
from tests.graphs import training_chain
from tests.unit.formats.onnx.models import Model, float_input, node, weight


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Eight layers on a batch of sequences: each keeps 4 x 64 bytes for each of batch x seq."""
    names = ["x", *(f"h{number}" for number in range(7)), "y"]
    nodes = []
    for number in range(8):
        reads, makes = names[number], names[number + 1]
        nodes += [node("MatMul", [reads, "w"], [f"m{number}"]), node("Relu", [f"m{number}"], [makes])]
    inputs = [float_input("x", "batch", "seq", 64)]
    return Model(nodes, inputs=inputs, stored=[weight("w", 64, 64)]).save(tmp_path)


CALL = ("--dim", "batch", "--dim", "seq=16", "--planner", "dtr")


def test_finds_more_with_a_plan_than_without(remat: Remat, model: Path) -> None:
    ended = remat("fit", model, *CALL, "--budget", "500kB")
    assert (ended.code, ended.err) == (0, "")
    summary = remat("fit", model, *CALL, "--budget", "500kB", "--json").json
    plain, found, limit = (summary[key]["value"] for key in ("plain", "found", "limit"))
    assert 0 < plain < found <= limit
    assert f"The largest batch that fits 500.0 kB with a plan is {found}; without, {plain}." in ended.out
    assert summary["plain"]["plain_peak_bytes"] <= 500_000 < summary["found"]["plain_peak_bytes"]
    assert summary["plan"]["peak_bytes"] <= 500_000


def test_the_answers_are_those_of_inspect_and_plan(remat: Remat, model: Path) -> None:
    """One more no longer fits: neither as it is, nor with any plan of the planner."""
    summary = remat("fit", model, *CALL, "--budget", "500kB", "--json").json
    sizes = ("--dim", "seq=16", "--dim")
    for value, fits in ((summary["plain"]["value"], True), (summary["plain"]["value"] + 1, False)):
        peak = remat("inspect", model, *sizes, f"batch={value}", "--json").json["plain"]["peak_bytes"]
        assert (peak <= 500_000) == fits
    for value, code in ((summary["found"]["value"], 0), (summary["found"]["value"] + 1, 4)):
        call = ("plan", model, *sizes, f"batch={value}", "--planner", "dtr", "--budget", "500kB")
        assert remat(*call).code == code


def test_writes_the_schedule_of_the_value_that_was_found(remat: Remat, model: Path, tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    summary = remat("fit", model, *CALL, "--budget", "500kB", "-o", schedule, "--json").json
    found = summary["found"]["value"]
    assert remat("verify", model, schedule, "--dim", "seq=16", "--dim", f"batch={found}").code == 0
    assert remat("verify", model, schedule, "--dim", "seq=16", "--dim", f"batch={found - 1}").code == 6
    assert json.loads(schedule.read_text())["budget_bytes"] == 500_000


def test_any_dimension_can_be_searched(remat: Remat, model: Path) -> None:
    call = ("fit", model, "--planner", "dtr", "--budget", "500kB", "--multiple-of", "32", "--json")
    by_batch = remat(*call, "--dim", "batch", "--dim", "seq=1").json
    by_seq = remat(*call, "--dim", "seq", "--dim", "batch=1").json
    assert by_batch["found"]["value"] == by_seq["found"]["value"]
    assert by_seq["dim"] == "seq"


def test_only_multiples_up_to_a_limit_and_an_overhead(remat: Remat, model: Path) -> None:
    call = ("fit", model, *CALL, "--budget", "500kB", "--json")
    free = remat(*call).json
    stepped = remat(*call, "--multiple-of", "8").json
    assert stepped["found"]["value"] % 8 == 0
    assert stepped["found"]["value"] <= free["found"]["value"]
    assert remat(*call, "--at-most", "7").json["found"]["value"] == 7
    cheap = remat(*call, "--max-overhead", "5%").json
    assert cheap["plan"]["overhead"] <= 0.05
    assert free["plan"]["overhead"] > 0.05


def test_a_value_in_the_config_gives_way_to_the_search(remat: Remat, model: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("planner: dtr\nbudget: 500kB\ndims: {batch: 3, seq: 16}\n")
    found = remat("fit", model, "-c", config, "--dim", "batch", "--json").json
    assert found["found"] == remat("fit", model, *CALL, "--budget", "500kB", "--json").json["found"]


def test_where_one_does_not_fit_it_says_why(remat: Remat, model: Path) -> None:
    ended = remat("fit", model, *CALL, "--budget", "30kB")
    assert ended.code == 3
    assert "Not even batch=1 fits 30.00 kB." in ended.out
    assert "Why" in ended.out


def test_where_no_plan_is_found_for_one_that_is_no_proof(remat: Remat, model: Path) -> None:
    summary = remat("inspect", model, "--dim", "seq=16", "--dim", "batch=1", "--json").json
    budget = str(summary["plain"]["peak_bytes"] - 1)
    ended = remat("fit", model, *CALL, "--budget", budget, "--option", "candidates=0")
    assert ended.code == 4
    assert "Not even batch=1 fits" in ended.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", "batc", "--dim", "seq=16", "--budget", "500kB"), "did you mean 'batch'?"),
        (("--dim", "batch", "--budget", "500kB"), "these sizes are not known: seq"),
        (("--budget", "500kB"), "fit needs a dimension to search"),
        (("--dim", "batch", "--dim", "seq", "--budget", "500kB"), "fit searches one dimension, not 'batch' and 'seq'"),
        (("--dim", "batch", "--dim", "batch=2", "--budget", "500kB"), "is to be searched, and has a value too"),
        (("--dim", "batch", "--dim", "seq=16"), "fit needs a budget"),
        (("--dim", "batch", "--dim", "seq=16", "--budget", "60%"), "a budget in bytes, not 60%"),
        (("--dim", "batch", "--dim", "seq=16", "--budget", "min"), "a budget in bytes, not min"),
        (("--dim", "batch", "--dim", "seq=x", "--budget", "500kB"), "--dim 'seq=x' is not understood"),
        (("--dim", "batch", "--dim", "seq=16", "--budget", "500kB", "--multiple-of", "0"), "--multiple-of"),
        (("--dim", "batch", "--budget", "500kB", "--multiple-of", "8", "--at-most", "4"), "no multiple of 8"),
        (("--dim", "batch", "--dim", "seq=16", "--budget", "500kB", "-o", "no/s.json"), "there is no folder"),
    ],
)
def test_a_wrong_call_ends_with_2(options: tuple[str, ...], message: str, remat: Remat, model: Path) -> None:
    ended = remat("fit", model, "--planner", "dtr", *options)
    assert ended.code == 2
    assert message in ended.err


def test_a_fixed_dimension_and_a_json_graph_cannot_be_searched(remat: Remat, tmp_path: Path) -> None:
    fixed = Model([node("Relu", ["x"], ["y"])]).save(tmp_path)
    ended = remat("fit", fixed, "--dim", "batch", "--budget", "500kB")
    assert ended.code == 2
    assert "export the model with a symbolic one" in ended.err
    native = tmp_path / "chain.json"
    native.write_bytes(graph_bytes(training_chain(4)))
    ended = remat("fit", native, "--dim", "batch", "--budget", "500kB")
    assert ended.code == 2
    assert "sizes in a JSON graph are fixed" in ended.err
    assert remat("fit", tmp_path / "none.onnx", "--dim", "batch", "--budget", "500kB").code == 6


def test_a_dimension_that_changes_nothing_is_told_of(remat: Remat, tmp_path: Path) -> None:
    inputs = [float_input("x", 4, 8), float_input("unused", "batch", 0)]
    model = Model([node("Relu", ["x"], ["y"])], inputs=inputs).save(tmp_path)
    ended = remat("fit", model, "--dim", "batch", "--budget", "1GB", "--mode", "inference")
    assert ended.code == 2
    assert "no memory depends on 'batch'" in ended.err


def test_a_value_that_breaks_the_model_is_named(remat: Remat, tmp_path: Path) -> None:
    nodes = [node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2), node("Add", ["a", "b"], ["y"])]
    model = Model(nodes, inputs=[float_input("x", "batch", 8)]).save(tmp_path)
    call = ("fit", model, "--dim", "batch", "--budget", "500kB", "--mode", "inference")
    ended = remat(*call)
    assert ended.code == 6
    # One row is broadcast; the search goes on from there to others that cannot be halved.
    assert re.search(r"at batch=\d*[13579]: op 'Add_1'", ended.err)
    assert "--multiple-of" in ended.err
    assert remat(*call, "--multiple-of", "2").code == 0


def test_ctrl_c_keeps_what_fits_without_a_plan(remat: Remat, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DTR, "plan", interrupted)
    ended = remat("fit", model, *CALL, "--budget", "500kB")
    assert ended.code == 130
    assert "Interrupted. The largest batch that fits 500.0 kB is " in ended.out
