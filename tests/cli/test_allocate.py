"""`remat allocate`: tables of buffers and schedules, wrong input included."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Status
from remat_cli.core.solve import baseline_of
from remat_cli.prepare import prepare
from tests.bench import tiny
from tests.cli.calls import Remat
from tests.places import GRAPHS

BUFFERS = "id,lower,upper,size\na,0,2,3\nb,1,3,3\nc,2,4,4\nd,0,1,4\n"
CHAIN = GRAPHS / "skip_chain.json"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text(BUFFERS)
    return path


@pytest.fixture
def schedule(remat: Remat, tmp_path: Path) -> Path:
    path = tmp_path / "schedule.json"
    assert remat("plan", CHAIN, "--budget", "80%", "--planner", "approx_dp", "-o", path, "-q").code == 0
    return path


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_table_gets_offsets_that_lie_apart(remat: Remat, table: Path, tmp_path: Path) -> None:
    ended = remat("allocate", table, "--capacity", "7", "-o", tmp_path / "out.csv", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["arena_bytes"] == ended.json["bound_bytes"] == 7
    assert ended.json["status"] == "optimal"
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["id"] for row in rows] == list("abcd")
    at = {row["id"]: range(int(row["offset"]), int(row["offset"]) + int(row["size"])) for row in rows}
    for first, second in ("ab", "bc", "ad"):
        assert set(at[first]).isdisjoint(at[second])


def test_smallest_arena_is_found_without_a_capacity(remat: Remat, table: Path) -> None:
    assert remat("allocate", table, "--json").json["arena_bytes"] == 7


def test_further_columns_stay_and_an_old_offset_goes(remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text('size,offset,name,id,upper,lower\n3,99,"x, y",a,2,0\n')
    assert remat("allocate", path, "-o", tmp_path / "out.csv", "-q").code == 0
    assert (tmp_path / "out.csv").read_text() == 'size,name,id,upper,lower,offset\n3,"x, y",a,2,0,0\n'


def test_capacity_below_the_load_is_proven_not_to_do(remat: Remat, table: Path, tmp_path: Path) -> None:
    ended = remat("allocate", table, "--capacity", "6", "-o", tmp_path / "out.csv")
    assert ended.code == 3
    assert "infeasible" in ended.out
    assert not (tmp_path / "out.csv").exists()


def test_no_time_is_no_proof(remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    rows = (f"{i},{i * 7 % 60},{i * 7 % 60 + 3 + i * 11 % 23},{1 + i * 37 % 29}" for i in range(300))
    path.write_text("id,lower,upper,size\n" + "\n".join(rows) + "\n")
    load = remat("allocate", path, "--time-limit", "0s", "--json").json["bound_bytes"]
    ended = remat("allocate", path, "--time-limit", "0s", "--capacity", str(load))
    assert ended.code == 4
    assert "unknown" in ended.out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,lower,upper\na,0,1\n", "not one column 'size'"),
        ("id,lower,upper,size\n", "holds no buffers"),
        ("id,lower,upper,size\na,0,1\n", "buffers.csv:2: 3 cells, but the first line has 4"),
        ("id,lower,upper,size\na,0,1,3\n\nb,5,5,3\n", "buffers.csv:4: upper 5 is not above lower 5"),
        ("id,lower,upper,size\na,0,1,0\n", "size 0 is not above 0"),
        ("id,lower,upper,size\na,0,1,-4\n", "size -4 is not above 0"),
        ("id,lower,upper,size\na,0,1,1.5\n", "size '1.5' is no whole number"),
        (f"id,lower,upper,size\na,0,1,{10**18}\nb,0,1,{10**18}\n", "is no whole number of at most 18 digits"),
        ('id,lower,upper,size\na,0,1,"3\n', "no valid CSV"),
        ("{}", "is no table of buffers"),
        ("", "is empty"),
    ],
)
def test_wrong_table_is_named_with_its_line(remat: Remat, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text(text)
    ended = remat("allocate", path)
    assert ended.code in (2, 6)
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_graph_without_a_schedule_is_refused_with_the_way_to_call(remat: Remat) -> None:
    ended = remat("allocate", CHAIN)
    assert ended.code == 2
    assert "remat allocate GRAPH SCHEDULE" in ended.err


@pytest.mark.parametrize("options", [("--capacity", "1XB"), ("--alignment", "0"), ("--time-limit", "soon")])
def test_wrong_options_are_refused(remat: Remat, table: Path, options: tuple[str, str]) -> None:
    assert remat("allocate", table, *options).code == 2


def test_schedule_gets_an_arena_that_verify_accepts(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    placed = tmp_path / "placed.json"
    ended = remat("allocate", CHAIN, schedule, "-o", placed, "--json")
    assert ended.code == 0
    document = read(placed)
    arena = document.pop("arena")
    assert document == read(schedule)
    assert arena["alignment"] == 64
    assert arena["bytes"] == ended.json["arena_bytes"]
    assert all(offset % 64 == 0 for _, _, offset in arena["offsets"])
    assert remat("verify", CHAIN, placed).code == 0


def test_the_same_schedule_gets_the_same_bytes(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        assert remat("allocate", CHAIN, schedule, "-o", file, "-q").code == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    # What has an arena is given a new one.
    assert remat("allocate", CHAIN, files[0], "--alignment", "256", "-o", files[1], "-q").code == 0
    assert read(files[1])["arena"]["alignment"] == 256


def test_verify_names_the_first_clash(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    placed = tmp_path / "placed.json"
    assert remat("allocate", CHAIN, schedule, "-o", placed, "-q").code == 0
    document = read(placed)
    for entry in document["arena"]["offsets"]:
        entry[2] = 0
    placed.write_text(json.dumps(document))
    ended = remat("verify", CHAIN, placed)
    assert ended.code == 5
    assert "arena: the start: tensor 'target' lies at 0" in ended.err


def test_verify_holds_the_arena_against_the_budget(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    placed = tmp_path / "placed.json"
    assert remat("allocate", CHAIN, schedule, "-o", placed, "-q").code == 0
    document = read(placed)
    document["arena"]["bytes"] = document["budget_bytes"] + 64
    placed.write_text(json.dumps(document))
    ended = remat("verify", CHAIN, placed)
    assert ended.code == 5
    assert "is above the budget" in ended.err


@pytest.mark.parametrize(
    ("arena", "says"),
    [
        ([], "arena"),
        ({"bytes": 64, "offsets": []}, "an alignment of at least 1"),
        ({"bytes": -1, "alignment": 64, "offsets": []}, "bytes of at least 0"),
        ({"bytes": 64, "alignment": 0, "offsets": []}, "an alignment of at least 1"),
        ({"bytes": 64, "alignment": 64, "offsets": [[0, "y"]]}, "arena.offsets[0]: [0, 'y'] is no address"),
        ({"bytes": 64, "alignment": 64, "offsets": [[0, "y", True]]}, "is no address"),
        ({"bytes": 64, "alignment": 64, "offsets": [["0", None, 0]]}, "is no address"),
    ],
)
def test_malformed_arena_is_named(remat: Remat, schedule: Path, arena: object, says: str) -> None:
    document = read(schedule)
    document["arena"] = arena
    schedule.write_text(json.dumps(document))
    ended = remat("verify", CHAIN, schedule)
    assert ended.code == 6
    assert says in ended.err


def test_schedule_that_does_not_run_gets_no_arena(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    document = read(schedule)
    document["steps"] = document["steps"][1:]
    schedule.write_text(json.dumps(document))
    ended = remat("allocate", CHAIN, schedule, "-o", tmp_path / "placed.json")
    assert ended.code == 5
    assert not (tmp_path / "placed.json").exists()


def test_plan_with_addresses_is_verified_with_its_arena(remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    ended = remat("plan", CHAIN, "--budget", "80%", "--planner", "approx_dp", "--addresses", "-o", path, "--json")
    assert ended.code == 0
    document = read(path)
    assert document["arena"]["alignment"] == 64
    assert ended.json["arena"]["bytes"] == document["arena"]["bytes"]
    assert ended.json["arena"]["fragmentation_bytes"] >= 0
    assert remat("verify", CHAIN, path).code == 0
    shown = remat("plan", CHAIN, "--budget", "80%", "--planner", "approx_dp", "--addresses")
    assert "one block; resident bytes lie beside it" in shown.out


def test_plan_without_addresses_says_nothing_of_them(remat: Remat, schedule: Path) -> None:
    assert "arena" not in read(schedule)
    assert remat("plan", CHAIN, "--budget", "80%", "--planner", "approx_dp", "--json").json["arena"] is None


def test_config_asks_for_an_arena(remat: Remat, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("planner: approx_dp\nbudget: 80%\narena: true\nalignment: 256\n")
    ended = remat("plan", CHAIN, "-c", config, "--json")
    assert ended.json["arena"]["alignment"] == 256
    config.write_text("planner: approx_dp\nbudget: 80%\narena: true\nalignment: 0\n")
    assert remat("plan", CHAIN, "-c", config).code == 2
    config.write_text("arena: perhaps\n")
    ended = remat("plan", CHAIN, "-c", config)
    assert ended.code == 2
    assert "config.yaml:1" in ended.err


def test_alignment_goes_with_addresses(remat: Remat) -> None:
    ended = remat("plan", CHAIN, "--budget", "80%", "--alignment", "64")
    assert ended.code == 2
    assert "--alignment goes with --addresses" in ended.err


def test_batch_plans_with_addresses_and_tells_such_jobs_apart(remat: Remat, tmp_path: Path) -> None:
    manifest = tmp_path / "batch.yaml"
    for arena, runs in (("false", 1), ("true", 2), ("true", 2)):
        manifest.write_text(f"graphs: [{CHAIN}]\nbudgets: [80%]\nconfigs: [approx_dp]\narena: {arena}\n")
        assert remat("batch", manifest, "-o", tmp_path / "results.jsonl", "-j", "1", "-q", "--resume").code == 0
        lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
        results = [line for line in lines if line.get("status") in ("optimal", "feasible")]
        assert len(results) == runs
    assert [result["arena_bytes"] is None for result in results] == [True, False]


def test_sweep_has_a_column_of_arenas_that_fit_their_budgets(remat: Remat) -> None:
    call = ("sweep", CHAIN, "--planner", "approx_dp", "--addresses", "--alignment", "128", "--budgets")
    assert "arena" in remat(*call, "90%").out
    resident = remat("plan", CHAIN, "--budget", "90%", "--addresses", "--planner", "approx_dp", "--json").json
    points = remat(*call, "75%,90%,min", "--json").json["curves"][0]["points"]
    assert len(points) == 3
    for point in points:
        assert point["arena_bytes"] % 128 == 0
        beside = resident["peak_bytes"] - resident["arena"]["bytes"] + resident["arena"]["fragmentation_bytes"]
        assert beside + point["arena_bytes"] <= point["budget_bytes"]


def test_sweep_without_addresses_has_no_such_column(remat: Remat) -> None:
    assert "arena" not in remat("sweep", CHAIN, "--budgets", "90%", "--planner", "approx_dp").out
    ended = remat("sweep", CHAIN, "--alignment", "64")
    assert ended.code == 2
    assert "--alignment goes with --addresses" in ended.err


@pytest.mark.parametrize("name", tiny.MODELS)
def test_networks_of_small_devices_are_planned_with_addresses(remat: Remat, tmp_path: Path, name: str) -> None:
    model, schedule = tmp_path / "model.onnx", tmp_path / "schedule.json"
    onnx.save(tiny.MODELS[name](), model)
    asked = ("--mode", "inference", "--addresses", "--budget", "256KiB")
    ended = remat("plan", model, *asked, "-o", schedule, "--json")
    assert ended.code == 0
    # Weights lie beside the arena: with them, two of the three would not fit.
    assert ended.json["arena"]["bytes"] <= 256 * 1024
    assert ended.json["arena"]["fragmentation_bytes"] < 64
    assert remat("verify", model, schedule).code == 0
    found, greedy = tiny.of_plain_run(prepare(model, GraphOptions(mode="inference")).graph)
    assert found.status is Status.OPTIMAL
    assert found.bytes is not None
    assert found.bytes <= greedy


def banks_of(path: Path) -> Any:
    return read(path)["arena"]["banks"]


def test_table_in_banks_says_which_and_where(remat: Remat, tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text("id,lower,upper,size,traffic\na,0,2,3,3\nb,1,3,3,90\nc,2,4,4,4\nd,0,1,4,80\n")
    options = ("--bank", "slow=16:0.5", "--bank", "fast=4:2")
    ended = remat("allocate", path, *options, "-o", tmp_path / "out.csv", "--json")
    assert (ended.code, ended.err, ended.json["status"]) == (0, "", "optimal")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["bank"] for row in rows] == ["slow", "fast", "slow", "fast"]
    assert ended.json["traffic_time"] == ended.json["bound_traffic_time"] == (3 + 4) / 0.5 + (90 + 80) / 2
    again = remat("allocate", tmp_path / "out.csv", *options, "-o", tmp_path / "again.csv", "-q")
    assert again.code == 0
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "out.csv").read_text()
    said = remat("allocate", path, *options)
    assert "no choice of banks takes less time" in said.out


def test_banks_that_are_too_small_are_proven_so(remat: Remat, table: Path, tmp_path: Path) -> None:
    ended = remat("allocate", table, "--bank", "a=3", "--bank", "b=3", "-o", tmp_path / "out.csv")
    assert ended.code == 3
    assert "the banks cannot hold everything" in ended.out
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--bank", "sram"), "bank 'sram' is not NAME=SIZE[:SPEED]"),
        (("--bank", "=4"), "bank '=4' is not NAME=SIZE[:SPEED]"),
        (("--bank", "a=0"), "bank 'a=0' holds nothing"),
        (("--bank", "a=4:0"), "'0' is no speed"),
        (("--bank", "a=4:-1"), "'-1' is no speed"),
        (("--bank", "a=4:fast"), "'fast' is no speed"),
        (("--bank", "a=4x"), "unknown unit"),
        (("--bank", "a=4", "--bank", "a=5"), "two banks are named 'a'"),
        (("--bank", "a=4", "--capacity", "9"), "do not go together"),
    ],
)
def test_banks_that_are_not_understood_are_refused(
    remat: Remat, table: Path, options: tuple[str, ...], says: str
) -> None:
    ended = remat("allocate", table, *options)
    assert ended.code == 2
    assert says in ended.err


@pytest.mark.parametrize(
    ("cell", "says"), [("-1", "traffic -1 is below 0"), ("x", "is no whole number"), ("9" * 18, None), ("", "''")]
)
def test_traffic_that_is_not_understood_is_refused(remat: Remat, tmp_path: Path, cell: str, says: str | None) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text(f"id,lower,upper,size,traffic\na,0,2,3,1\nb,1,3,3,{cell}\n")
    ended = remat("allocate", path, "--bank", "a=9")
    assert ended.code == (0 if says is None else 6)
    assert says is None or (f"{path}:3: " in ended.err and says in ended.err)


def test_schedule_in_banks_is_judged(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    whole = remat("allocate", CHAIN, schedule, "--json").json["arena_bytes"]
    options = ("--bank", f"sram={whole // 3}", "--bank", f"psram={whole}:0.25", "--time-limit", "1s")
    assert remat("allocate", CHAIN, schedule, *options, "-o", tmp_path / "out.json", "-q").code == 0
    assert remat("verify", CHAIN, tmp_path / "out.json", "-q").code == 0
    assert [bank["name"] for bank in banks_of(tmp_path / "out.json")] == ["sram", "psram"]
    document = read(tmp_path / "out.json")
    assert {len(address) for address in document["arena"]["offsets"]} == {4}
    assert {address[3] for address in document["arena"]["offsets"]} == {"sram", "psram"}
    document["arena"]["banks"][0]["bytes"] //= 2
    (tmp_path / "broken.json").write_text(json.dumps(document))
    ended = remat("verify", CHAIN, tmp_path / "broken.json", "-q")
    assert ended.code == 5
    assert "bank 'sram'" in ended.err


@pytest.mark.parametrize(
    "bank", [{}, {"name": "a", "bytes": 0, "speed": "1"}, {"name": "a", "bytes": 4, "speed": 1}, "a", {"name": 1}]
)
def test_bank_of_a_file_that_is_none_is_refused(remat: Remat, schedule: Path, tmp_path: Path, bank: Any) -> None:
    document = read(schedule)
    document["arena"] = {"bytes": 4, "alignment": 1, "offsets": [], "banks": [bank]}
    (tmp_path / "broken.json").write_text(json.dumps(document))
    ended = remat("verify", CHAIN, tmp_path / "broken.json", "-q")
    assert ended.code == 6
    assert "arena.banks[0]" in ended.err


def test_plan_lies_in_banks_and_is_drawn_bank_by_bank(remat: Remat, tmp_path: Path) -> None:
    graph = prepare(CHAIN, GraphOptions()).graph
    peak = baseline_of(graph).peak_bytes
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    banks = ("--bank", f"sram={peak // 4}", "--bank", f"psram={peak}:0.5")
    options = ("--addresses", *banks, "--planner", "approx_dp", "--time-limit", "2s")
    ended = remat("plan", CHAIN, "--budget", "80%", *options, "-o", out, "--html", page)
    assert ended.code == 0, ended.err
    assert "in the banks" in ended.out
    assert [bank["name"] for bank in banks_of(out)] == ["sram", "psram"]
    assert remat("verify", CHAIN, out, "-q").code == 0
    assert page.read_text().count('<svg class="arena"') == 2
    # Without a budget, it is what the banks hold.
    alone = remat("plan", CHAIN, *options, "--json")
    assert (alone.code, alone.json["budget_bytes"]) == (0, graph.resident_bytes + peak // 4 + peak)


def test_banks_that_hold_less_than_any_plan_needs_are_proven_too_small(remat: Remat) -> None:
    ended = remat(
        "plan", CHAIN, "--budget", "80%", "--addresses", "--bank", "a=1KiB", "--planner", "approx_dp", "--json"
    )
    assert (ended.code, ended.json["status"]) == (3, "infeasible")


def test_banks_of_a_plan_need_addresses_and_a_budget_of_a_size(remat: Remat) -> None:
    assert "--bank goes with --addresses" in remat("plan", CHAIN, "--budget", "80%", "--bank", "a=4KiB").err
    ended = remat("plan", CHAIN, "--budget", "min", "--addresses", "--bank", "a=4KiB")
    assert ended.code == 2
    assert "there is no smallest budget" in ended.err


def test_banks_of_a_config_file(remat: Remat, tmp_path: Path) -> None:
    config, out = tmp_path / "remat.yaml", tmp_path / "plan.json"
    config.write_text("arena: true\nplanner: approx_dp\nbanks: {sram: 1KiB, psram: '1GiB:0.4'}\n")
    assert remat("plan", CHAIN, "--config", config, "-o", out, "-q").code == 0
    assert banks_of(out) == [
        {"name": "sram", "bytes": 1024, "speed": "1"},
        {"name": "psram", "bytes": 2**30, "speed": "2/5"},
    ]
    config.write_text("arena: true\nbanks: {sram: 1KiB, psram: '1GiB:slow'}\n")
    ended = remat("plan", CHAIN, "--config", config)
    assert ended.code == 2
    assert f"{config}:2: banks.psram" in ended.err
