"""`remat generate` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remat_cli.generate import GENERATORS
from tests.cli.calls import Ended, Remat


@pytest.mark.parametrize("family", GENERATORS)
def test_writes_a_graph_that_the_other_verbs_take(family: str, remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    assert remat("generate", family, "--ops", "200", "-o", path) == Ended(0, "", "")
    inspected = remat("inspect", path, "--json")
    assert inspected.code == 0
    assert json.loads(inspected.out)["graph"]["ops"] == len(json.loads(path.read_text())["ops"])
    assert remat("plan", path, "--planner", "keep_all", "--budget", "100%", "-q").code == 0


def test_without_a_file_the_graph_goes_to_stdout_and_nothing_else(remat: Remat, tmp_path: Path) -> None:
    to_stdout = remat("generate", "chain")
    assert json.loads(to_stdout.out)["format"] == "remat.graph/1"
    remat("generate", "chain", "-o", tmp_path / "g.json")
    assert (tmp_path / "g.json").read_text() == to_stdout.out == remat("generate", "chain", "-o", "-").out


def test_options_and_seed_reach_the_generator(remat: Remat) -> None:
    ended = remat("generate", "layered", "--option", "nodes=20", "--option", "width=0.5", "--seed", "3")
    graph = json.loads(ended.out)
    assert len(graph["ops"]) == 20
    assert graph["name"] == "random_layered_n20_w0.5_nlv0.75_ed0.2_scd0.14_seed3"
    assert remat("generate", "layered", "--option", "nodes=20", "--option", "width=0.5", "--seed", "4") != ended


def test_a_forward_graph_and_its_training_graph_are_the_same_by_either_way(remat: Remat, tmp_path: Path) -> None:
    forward, direct, derived = (tmp_path / f"{name}.json" for name in ("forward", "direct", "derived"))
    options = ("--option", "length=7", "--option", "spread=2")
    remat("generate", "chain", *options, "--kind", "forward", "-o", forward)
    remat("generate", "chain", *options, "--kind", "training", "-o", direct)
    remat("convert", forward, "--training", "-o", derived)
    assert derived.read_bytes() == direct.read_bytes()


def test_costs_are_those_of_the_device(remat: Remat) -> None:
    def total_time(*costs: str) -> int:
        graph = json.loads(remat("generate", "unet", "--option", "batch=1", *costs).out)
        return sum(op["time"] for op in graph["ops"])

    assert total_time("--device", "a100") != total_time()
    assert total_time("--cost-model", "unit") == 139 - 1  # every op but the loss


def test_list_names_every_family_with_its_options(remat: Remat) -> None:
    shown = remat("generate", "--list")
    families = json.loads(remat("generate", "--list", "--json").out)["families"]
    assert [family["name"] for family in families] == list(GENERATORS)
    for family in families:
        assert all(option["name"] in shown.out for option in family["options"])


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        ((), "needs a family", "layered, transformer, llama, unet, chain"),
        (("transfomer",), "there is no 'transfomer'", "did you mean 'transformer'?"),
        (("unet", "--option", "clases=3"), "clases: unknown key", "did you mean 'classes'?"),
        (("unet", "--option", "classes=many"), "classes: ", "correct the value"),
        (("unet", "--option", "classes"), "--option 'classes'", "write it like"),
        (("unet", "--option", "image=100"), "image is 100", "multiple of 16, such as 112"),
        (("unet", "--seed", "1"), "seed: unknown key", "known here: levels"),
        (("chain", "--ops", "9", "--option", "length=3"), "--ops chooses length", "leave out --option length"),
        (("layered", "--kind", "training"), "made for inference", "another family"),
        (("chain", "--optimizer", "adam"), "an optimizer needs", "resident_bytes"),
        (("chain", "--ranks", "8"), "--ranks 8: graph 'chain_n100' does not tell parameters apart", "such as ONNX"),
        (("llama", "--ranks", "8"), "'generic accelerator' does not say how fast 8 ranks", "--device h100"),
        (("llama", "--ranks", "0"), "--ranks 0: there is nothing to shard", "2 ranks or more"),
        (("llama", "--ranks", "1"), "--ranks 1: there is nothing to shard", "leave it out"),
        (("llama", "--ranks", "-8"), "--ranks '-8' is no number of ranks", "write it like 8"),
        (("llama", "--ranks", "8", "--cost-model", "flops"), "--ranks 8 needs times in nanoseconds", "--device h100"),
        (("llama", "--ranks", "8", "--kind", "inference"), "the parameters of a training step", "--mode training"),
        (("chain", "-o", "no/such/folder/g.json"), "cannot be written", "choose another place"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_what_to_do(
    args: tuple[str, ...], message: str, hint: str, remat: Remat
) -> None:
    ended = remat("generate", *args)
    assert (ended.code, ended.out) == (2, "")
    error, remedy = ended.err.strip().splitlines()
    assert message in error
    assert hint in remedy
